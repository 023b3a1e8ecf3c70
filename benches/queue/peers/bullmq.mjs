// BullMQ. What becomes durable and when is a setting of the Redis it is given.

import { Queue, Worker } from "bullmq";

export async function open({ url, concurrency, progress }) {
  const { hostname: host, port } = new URL(url);
  const connection = { host, port: Number(port), maxRetriesPerRequest: null };
  const queue = new Queue("noop", { connection });
  await queue.waitUntilReady();
  const noop = async (job) => {
    for (let n = 1; n <= progress; n++) await job.updateProgress(n * 25);
  };
  return {
    add: () => queue.add("noop", {}),
    addMany: (jobs) => queue.addBulk(Array.from({ length: jobs }, () => ({ name: "noop", data: {} }))),
    work: (onDone) => new Worker("noop", noop, { connection, concurrency }).on("completed", onDone),
  };
}
