// @ts-check
/**
 * What the client stands on: the network, a clock, chance, and what else a browser tells. The only module that touches
 * globals, each only if it is there: the rest runs in a page, in a worker and in Node alike, and under a test's clock.
 */

/** @typedef {import("./types.js").Environment} Environment */

/**
 * @param {Partial<Environment>} [changes]
 * @returns {Environment}
 */
export function environment(changes = {}) {
  const { BroadcastChannel, navigator } = globalThis;
  return {
    fetch: (input, init) => globalThis.fetch(input, init),
    now: () => Date.now(),
    random: () => Math.random(),
    setTimeout: (callback, ms) => globalThis.setTimeout(callback, ms),
    clearTimeout: (timer) => globalThis.clearTimeout(timer),
    listen,
    locks: navigator?.locks ?? null,
    openChannel: BroadcastChannel ? (name) => new BroadcastChannel(name) : null,
    report,
    ...changes,
  };
}

/**
 * @param {import("./types.js").WakeListener} listener
 * @returns {() => void}
 */
function listen(listener) {
  const { document } = globalThis;
  if (typeof globalThis.addEventListener !== "function") return () => {};
  const stop = new AbortController();
  const options = { signal: stop.signal };
  globalThis.addEventListener("online", () => listener.wake(false), options);
  document?.addEventListener("resume", () => listener.wake(false), options);
  document?.addEventListener("visibilitychange", () => document.hidden || listener.wake(false), options);
  // Only what goes into the back-forward cache comes out again; it must hold no connection there.
  globalThis.addEventListener("pagehide", (event) => /** @type {PageTransitionEvent} */ (event).persisted && listener.sleep(), options);
  globalThis.addEventListener("pageshow", (event) => /** @type {PageTransitionEvent} */ (event).persisted && listener.wake(true), options);
  return () => stop.abort();
}

/**
 * What a callback threw is its author's: told as if nobody had caught it, and the watch goes on.
 * @param {unknown} error
 */
function report(error) {
  if (typeof globalThis.reportError === "function") globalThis.reportError(error);
  else console.error(error);
}
