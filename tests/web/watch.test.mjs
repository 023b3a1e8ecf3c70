// @ts-check
/** One job watched over a real network: what is told, in which order, until when; the clock is the test's. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { watch } from "../../web/client/milepost.js";
import { eventually, settle } from "./clock.mjs";
import { problem } from "./fake-gateway.mjs";
import { clock, gateway, running, truth, watching } from "./watching.mjs";

test("state first, then every event, then the end, on one connection; and nothing after it", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => seen.links.includes("live"));
  assert.deepEqual(job.job, truth(id).job);
  gateway.append(id, "progress", { percent: 10 });
  gateway.append(id, "output", { text: "früh " });
  gateway.append(id, "output", { text: "spät" });
  gateway.append(id, "completed", { items: 1 });
  assert.equal((await job.ended)?.state, "completed");
  assert.deepEqual(seen.seqs, [3, 4, 5, 6]);
  assert.deepEqual([job.output.text, seen.snapshots, seen.ends.length], ["früh spät", 1, 1]);
  assert.deepEqual(seen.links, ["live", "ended"]);
  await settle();
  clock.advance(3_600_000);
  await settle();
  assert.deepEqual(gateway.lines, [`GET /v1/jobs/${id}/events?unnamed=1`]);
  assert.equal(clock.pending, 0);
  assert.equal(clock.listeners.size, 0);
});

test("cut after each byte of a stream: no event is lost, none is doubled", async () => {
  const whole = running();
  /** @param {string} id */
  const work = (id) => {
    gateway.append(id, "output", { text: "Grüße, 🌍\n" });
    gateway.append(id, "progress", { percent: 50, message: "halb" });
    gateway.append(id, "output", { text: "zwei" });
    gateway.append(id, "completed", {});
  };
  // The opening with output, then events, in one go: how long is it?
  gateway.append(whole, "output", { text: "schon da ✓ " });
  let length = 0;
  gateway.write = (bytes, response) => void ((length += bytes.length), response.write(bytes));
  const first = watching(whole);
  await eventually(() => first.seen.links.includes("live"));
  work(whole);
  await first.job.ended;
  assert.ok(length > 800);
  for (let cut = 0; cut <= length; cut += 1) {
    const id = running();
    gateway.append(id, "output", { text: "schon da ✓ " });
    let left = cut;
    const dead = new WeakSet();
    gateway.write = (bytes, response) => {
      if (dead.has(response)) return;
      if (left < 0 || bytes.length < left) {
        response.write(bytes);
        if (left >= 0) left -= bytes.length;
        return;
      }
      dead.add(response);
      response.write(bytes.subarray(0, left), () => response.destroy());
      left = -1;
    };
    const { job, seen } = watching(id);
    await clock.until(() => job.job !== null, 1000);
    work(id);
    await clock.until(() => job.link === "ended", 1000);
    const { job: state, output, events } = truth(id);
    assert.deepEqual(job.job, state, `cut after ${cut}`);
    assert.equal(job.output.text, output, `cut after ${cut}`);
    // Each once, in order, and none missing after the first whole document.
    const shown = seen.seqs;
    assert.deepEqual(shown, events.map(({ seq }) => seq).slice(events.length - shown.length), `cut after ${cut}`);
    assert.ok(shown.length >= 4 || seen.snapshots > 1, `cut after ${cut}`);
    gateway.asked.length = 0;
  }
});

test("a job deleted while it is watched is gone, without an error", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  gateway.remove(id);
  assert.equal(await job.ended, null);
  assert.deepEqual([job.link, seen.errors.length, seen.ends.length], ["gone", 0, 0]);
});

test("204 to a cursor at the end of a job ends it", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  // The terminal event arrives, the `end` after it does not.
  gateway.write = (bytes, response) => {
    response.write(bytes.subarray(0, bytes.indexOf("\n\n") + 2), () => response.destroy());
  };
  gateway.append(id, "completed", {});
  await clock.until(() => job.link === "ended");
  assert.deepEqual([seen.seqs, seen.ends.length, gateway.count("any")], [[3], 1, 2]);
});

test("five restarts of the gateway: one connection before, in between and after", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  const { port } = new URL(gateway.url);
  for (let restart = 1; restart <= 5; restart += 1) {
    await gateway.stop();
    await clock.until(() => job.link === "reconnecting");
    await gateway.listen(Number(port));
    gateway.append(id, "progress", { percent: restart });
    await clock.until(() => job.job?.progress?.percent === restart && job.transport === "stream", 200);
    await eventually(() => gateway.open === 1);
  }
  assert.deepEqual([seen.seqs, seen.snapshots, gateway.mostOpen], [[3, 4, 5, 6, 7], 1, 1]);
});

test("an app's function is not called after close()", async () => {
  let called = 0;
  const { job } = watching(running(), { token: () => (called += 1, null) });
  job.close();
  await settle();
  assert.equal(called, 0);
});

