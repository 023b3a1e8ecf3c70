#!/usr/bin/env node
// @ts-check
// A worker in Node, with fetch alone: `MILEPOST_URL=http://127.0.0.1:8080 worker.mjs QUEUE [NAME]`.

import { randomUUID } from "node:crypto";
import { realpathSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const url = process.env.MILEPOST_URL ?? "http://127.0.0.1:8080";
const leaseMs = Number(process.env.LEASE_MS ?? 30_000);
const [queue = "default", worker = `node-${process.pid}`] = process.argv.slice(2);

/** @typedef {(...events: object[]) => Promise<void>} Append */
/** @typedef {(payload: any, append: Append, signal: AbortSignal) => Promise<object>} Work */

/** The work itself, here so many steps of so long. What it returns is the Outcome. @type {Work} */
async function work({ steps = 5, step_ms = 200 }, append, signal) {
  if (!Number.isInteger(steps)) throw new TypeError("steps is no whole number");
  for (let step = 1; step <= steps; step++) {
    await sleep(step_ms, undefined, { signal });
    const progress = { type: "progress", data: { current: step, total: steps, unit: "steps" } };
    await append(progress, { type: "output", data: { text: `step ${step} of ${steps}\n` } });
  }
  return { items: steps, data: { steps } };
}

/**
 * The answer, or null if the job is no longer ours. The key makes it safe to repeat until there is an answer.
 * @param {string} path @param {object} body @param {string} [lease] @param {AbortSignal} [signal]
 */
async function post(path, body, lease = "", signal) {
  /** @type {Record<string, string>} */
  const headers = { "Content-Type": "application/json", "Lease-Token": lease };
  if (!path.includes("?wait_ms")) headers["Idempotency-Key"] = randomUUID(); // Heartbeats need none.
  for (;; await sleep(1000, undefined, { signal })) {
    const request = { method: "POST", headers, body: JSON.stringify(body), signal };
    const answer = await fetch(url + path, request).catch(() => null);
    const said = await answer?.json().catch(() => null); // Neither: the gateway is away, or restarts.
    if (!answer || !said || answer.status >= 500 || answer.status === 429) continue;
    if (answer.ok) return said;
    if ([404, 409].includes(answer.status)) return null;
    throw new Error(`${path}: ${said.detail}`);
  }
}

/** @type {AbortController | null} Of the job at hand; its reason is the type of the event that ends the run. */
let stop = null;
let leaving = false;
process.on("SIGTERM", () => {
  leaving = true;
  if (!stop) process.exit(); // A parked claim takes nothing once its connection is closed.
  stop.abort("released");
});

/** @param {any} job @param {string} lease @param {AbortController} stop @param {Work} work */
async function run(job, lease, stop, work) {
  const events = `/v1/jobs/${job.id}/events`;
  // Heartbeat and cancel signal in one: the answer comes early when there is something to say.
  const hold = async () => {
    let said;
    do said = await post(`${events}?wait_ms=${Math.floor(leaseMs / 3)}`, [], lease, stop.signal);
    while (said && !said.cancel_requested);
    stop.abort(said ? "cancelled" : "lost");
  };
  /** @type {Append} */
  const append = async (...added) => {
    if (!(await post(events, added, lease))) stop.abort("lost");
    stop.signal.throwIfAborted();
  };
  hold().catch(() => stop.abort("lost"));
  let end;
  try {
    end = { type: "completed", data: await work(job.payload ?? {}, append, stop.signal) };
  } catch (/** @type {any} */ error) {
    end = { type: "failed", data: { code: "exception", message: String(error), ...error.failure } };
    if (stop.signal.aborted) end = { type: stop.signal.reason };
  }
  if (end.type !== "lost") await post(events, end, lease);
  stop.abort("done");
}

/** Does the jobs of a queue, one at a time, until SIGTERM. @param {Work} work */
export async function serve(work) {
  while (!leaving) {
    const { jobs } = await post("/v1/claims", { queues: [queue], worker, wait_ms: 30_000, lease_ms: leaseMs });
    for (const { job, lease } of jobs) await run(job, lease.token, (stop = new AbortController()), work);
    stop = null;
  }
}

if (realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) await serve(work);
