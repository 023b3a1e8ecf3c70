// @ts-check
/** The feed as the views use it: open while somebody looks, with its state in the page's mark and endings as notices. */
import { watchFeed } from "../client/milepost.js";
import { base, now, token, witness } from "./gateway.js";
import { drawLink } from "./navigation.js";
import { tellEnding } from "./notices.js";

/** @typedef {import("../client/types.js").Job} Job */
/** @typedef {import("../client/types.js").FeedWatch} FeedWatch */

/**
 * @param {import("../client/types.js").FeedFilter} filter
 * @param {AbortSignal} signal ends it
 * @param {{onOpen?: () => void, onState?: (job: Job) => void, onGone?: (id: string) => void}} calls `onOpen`: it begins
 *   anew, at first and when somebody looks again; what the feed cannot tell is to be asked for again
 * @returns {{readonly jobs: Iterable<Job>, readonly link: import("../client/types.js").Link}}
 */
export function liveFeed(filter, signal, { onOpen, onState, onGone }) {
  /** @type {FeedWatch | null} */
  let feed = null;
  function open() {
    if (feed || document.hidden || signal.aborted) return;
    feed = watchFeed(filter, {
      base,
      token,
      onState(job) {
        witness(job.updated_at);
        tellEnding(job, now());
        onState?.(job);
      },
      onGone,
      onReset: onOpen,
      onLink: drawLink,
    });
    onOpen?.();
  }
  function close() {
    feed?.close();
    feed = null;
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()), { signal });
  signal.addEventListener("abort", close);
  drawLink("connecting");
  open();
  return {
    get jobs() {
      return feed?.jobs.values() ?? [];
    },
    get link() {
      return feed?.link ?? "closed";
    },
  };
}

/**
 * Asks again and again while somebody looks: soon after `soon()`, else every few seconds. One request at a time.
 * @param {AbortSignal} signal ends it
 * @param {number} everyMs
 * @param {(signal: AbortSignal) => Promise<void>} look
 */
export function regularly(signal, everyMs, look) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let due = Infinity;
  let busy = false;
  /** @param {number} ms */
  function within(ms) {
    if (document.hidden || signal.aborted || Date.now() + ms >= due) return;
    clearTimeout(timer);
    due = Date.now() + ms;
    timer = setTimeout(run, ms);
  }
  async function run() {
    due = Infinity;
    if (busy || document.hidden || signal.aborted) return;
    busy = true;
    await look(signal).catch((error) => signal.aborted || reportError(error));
    busy = false;
    within(everyMs);
  }
  document.addEventListener("visibilitychange", () => within(0), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  within(0);
  return { soon: () => within(400), now: () => within(0) };
}