test("silence is noticed, shown as such, and ended", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  await settle();
  clock.advance(37_400);
  await settle();
  assert.equal(job.link, "live");
  gateway.say({ type: "ping", seq: 2 });
  await settle();
  clock.advance(37_400);
  await settle();
  assert.equal(job.link, "live");
  clock.advance(200);
  await eventually(() => job.link === "stale");
  gateway.append(id, "progress", { percent: 10 });
  await clock.until(() => job.link === "live");
  assert.deepEqual(seen.links, ["live", "stale", "live"]);
  assert.deepEqual(seen.seqs, [3]);
});

test("a machine that slept hears what waited before it takes the connection for dead", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  await settle();
  // The timer is an hour late: the bytes that came in the meantime are read after it.
  clock.sleepFor(3_600_000);
  gateway.append(id, "progress", { percent: 10 });
  await eventually(() => job.job?.progress?.percent === 10);
  assert.deepEqual([seen.links, gateway.count("stream")], [["live"], 1]);
});

test("a rotation is nothing to speak of; a shutdown is", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  gateway.say({ type: "bye", reason: "rotate" }, 1234);
  await settle();
  clock.advance(1_233);
  await settle();
  assert.equal(gateway.count("stream"), 1);
  clock.advance(1);
  await eventually(() => gateway.count("stream") === 2);
  await settle();
  assert.deepEqual(seen.links, ["live"]);
  gateway.say({ type: "bye", reason: "shutdown" }, 6000);
  await clock.until(() => gateway.count("stream") === 3);
  await settle();
  assert.deepEqual(seen.links, ["live", "reconnecting", "live"]);
});

test("a reset makes everything come anew, even with lower numbers", async () => {
  const id = running();
  gateway.append(id, "progress", { percent: 90 });
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  // The store was restored from a backup.
  const held = truth(id);
  held.events.length = 2;
  held.job = { ...held.job, seq: 2, progress: null };
  gateway.cut();
  await clock.until(() => job.job?.seq === 2);
  assert.equal(job.job?.progress, null);
  assert.equal(seen.snapshots, 2);
  gateway.append(id, "completed", {});
  await clock.until(() => job.link === "ended");
  assert.deepEqual(seen.seqs, [3]);
});

test("a hole in the log is never guessed over: everything comes anew", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  gateway.say({ seq: 9, type: "log", at: "2026-01-01T00:00:00.000Z", attempt: 1, data: {} });
  await clock.until(() => seen.snapshots === 2);
  assert.deepEqual(job.job, truth(id).job);
  assert.ok(gateway.lines.at(-1)?.endsWith("unnamed=1"));
});

test("somebody who looks again is not made to wait; but not every glance is a request", async () => {
  const id = running();
  gateway.intercept = ({ response }) => problem(response, 502, "no");
  const { job } = watching(id);
  await clock.until(() => gateway.count("any") >= 6, 500);
  await settle();
  const asked = gateway.count("any");
  clock.advance(1_000);
  for (let glance = 0; glance < 10; glance += 1) {
    for (const listener of clock.listeners) listener.wake(false);
    await settle();
  }
  assert.equal(gateway.count("any"), asked + 1);
  clock.advance(1_000);
  await eventually(() => gateway.count("any") === asked + 2);
  gateway.intercept = () => false;
  clock.advance(1_000);
  clock.listeners.forEach((listener) => listener.wake(false));
  await clock.until(() => job.link === "live", 500);
  // A connection that is alive is left alone.
  const streams = gateway.count("stream");
  for (let glance = 0; glance < 10; glance += 1) {
    for (const listener of clock.listeners) listener.wake(false);
    await settle();
  }
  assert.equal(gateway.count("stream"), streams);
  // One over which a ping was due is not.
  clock.advance(20_000);
  for (const listener of clock.listeners) listener.wake(false);
  await clock.until(() => gateway.count("stream") === streams + 1);
  assert.equal(gateway.mostOpen, 1);
});

test("a page in the back-forward cache holds no connection, and comes back with its cursor", async () => {
  const id = running();
  const { job, seen } = watching(id);
  await eventually(() => job.link === "live");
  for (const listener of clock.listeners) listener.sleep();
  await eventually(() => gateway.open === 0);
  clock.advance(600_000);
  await settle();
  assert.equal(gateway.count("any"), 1);
  gateway.append(id, "progress", { percent: 10 });
  for (const listener of clock.listeners) listener.wake(true);
  await clock.until(() => seen.seqs.length === 1);
  assert.deepEqual([seen.links, gateway.lines.at(-1)?.endsWith("after=2")], [["live"], true]);
});

