#!/usr/bin/env node
// A worker in Node, with fetch alone: `MILEPOST_URL=http://127.0.0.1:8080 worker.mjs QUEUE [NAME]`.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const url = process.env.MILEPOST_URL ?? "http://127.0.0.1:8080";
const leaseMs = Number(process.env.LEASE_MS ?? 30_000);
const [queue = "default", worker = `node-${process.pid}`] = process.argv.slice(2);

/** The work itself, here so many steps of so long. What it returns is the Outcome. */
async function work({ steps = 5, step_ms = 200 }, append, signal) {
  if (!Number.isInteger(steps)) throw new TypeError("steps is no whole number");
  for (let step = 1; step <= steps; step++) {
    await sleep(step_ms, undefined, { signal });
    const progress = { type: "progress", data: { current: step, total: steps, unit: "steps" } };
    await append(progress, { type: "output", data: { text: `step ${step} of ${steps}\n` } });
  }
  return { items: steps, data: { steps } };
}

/** The answer, or null if the job is no longer ours. The key makes it safe to repeat until there is an answer. */
async function post(path, body, { lease, signal } = {}) {
  const headers = { "Content-Type": "application/json" };
  if (lease) headers["Lease-Token"] = lease;
  if (body.length !== 0) headers["Idempotency-Key"] = randomUUID();
  for (;;) {
    const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal }).catch(() => null);
    const said = await answer?.json().catch(() => null); // Neither: the gateway is away, or restarts.
    if (said && answer.ok) return said;
    if (["lease_lost", "job_terminal", "job_not_found"].includes(said?.code)) return null;
    const passing = ["too_many_requests", "idempotency_in_flight"].includes(said?.code);
    if (said && answer.status < 500 && !passing) throw new Error(`${path}: ${said.detail}`);
    await sleep(1000, undefined, { signal });
  }
}

async function run(job, lease, stop) {
  const events = `/v1/jobs/${job.id}/events`;
  const { signal } = stop;
  // Heartbeat and cancel signal in one: the answer comes early when there is something to say.
  const hold = async () => {
    for (;;) {
      const answer = await post(`${events}?wait_ms=${Math.floor(leaseMs / 3)}`, [], { lease, signal });
      if (!answer || answer.cancel_requested) return stop.abort(answer ? "cancelled" : "lost");
    }
  };
  const append = async (...added) => {
    if (!(await post(events, added, { lease }))) stop.abort("lost");
    signal.throwIfAborted();
  };
  hold().catch(() => stop.abort("lost"));
  let end;
  try {
    end = { type: "completed", data: await work(job.payload ?? {}, append, signal) };
  } catch (error) {
    end = { type: "failed", data: { code: "exception", message: String(error) } };
    if (signal.aborted) end = { type: signal.reason };
  }
  if (end.type !== "lost") await post(events, end, { lease });
  stop.abort("done");
}

let stop = null;
let leaving = false;
process.on("SIGTERM", () => {
  leaving = true;
  if (!stop) process.exit(); // A parked claim takes nothing once its connection is closed.
  stop.abort("released");
});
while (!leaving) {
  const claim = { queues: [queue], worker, wait_ms: 30_000, lease_ms: leaseMs };
  const { jobs } = await post("/v1/claims", claim);
  for (const { job, lease } of jobs) {
    stop = new AbortController();
    await run(job, lease.token, stop);
  }
  stop = null;
}
