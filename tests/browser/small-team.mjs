// @ts-check
/** What a small team might have on its gateway: queues, workers, jobs that go well and jobs that do not. */

/** @typedef {import("./harness.mjs").Gateway} Gateway */
/** @typedef {{job: Record<string, any>, token: string}} Taken */

/**
 * Takes a job from a queue as a worker does.
 * @param {Gateway} gateway
 * @param {string} queue
 * @param {string} worker
 * @returns {Promise<Taken>}
 */
export async function take(gateway, queue, worker) {
  const { jobs } = await gateway.call("POST", "/v1/claims", { queues: [queue], worker, lease_ms: 60_000, wait_ms: 5_000 });
  if (jobs.length === 0) throw new Error(`${queue} had no job for ${worker}`);
  return { job: jobs[0].job, token: jobs[0].lease.token };
}

/**
 * Appends under a lease.
 * @param {Gateway} gateway
 * @param {Taken} taken
 * @param {...{type: string, data?: Record<string, unknown>}} events
 */
export async function report(gateway, { job, token }, ...events) {
  const response = await fetch(`${gateway.url}/v1/jobs/${job.id}/events`, {
    method: "POST",
    headers: { "content-type": "application/json", "lease-token": token },
    body: JSON.stringify(events),
  });
  if (!response.ok) throw new Error(`append: ${response.status} ${await response.text()}`);
}

/**
 * @param {Gateway} gateway
 * @param {Record<string, unknown>} spec
 * @returns {Promise<string>} the job's id
 */
export async function enqueue(gateway, spec) {
  return (await gateway.call("POST", "/v1/jobs", spec)).job.id;
}

/**
 * Jobs of three queues, in every state.
 * @param {Gateway} gateway
 * @param {number} rounds how long work goes on: so many jobs end, some tenths of a second apart
 * @returns {Promise<{retried: string, waiting: string, failed: string}>}
 */
export async function smallTeam(gateway, rounds) {
  const pause = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));
  await gateway.call("PATCH", "/v1/queues/llm", { concurrency: 4, rate_limit: { limit: 60, per_ms: 60_000, burst: 60 } });
  const retried = await enqueue(gateway, {
    queue: "import", kind: "import.feed", subject: "feed:news", payload: { url: "https://example.org/feed.xml" }, max_attempts: 3,
    backoff: { initial_ms: 800, factor: 1, max_ms: 800, jitter: 0 },
  });
  const first = await take(gateway, "import", "importer-1");
  await report(gateway, first, { type: "progress", data: { percent: 20, phase: "fetching" } });
  await pause(600);
  await report(gateway, first, { type: "failed", data: { code: "provider_busy", message: "the provider answered 503" } });
  const second = await take(gateway, "import", "importer-2");
  for (let step = 1; step <= 6; step += 1) {
    await report(gateway, second, { type: "progress", data: { current: step * 12, total: 90, unit: "items", phase: "storing" } });
    await pause(300);
  }
  const failed = await enqueue(gateway, { queue: "render", kind: "render.video", subject: "clip:17", max_attempts: 1 });
  await report(gateway, await take(gateway, "render", "gpu-1"), {
    type: "failed", data: { code: "timed_out", message: "no frame for 60 s", retryable: false },
  });
  for (const clip of [18, 19]) {
    await enqueue(gateway, { queue: "render", kind: "render.video", subject: `clip:${clip}`, max_attempts: 1 });
    await report(gateway, await take(gateway, "render", "gpu-1"), {
      type: "failed", data: { code: "out_of_memory", message: "the scene needs 26 GB", retryable: false },
    });
  }
  await enqueue(gateway, { queue: "render", kind: "render.video", subject: "clip:20" });
  await report(gateway, await take(gateway, "render", "gpu-1"), { type: "progress", data: { current: 312, total: 720, unit: "frames", phase: "rendering" } });
  for (let round = 0; round < rounds; round += 1) {
    await enqueue(gateway, { queue: "llm", kind: round % 4 === 3 ? "extract" : "summarize", subject: `article:${100 + round}` });
    if (round % 20 === 19) continue;
    const taken = await take(gateway, "llm", `llm-${1 + (round % 2)}`);
    await report(gateway, taken, { type: "progress", data: { percent: 50, phase: "drafting" } });
    await pause(150);
    const outcome = round % 7 === 6 ? { items: 0, note: "nothing new" } : { items: 1 };
    if (round < rounds - 2) await report(gateway, taken, { type: "completed", data: outcome });
  }
  const waiting = await enqueue(gateway, { queue: "mail", kind: "digest", subject: "team:4", payload: { to: "team 4" } });
  await gateway.call("POST", "/v1/queues/mail/pause", { reason: "the provider is down" });
  await enqueue(gateway, { queue: "mail", kind: "digest", subject: "team:5", delay_ms: 3_600_000 });
  return { retried, waiting, failed };
}