for (const when of /** @type {const} */ (["at once", "while it connects", "while it is live", "in a callback", "while it waits", "while a poll is parked"])) {
  test(`close() ${when}: no request and no callback afterwards`, async () => {
    const id = running();
    /** @type {ReturnType<typeof watching>} */
    let watched;
    let calls = 0;
    if (when === "while it connects") gateway.intercept = () => true;
    if (when === "while it waits" || when === "while a poll is parked") {
      gateway.intercept = ({ headers, response }) =>
        (when === "while it waits" || headers.accept === "text/event-stream") && problem(response, 502, "no");
    }
    const close = () => {
      watched.job.close();
      calls = watched.seen.calls;
    };
    watched = watching(id, when === "in a callback" ? { onSnapshot: close } : {});
    if (when === "at once") close();
    if (when === "while it connects") await eventually(() => gateway.open === 1).then(close);
    if (when === "while it is live") await eventually(() => watched.job.link === "live").then(close);
    if (when === "in a callback") await eventually(() => watched.job.link === "closed");
    if (when === "while it waits") await eventually(() => gateway.count("any") === 1 && clock.pending === 1).then(close);
    if (when === "while a poll is parked") await clock.until(() => gateway.lines.at(-1)?.includes("wait=") && gateway.open === 1).then(close);
    assert.equal(await watched.job.ended, null);
    await eventually(() => gateway.open === 0);
    const asked = gateway.count("any");
    gateway.append(id, "progress", { percent: 1 });
    for (const listener of clock.listeners) listener.wake(true);
    clock.advance(3_600_000);
    await settle();
    assert.deepEqual([gateway.count("any"), watched.seen.calls, clock.pending, clock.listeners.size], [asked, calls, 0, 0]);
    watched.job.close();
  });
}

test("a signal closes it, one that was given already keeps it from opening", async () => {
  const id = running();
  const stop = new AbortController();
  const { job } = watching(id, { signal: stop.signal });
  await eventually(() => job.link === "live");
  stop.abort();
  await eventually(() => gateway.open === 0);
  assert.equal(job.link, "closed");
  assert.equal(await job.ended, null);
  const { job: never } = watching(id, { signal: stop.signal });
  assert.equal(never.link, "closed");
  await settle();
  assert.equal(gateway.count("any"), 1);
});

test("what a callback throws is its own trouble", async () => {
  const id = running();
  const { seen } = watching(id, { onState: () => { throw new Error("mine"); } });
  await eventually(() => seen.links.includes("live"));
  gateway.append(id, "completed", {});
  await eventually(() => seen.links.includes("ended"));
  assert.deepEqual(seen.seqs, [3]);
  assert.equal(clock.reported.length, 2);
});

test("a loop over a watch sees where things stand, then each event, and ends with the job", async () => {
  const id = running();
  /** @type {[string, number][]} */
  const updates = [];
  const { job } = watching(id);
  const loop = (async () => {
    for await (const { job: state, event } of job) updates.push([event?.type ?? "state", state.seq]);
  })();
  await eventually(() => job.link === "live");
  gateway.append(id, "progress", { percent: 10 });
  gateway.append(id, "completed", {});
  await loop;
  assert.deepEqual(updates, [["state", 2], ["progress", 3], ["completed", 4]]);
});

test("leaving a loop closes the watch", async () => {
  const id = running();
  const { job } = watching(id);
  for await (const _ of job) break;
  assert.equal(job.link, "closed");
  await eventually(() => gateway.open === 0);
});

test("a slow loop lets the gateway keep what it has no time for, and loses nothing", async () => {
  const id = running();
  const { job } = watching(id);
  const loop = job[Symbol.asyncIterator]();
  await eventually(() => job.link === "live");
  for (let line = 0; line < 5_000; line += 1) gateway.append(id, "log", { message: String(line) });
  gateway.append(id, "completed", {});
  await settle();
  assert.ok((job.job?.seq ?? 0) < 1_100, `${job.job?.seq} events were read for a loop that took none`);
  /** @type {number[]} */
  const seqs = [];
  for (;;) {
    const { done, value } = await loop.next();
    if (done) break;
    if (value.event) seqs.push(value.event.seq);
  }
  assert.deepEqual(seqs, Array.from({ length: 5_001 }, (_, index) => index + 3));
});

test("whichever of a job's addresses an app has, it is the same job; a page's carries its token", async () => {
  const id = running();
  for (const address of [`/v1/jobs/${id}`, `/v1/jobs/${id}/`, `/v1/jobs/${id}/events`, `/jobs/${id}#token=abc`, `/v1/jobs/${id}?token=abc`]) {
    gateway.asked.length = 0;
    const job = watch(new URL(address, gateway.url), { environment: clock.environment });
    await eventually(() => job.link === "live");
    job.close();
    assert.deepEqual(gateway.lines, [`GET /v1/jobs/${id}/events?unnamed=1`]);
    assert.equal(gateway.asked[0].headers.authorization, address.includes("abc") ? "Bearer abc" : undefined);
  }
  assert.throws(() => watch(`${gateway.url}/v1/queues/x`), TypeError);
});
