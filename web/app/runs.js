// @ts-check
/** A job's life as its log tells it: when it waited and why, when it ran and where, how each run went. Pure. */

/** @typedef {import("../client/types.js").LogEvent} LogEvent */
/** @typedef {import("../client/format.js").Tone} Tone */
/**
 * @typedef {object} Run
 * @property {number} attempt
 * @property {number | null} run the lease's number
 * @property {string | null} worker
 * @property {number} from ms
 * @property {number | null} to null while it runs
 * @property {string} end how it went, in a word
 * @property {string} why what the log says about that
 * @property {Tone} tone
 * @property {[number, number][]} progress instants, ms, and percent
 */
/** @typedef {{from: number, to: number | null, reason: string}} Wait */

/** More points than a chart has pixels say nothing. */
const POINTS = 400;

export class Runs {
  /** @type {Run[]} */
  runs = [];
  /** @type {Wait[]} */
  waits = [];
  /** @type {{at: number, by: string}[]} */
  cancels = [];

  /** @param {LogEvent} event in the order of the log; it may have holes */
  add({ type, at, attempt, data = {} }) {
    const time = Date.parse(at);
    switch (type) {
      case "queued":
        this.#wait(time, data.run_at && Date.parse(data.run_at) > time ? "scheduled" : "queued");
        break;
      case "started":
        this.#close(time, "lost", "", "warning");
        this.runs.push({
          attempt, run: data.run ?? null, worker: data.worker ?? null, from: time, to: null, end: "running", why: "",
          tone: "active", progress: [],
        });
        break;
      case "progress":
        this.#progress(time, data);
        break;
      case "retrying":
        this.#close(time, "failed", failure(data.error), "bad");
        this.#wait(time, "back-off");
        break;
      case "released":
        this.#close(time, "released", String(data.reason ?? ""), "waiting");
        this.#wait(time, data.delay_ms > 0 ? "released for later" : "released");
        break;
      case "requeued":
        this.#close(time, "ended", "", "ended");
        this.#wait(time, "put back");
        break;
      case "cancel_requested":
        this.cancels.push({ at: time, by: String(data.by ?? "") });
        break;
      case "completed":
        this.#close(time, "completed", String(data.note ?? ""), data.ok === false || data.items === 0 ? "warning" : "good");
        break;
      case "failed":
        this.#close(time, "failed", failure(data), "bad");
        break;
      case "cancelled":
        this.#close(time, "cancelled", String(data.reason ?? ""), "ended");
        break;
      case "expired":
        this.#close(time, "expired", String(data.reason ?? ""), "bad");
        break;
    }
  }

  /**
   * @param {number} time
   * @param {string} reason
   */
  #wait(time, reason) {
    this.waits.push({ from: time, to: null, reason });
  }

  /**
   * Ends whatever is under way.
   * @param {number} time
   * @param {string} end
   * @param {string} why
   * @param {Tone} tone
   */
  #close(time, end, why, tone) {
    const wait = this.waits.at(-1);
    if (wait && wait.to === null) wait.to = time;
    const run = this.runs.at(-1);
    if (run && run.to === null) Object.assign(run, { to: time, end, why, tone });
  }

  /**
   * @param {number} time
   * @param {Record<string, any>} data
   */
  #progress(time, { percent, current, total }) {
    const run = this.runs.at(-1);
    if (!run || run.to !== null) return;
    const share = percent ?? (current != null && total != null ? (100 * current) / total : null);
    if (share === null) return;
    const last = run.progress.at(-1)?.[1] ?? 0;
    run.progress.push([time, Math.max(last, Math.min(100, share))]);
    if (run.progress.length > 2 * POINTS) run.progress = run.progress.filter((_, index) => index % 2 === 1);
  }
}

/**
 * @param {{code?: string, message?: string} | null | undefined} error
 */
function failure(error) {
  return [error?.code, error?.message].filter(Boolean).join(": ");
}
