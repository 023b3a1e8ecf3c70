// graphile-worker. `default`: as it comes. `fastest`: jobs fetched ahead and completed in batches.

import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

const quiet = new Logger(() => () => {});

export async function open({ url, setting, concurrency, progress }) {
  const pool = new pg.Pool({ connectionString: url, max: Math.max(10, Math.min(concurrency, 50)) + 2 });
  pool.on("error", console.error).on("connect", (client) => client.on("error", console.error));
  const fastest = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
  const preset = {
    worker: {
      connectionString: url, concurrentJobs: concurrency, maxPoolSize: Math.max(10, concurrency), logger: quiet,
      ...(setting === "fastest" && fastest),
    },
  };
  const utils = await makeWorkerUtils({ preset, pgPool: pool });
  await utils.migrate();
  await pool.query("create table progress (job text, percent int, at timestamptz default now())");
  const noop = async (_payload, { job, query }) => {
    for (let n = 1; n <= progress; n++) await query("insert into progress values ($1, $2)", [job.id, n * 25]);
  };
  return {
    add: () => utils.addJob("noop", {}),
    addMany: (jobs) => utils.addJobs(Array.from({ length: jobs }, () => ({ identifier: "noop", payload: {} }))),
    filled: () => pool.query("analyze"),
    async work(onDone) {
      const runner = await run({ preset, pgPool: pool, taskList: { noop }, noHandleSignals: true });
      runner.events.on("job:complete", onDone);
    },
    async settled() {
      const left = "select count(*)::int as left from graphile_worker.jobs";
      while ((await pool.query(left)).rows[0].left > 0);
    },
  };
}
