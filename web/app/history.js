// @ts-check
/** How the queues stood since this tab was opened: the gateway says only how they stand now. Kept over a reload. */

/** @typedef {import("./queues.js").Queue} Queue */
/** @typedef {import("./chart.js").Point} Point */
/**
 * @typedef {object} Sample
 * @property {number} at ms
 * @property {number} depth
 * @property {number} running
 * @property {number} perMin
 * @property {number | null} waitP50
 * @property {number | null} waitP95
 * @property {number | null} runP50
 * @property {number | null} runP95
 */

const KEY = "milepost.queues";
/** Half an hour at one sample in five seconds. */
const KEPT = 360;
const APART_MS = 4_500;

/** @type {Map<string, Sample[]>} */
const samples = new Map(read());

/**
 * @param {Queue[]} queues
 * @param {number} at the gateway's time, ms
 */
export function remember(queues, at) {
  for (const queue of queues) {
    const known = samples.get(queue.name) ?? [];
    samples.set(queue.name, known);
    const newest = {
      at, depth: queue.counts.queued, running: queue.counts.running, perMin: queue.finished_per_min,
      waitP50: queue.wait_ms.p50, waitP95: queue.wait_ms.p95, runP50: queue.run_ms.p50, runP95: queue.run_ms.p95,
    };
    // The last one moves along until it is far enough from the one before.
    const before = known.at(-2);
    if (before && known.length > 1 && (known.at(-1)?.at ?? 0) - before.at < APART_MS) known.pop();
    known.push(newest);
    if (known.length > KEPT) known.shift();
  }
  try {
    sessionStorage.setItem(KEY, JSON.stringify([...samples].slice(0, 50)));
  } catch {
    // Without storage the charts begin anew with each page.
  }
}

/**
 * @param {string} name of a queue
 * @param {Exclude<keyof Sample, "at">} value
 * @returns {Point[]}
 */
export function past(name, value) {
  return (samples.get(name) ?? []).map((sample) => [sample.at, sample[value]]);
}

/** @returns {[string, Sample[]][]} */
function read() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept : [];
  } catch {
    return [];
  }
}
