// @ts-check
/**
 * Room for connections, shared by all tabs of an origin.
 *
 * A browser opens six connections to a host over HTTP/1.1 and lets every further request wait without a word: seven open
 * streams, and the page hangs. So there are at most three streams of logs, one of a feed and one parked poll at a time;
 * whoever finds no room goes one step down, and a plain poll needs none. A slot is a Web Lock: it goes with its tab.
 */

/** @typedef {import("./types.js").Transport} Transport */

const LONG_POLLS = { name: "milepost:long-poll", count: 1 };

/** What a stream is of, and how many of these there may be. */
export const LOGS = { name: "milepost:stream", count: 3 };
export const FEEDS = { name: "milepost:feed", count: 1 };

/**
 * Takes the slot of a transport, or of the best below it that has room.
 * @param {LockManager | null} locks null: nobody counts
 * @param {Transport} transport
 * @param {{name: string, count: number}} streams
 * @returns {Promise<{transport: Transport, leave: () => void}>}
 */
export async function enter(locks, transport, streams) {
  if (transport === "stream") {
    const leave = await take(locks, streams);
    if (leave) return { transport, leave };
  }
  if (transport !== "poll") {
    const leave = await take(locks, LONG_POLLS);
    if (leave) return { transport: "long-poll", leave };
  }
  return { transport: "poll", leave() {} };
}

/**
 * @param {LockManager | null} locks
 * @param {{name: string, count: number}} slots
 * @returns {Promise<(() => void) | null>} how to leave it; null if all are taken
 */
async function take(locks, { name, count }) {
  if (locks === null) return () => {};
  for (let index = 0; index < count; index += 1) {
    /** @type {(() => void) | null | undefined} */
    const leave = await new Promise((resolve) => {
      locks
        .request(`${name}:${index}`, { ifAvailable: true }, (lock) =>
          lock === null ? resolve(undefined) : new Promise((left) => resolve(() => left(undefined))),
        )
        // Where locks are forbidden (a sandboxed frame) nobody counts.
        .catch(() => resolve(null));
    });
    if (leave === null) return () => {};
    if (leave) return leave;
  }
  return null;
}
