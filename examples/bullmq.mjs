// @ts-check
// Shows the jobs of a BullMQ worker in Milepost while they run.
//
//     import { Worker } from "bullmq";
//     import { track } from "./bullmq.mjs";
//
//     const worker = track(new Worker("renders", async (job, token, signal) => {
//       await job.updateProgress({ current: 3, total: 10, unit: "frames" }); // or a percentage, or a message
//     }, { connection }));
//
// `MILEPOST_URL` says where. `GET /v1/jobs?subject=bullmq:<queue>:<job id>` finds the runs of a job, the newest first:
// there is one Milepost job for each, from its start to its end as BullMQ has stored it. A run that BullMQ will try
// again ends as `failed`, code `retry`, and the next one is a job of its own; so no failure is lost, and no success is
// told twice. A cancel aborts the processor's `signal`, and BullMQ does not try that job again.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const SILENCE_MS = Number(process.env.MILEPOST_SILENCE_MS ?? 60_000); // A process that died is noticed after so long.
const HOLD_MS = Math.min(10_000, Math.floor(SILENCE_MS / 3));
const PATIENCE_MS = 60_000; // How long after the end of a run the gateway may stay away before its report is given up.
const MAX_WAITING = 1_000; // Events of a run; those that come while so many wait are dropped, its end is not.
const MAX_RUNS = 1_000; // Reported at a time; those beyond go on unreported.

/** @typedef {{ type: string, data: Record<string, unknown> }} Event */

/**
 * Reports what a worker does with its jobs. Nothing here makes them wait, or fail.
 * @template {import("bullmq").Worker} W
 * @param {W} worker
 * @param {{ url?: string }} [options]
 * @returns {W}
 */
export function track(worker, { url = process.env.MILEPOST_URL ?? "http://127.0.0.1:8080" } = {}) {
  /** @type {Map<string | undefined, Run>} By job id. */
  const running = new Map();
  /** @param {import("bullmq").Job | undefined} job @param {string} type @param {Record<string, unknown>} data */
  const end = (job, type, data) => {
    running.get(job?.id)?.end(type, data);
    running.delete(job?.id);
  };
  worker.on("active", (job) => {
    const subject = `bullmq:${job.queueName}:${job.id}`;
    const meta = { attempt: job.attemptsMade + 1, max_attempts: job.opts.attempts ?? 1 };
    const spec = { kind: name(job.name), queue: name(job.queueName), subject, meta };
    const cancel = () => {
      job.opts.attempts = job.attemptsMade + 1; // Nobody wants it tried again.
      worker.cancelJob(String(job.id), "cancelled");
    };
    const run = new Run(url, spec, cancel, () => job.isActive());
    end(job, "cancelled", { reason: "given back" }); // Or it stalled: then it has been ended already.
    running.set(job.id, run);
    const log = job.log.bind(job);
    job.log = (row) => {
      run.append("log", { message: String(row) });
      return log(row);
    };
  });
  worker.on("progress", (job, progress) => running.get(job.id)?.append("progress", fields(progress)));
  worker.on("completed", (job, result) => end(job, "completed", outcome(result)));
  worker.on("failed", (job, error) => {
    if (running.get(job?.id)?.cancelRequested) return end(job, "cancelled", { reason: error.message });
    const again = job && !job.finishedOn;
    end(job, "failed", { code: again ? "retry" : error.name, message: error.message, retryable: again });
  });
  // Another worker has it by now, or soon.
  worker.on("lockRenewalFailed", (ids) => ids.forEach((id) => running.get(id)?.end("failed", { code: "lock_lost" })));
  return worker;
}

/** Before a process ends: waits for runs that have ended and are not yet reported, but no longer than so. */
export async function settle(ms = 5_000) {
  const late = [...runs].filter((run) => run.ended).map((run) => run.over);
  await Promise.race([Promise.all(late), sleep(ms, undefined, { ref: false })]);
}

/** A queue or kind out of any name. @param {string} text */
function name(text) {
  return text.replace(/[^A-Za-z0-9._-]/g, "-").slice(-64) || "unnamed";
}

/** What `updateProgress` was given, as Milepost says it. @param {unknown} progress */
function fields(progress) {
  if (typeof progress === "number") return { percent: progress };
  if (typeof progress !== "object" || progress === null) return { message: String(progress) };
  const known = ["percent", "current", "total", "unit", "phase", "message"];
  return Object.fromEntries(Object.entries(progress).filter(([field]) => known.includes(field)));
}

/** An Outcome with what a processor returned, if that is small. @param {unknown} result */
function outcome(result) {
  const fits = result != null && (JSON.stringify(result)?.length ?? Infinity) <= 200_000;
  return fits ? { data: result } : {};
}

