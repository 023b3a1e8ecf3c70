// A BullMQ queue with a tracked worker: `bullmq.mjs work`, `bullmq.mjs add NAME JSON` (prints the id), and
// `bullmq.mjs wait ID` (prints how the job ended).

import { DelayedError, Job, Queue, QueueEvents, Worker } from "bullmq";
import { setTimeout as sleep } from "node:timers/promises";
import { settle, track } from "../../examples/bullmq.mjs";

const [command, what, data] = process.argv.slice(2);
const { hostname: host, port } = new URL(process.env.REDIS_URL);
const connection = { host, port: Number(port) };
const queueName = process.env.QUEUE;

const processors = {
  async steps(job) {
    await job.updateProgress(1000); // Refused, without harm to what comes with it.
    for (let step = 1; step <= job.data.steps; step++) {
      await job.updateProgress({ current: step, total: job.data.steps, unit: "steps" });
      await job.log(`step ${step}`);
    }
    return { steps: job.data.steps };
  },
  async flaky(job) {
    if (job.attemptsMade === 0) throw new Error("not yet");
    return "at last";
  },
  async again(job, signal) {
    if (job.attemptsStarted === 1) await processors.endless(job, signal);
  },
  async delayed(job, signal, token) {
    if (job.attemptsStarted > 1) return;
    await job.moveToDelayed(Date.now() + 300, token);
    throw new DelayedError();
  },
  async broken() {
    throw new Error("never");
  },
  async endless(job, signal) {
    await job.updateProgress({ message: "begun" });
    await sleep(120_000, undefined, { signal });
  },
};

if (command === "work") {
  const work = (job, token, signal) => processors[job.name](job, signal, token);
  const locks = process.env.SHORT_LOCKS ? { lockDuration: 2_000, stalledInterval: 1_000 } : {};
  const worker = track(new Worker(queueName, work, { connection, ...locks }));
  worker.on("error", () => {});
  process.on("SIGTERM", async () => {
    await worker.close();
    await settle();
    process.exit();
  });
} else {
  const queue = new Queue(queueName, { connection });
  if (command === "add") {
    const attempts = what === "broken" ? 1 : 3;
    const job = await queue.add(what, JSON.parse(data), { attempts, backoff: { type: "fixed", delay: 300 } });
    console.log(job.id);
  } else {
    const events = new QueueEvents(queueName, { connection });
    const job = await Job.fromId(queue, what);
    await job.waitUntilFinished(events).catch(() => {});
    console.log(await job.getState());
    await events.close();
  }
  await queue.close();
}
