// One peer through one part of the bench: `main.mjs PEER '{"part":…}'`. Says on stdout, a JSON object a line, when what is
// measured begins and ends, so that the bench can read the processes' CPU time at both moments.

import { setTimeout as sleep } from "node:timers/promises";

const [peer, json] = process.argv.slice(2);
const options = JSON.parse(json);
const { open } = await import(`./${peer}.mjs`);
const queue = await open(options);
const say = (what, rest = {}) => console.log(JSON.stringify({ what, ...rest }));
const seconds = (since) => (performance.now() - since) / 1000;

/** Jobs one by one, so many calls in flight, for so long at most; how many. */
async function addSingly(jobs, inFlight, limit) {
  const until = performance.now() + limit;
  let added = 0;
  const caller = async () => {
    while (added < jobs && performance.now() < until) {
      added += 1;
      await queue.add();
    }
  };
  await Promise.all(Array.from({ length: inFlight }, caller));
  return added;
}

async function addInBatches(jobs) {
  for (let left = jobs; left > 0; left -= 1_000) await queue.addMany(Math.min(left, 1_000));
  return jobs;
}

const parts = {
  async enqueue({ jobs, in_flight: inFlight, batches, limit_ms: limit }) {
    await addSingly(500, inFlight, limit);
    say("begin");
    const since = performance.now();
    const added = batches ? await addInBatches(jobs) : await addSingly(jobs, inFlight, limit);
    say("end", { jobs: added, seconds: seconds(since) });
  },

  async drain({ jobs, warm, limit_ms: limit }) {
    await addInBatches(warm + jobs);
    await queue.filled?.();
    let since;
    const done = await new Promise((resolve) => {
      let done = 0;
      const end = () => resolve(done - warm);
      queue.work(() => {
        done += 1;
        if (done === warm) {
          say("begin");
          since = performance.now();
          setTimeout(end, limit);
        } else if (done === warm + jobs) end();
      });
    });
    if (done === jobs) await queue.settled?.();
    say("end", { jobs: done, seconds: seconds(since) });
  },

  async latency({ samples }) {
    let arrived = () => {};
    queue.work(() => arrived(performance.now()));
    await sleep(1_000);
    const times = [];
    while (times.length < samples + 10) {
      const arrival = new Promise((resolve) => (arrived = resolve));
      const since = performance.now();
      await queue.add();
      times.push((await arrival) - since);
      await sleep(10);
    }
    say("end", { times_ms: times.slice(10) });
  },
};

await parts[options.part](options);
// Whatever is still at work is of no interest.
process.exit();