/** @type {Set<Run>} */
const runs = new Set();

class Refused extends Error {}

/** One tracked job. */
class Run {
  /** When it ended, or 0. */
  ended = 0;
  cancelRequested = false;
  /** Resolves when everything is reported, or given up. @type {Promise<void>} */
  over = Promise.resolve();
  #isOver = false;
  #url;
  /** @type {Event[]} */
  #waiting = [];
  #wake = () => {};

  /**
   * @param {string} url
   * @param {{ subject: string }} spec
   * @param {() => void} cancel
   * @param {() => Promise<boolean>} goesOn
   */
  constructor(url, spec, cancel, goesOn) {
    this.#url = url;
    if (runs.size >= MAX_RUNS) {
      process.emitWarning(`${spec.subject} is not reported: ${MAX_RUNS} others wait for ${url}`);
      return;
    }
    runs.add(this);
    this.over = this.#report(spec, cancel, goesOn)
      .catch((error) => process.emitWarning(`${spec.subject} is not reported: ${error.message}`))
      .finally(() => {
        this.#isOver = true;
        runs.delete(this);
      });
  }

  /** @param {string} type @param {Record<string, unknown>} data */
  append(type, data) {
    if (this.ended || this.#waiting.length >= MAX_WAITING) return;
    this.#waiting.push({ type, data });
    this.#wake();
  }

  /** Only the first end counts. @param {string} type @param {Record<string, unknown>} data */
  end(type, data) {
    if (this.ended) return;
    this.ended = Date.now();
    this.#waiting.push({ type, data });
    this.#wake();
  }

  /** @param {object} spec @param {() => void} cancel @param {() => Promise<boolean>} goesOn */
  async #report(spec, cancel, goesOn) {
    const opened = await this.#post("/v1/jobs", { tracked: true, timeout_ms: SILENCE_MS, ...spec });
    const events = `/v1/jobs/${opened?.job.id}/events`;
    this.#hold(events, cancel, goesOn).catch(() => {}); // What is wrong is told by the loop below.
    for (;;) {
      if (this.#waiting.length === 0) await new Promise((resolve) => (this.#wake = () => resolve(null)));
      // At once when idle, joined when it piled up.
      if (!(await this.#send(events, this.#waiting.splice(0, 1_000)))) return;
      if (this.ended && this.#waiting.length === 0) return;
    }
  }

  /** Whether the job was still there. @param {string} events @param {Event[]} batch @returns {Promise<boolean>} */
  async #send(events, batch) {
    try {
      return (await this.#post(events, batch)) !== null;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (batch.length > 1) { // All or nothing: the others may be good.
        for (const event of batch) if (!(await this.#send(events, [event]))) return false;
        return true;
      }
      const { type, data } = batch[0];
      process.emitWarning(`${type} was refused: ${error.message}`);
      // An end has to be told all the same.
      const again = ["completed", "failed", "cancelled"].includes(type) && Object.keys(data).length > 0;
      return again ? this.#send(events, [{ type, data: {} }]) : true;
    }
  }

  /**
   * Heartbeat and cancel signal in one: the answer comes early when there is something to say.
   * @param {string} events @param {() => void} cancel @param {() => Promise<boolean>} goesOn
   */
  async #hold(events, cancel, goesOn) {
    while (!this.ended) {
      const said = await this.#post(`${events}?wait_ms=${HOLD_MS}`, []);
      if (!said) return;
      // A processor may give its job back without an event that says so.
      if (!(await goesOn().catch(() => true))) this.end("cancelled", { reason: "given back" });
      if (this.cancelRequested) await sleep(HOLD_MS, undefined, { ref: false });
      else if (said.cancel_requested) {
        this.cancelRequested = true;
        cancel();
      }
    }
  }

  /**
   * The answer, or null if the job has ended. The key makes it safe to repeat until there is one.
   * @param {string} path @param {object} body
   */
  async #post(path, body) {
    /** @type {Record<string, string>} */
    const headers = { "Content-Type": "application/json" };
    if (!Array.isArray(body) || body.length > 0) headers["Idempotency-Key"] = randomUUID();
    while (!this.#isOver && (!this.ended || Date.now() < this.ended + PATIENCE_MS)) {
      const request = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(30_000) };
      const answer = await fetch(this.#url + path, request).catch(() => null);
      const said = await answer?.json().catch(() => null); // Neither: the gateway is away, or restarts.
      if (answer && said && answer.status < 500 && answer.status !== 429) {
        if (answer.ok) return said;
        if ([404, 409].includes(answer.status)) return null;
        throw new Refused(said.detail);
      }
      await sleep(1_000);
    }
    throw new Error(`${this.#url} was away for too long`);
  }
}
