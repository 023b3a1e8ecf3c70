// pg-boss. Its `work` asks again after half a second at the earliest, however much waits, so that its rate is a setting;
// `fetch` and `complete` called in a loop are its fastest: `singly`, `hundreds` (100 jobs a call). `work`: as it comes,
// with the shortest interval and 100 jobs a call.

import PgBoss from "pg-boss";

export async function open({ url, setting, concurrency, progress }) {
  const boss = new PgBoss({ connectionString: url, max: Math.max(10, concurrency) });
  boss.on("error", console.error);
  await boss.start();
  await boss.createQueue("noop");
  const query = (text, values) => boss.getDb().executeSql(text, values);
  await query("create table progress (job text, percent int, at timestamptz default now())");
  const report = async ({ id }) => {
    for (let n = 1; n <= progress; n++) await query("insert into progress values ($1, $2)", [id, n * 25]);
  };
  const batchSize = setting === "singly" ? 1 : 100;
  return {
    filled: () => query("analyze"),
    add: () => boss.send("noop", {}),
    addMany: (jobs) => boss.insert(Array.from({ length: jobs }, () => ({ name: "noop", data: {} }))),
    async work(onDone) {
      for (let n = 0; n < concurrency; n++) {
        const handle = async (jobs) => {
          await Promise.all(jobs.map(report));
          if (setting === "work") jobs.forEach(onDone);
        };
        if (setting === "work") await boss.work("noop", { batchSize, pollingIntervalSeconds: 0.5 }, handle);
        else loop(handle, onDone);
      }
    },
  };

  async function loop(handle, onDone) {
    for (;;) {
      const jobs = await boss.fetch("noop", { batchSize });
      if (jobs.length === 0) return;
      await handle(jobs);
      await boss.complete("noop", jobs.map((job) => job.id));
      jobs.forEach(onDone);
    }
  }
}
