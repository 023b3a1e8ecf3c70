// @ts-check
/** Many jobs on one connection, and one connection for many tabs. */
import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import { afterEach, beforeEach, test } from "node:test";
import { watch, watchFeed, watchSubject } from "../../web/client/milepost.js";
import { Clock, eventually, settle } from "./clock.mjs";
import { FakeGateway, problem } from "./fake-gateway.mjs";
import { FakeLocks } from "./fake-locks.mjs";

/** @typedef {import("../../web/client/types.js").FeedOptions} FeedOptions */

// Global in browsers, and in Node since 19.
globalThis.crypto ??= /** @type {any} */ (webcrypto);

/** @type {FakeGateway} */
let gateway;
/** @type {FakeLocks} */
let locks;
/** @type {{close(): void}[]} */
let open = [];

beforeEach(async () => {
  gateway = await FakeGateway.start();
  locks = new FakeLocks();
});
afterEach(async () => {
  open.splice(0).forEach((watch) => watch.close());
  await gateway.stop();
});

/** A tab of the browser whose locks these are, with a clock of its own. */
class Tab {
  clock = new Clock();

  get environment() {
    const openChannel = (/** @type {string} */ name) => {
      const channel = new BroadcastChannel(name);
      this.channels.push(/** @type {any} */ (channel));
      return /** @type {any} */ (channel);
    };
    return { ...this.clock.environment, random: Math.random, locks: locks.manager, openChannel };
  }
  /** @type {{close(): void}[]} */
  channels = [];

  /**
   * @param {import("../../web/client/types.js").FeedFilter} filter
   * @param {FeedOptions} [options]
   */
  feed(filter, options = {}) {
    /** @type {{states: [string, number][], gone: string[], links: string[], resets: number, errors: number[]}} */
    const seen = { states: [], gone: [], links: [], resets: 0, errors: [] };
    const feed = watchFeed(filter, {
      base: gateway.url,
      environment: this.environment,
      onState: (job) => seen.states.push([job.id, job.seq]),
      onGone: (id) => seen.gone.push(id),
      onReset: () => (seen.resets += 1),
      onLink: (link) => seen.links.push(link),
      onError: (error) => seen.errors.push(error.status),
      ...options,
    });
    open.push(feed);
    return { feed, seen };
  }
}

/** The feed's requests. */
const asked = () => gateway.lines.filter((line) => line.includes("/v1/events"));

test("states of all that match, at once and at each change; deletions; and the cursor over a cut", async () => {
  const [a, b] = [gateway.enqueue({ subject: "s:1" }), gateway.enqueue({ subject: "s:2" })];
  gateway.enqueue({ subject: "s:3" });
  const tab = new Tab();
  const { feed, seen } = tab.feed({ subject: ["s:2", "s:1"] });
  await eventually(() => feed.jobs.size === 2);
  assert.deepEqual(asked(), ["GET /v1/events?subject=s%3A1&subject=s%3A2&unnamed=1"]);
  gateway.append(a, "started", {});
  await eventually(() => feed.jobs.get(a)?.state === "running");
  gateway.cut();
  gateway.append(b, "expired", {});
  gateway.append(a, "progress", { percent: 5 });
  await tab.clock.until(() => feed.jobs.get(b)?.state === "expired" && feed.jobs.get(a)?.seq === 3);
  assert.match(asked()[1], /after=c4$/);
  const c = gateway.enqueue({ subject: "s:1" });
  await eventually(() => feed.jobs.has(c));
  gateway.remove(a);
  await eventually(() => seen.gone.includes(a));
  assert.ok(!feed.jobs.has(a));
  assert.deepEqual(seen.links, ["live", "reconnecting", "live"]);
  assert.deepEqual(seen.states.filter(([id]) => id === a).map(([, seq]) => seq), [1, 2, 3]);
});

test("a feed of named jobs ends with the last of them", async () => {
  const [a, b] = [gateway.enqueue(), gateway.enqueue()];
  const tab = new Tab();
  const { feed, seen } = tab.feed({ jobs: [a, b, "0199-unknown"] });
  await eventually(() => feed.jobs.size === 2);
  assert.deepEqual(seen.gone, ["0199-unknown"]);
  gateway.append(a, "cancelled", {});
  await eventually(() => feed.jobs.get(a)?.terminal);
  assert.equal(feed.link, "live");
  gateway.append(b, "expired", {});
  await eventually(() => feed.link === "ended");
  await eventually(() => gateway.open === 0);
  tab.clock.advance(3_600_000);
  await settle();
  assert.equal(asked().length, 1);
  assert.deepEqual(locks.names, []);
});

test("a feed that is held back goes on by long-poll with the same cursor", async () => {
  const a = gateway.enqueue();
  const tab = new Tab();
  gateway.intercept = ({ headers, response }) => headers.accept === "text/event-stream" && problem(response, 502, "no");
  const { feed, seen } = tab.feed({ queue: "default" });
  await tab.clock.until(() => asked().at(-1)?.includes("wait=25&after=c1"));
  gateway.append(a, "started", {});
  await tab.clock.until(() => feed.jobs.get(a)?.state === "running", 10);
  gateway.append(a, "completed", {});
  await tab.clock.until(() => feed.jobs.get(a)?.terminal, 10);
  await tab.clock.until(() => asked().at(-1)?.includes("after=c3"), 10);
  assert.deepEqual(seen.states.map(([, seq]) => seq), [1, 2, 3]);
  assert.equal(gateway.mostOpen, 1);
});

test("an unusable cursor makes everything come anew", async () => {
  const a = gateway.enqueue();
  const tab = new Tab();
  const { feed, seen } = tab.feed({ queue: "default" });
  await eventually(() => feed.jobs.size === 1);
  gateway.intercept = (asked) => {
    asked.url = asked.url.replace("after=c1", "after=old");
  };
  gateway.cut();
  await tab.clock.until(() => seen.resets === 1 && feed.jobs.has(a));
  assert.deepEqual(seen.states, [[a, 1], [a, 1]]);
});

test("a loop over a feed sees the jobs that are there, then each change", async () => {
  const a = gateway.enqueue();
  const { feed } = new Tab().feed({ queue: "default" });
  /** @type {number[]} */
  const seqs = [];
  for await (const job of feed) {
    seqs.push(job.seq);
    if (job.terminal) break;
    gateway.append(a, job.seq === 1 ? "started" : "completed", {});
  }
  assert.deepEqual(seqs, [1, 2, 3]);
  assert.equal(feed.link, "closed");
  await eventually(() => gateway.open === 0);
});

test("tabs share one connection; when the leader's closes, another goes on from its cursor, and nothing is lost", async () => {
  const jobs = Array.from({ length: 5 }, () => gateway.enqueue());
  const tabs = Array.from({ length: 4 }, () => new Tab());
  const feeds = tabs.map((tab) => tab.feed({ queue: "default" }));
  for (const { feed } of feeds) await eventually(() => feed.jobs.size === 5 && feed.link === "live");
  assert.equal(asked().length, 1);
  for (let leader = 0; leader < 3; leader += 1) {
    gateway.append(jobs[leader], "started", {});
    for (const { feed } of feeds.slice(leader)) await eventually(() => feed.jobs.get(jobs[leader])?.state === "running");
    feeds[leader].feed.close();
    // While nobody listens.
    gateway.append(jobs[leader], "progress", { percent: 1 });
    for (const { feed } of feeds.slice(leader + 1)) {
      await eventually(() => feed.jobs.get(jobs[leader])?.seq === 3);
      assert.equal(feed.link, "live");
    }
    assert.equal(asked().length, leader + 2);
    assert.match(asked()[leader + 1], /after=c\d+/);
  }
  await eventually(() => gateway.open === 1);
  for (const { seen } of feeds) {
    for (const id of jobs) {
      const seqs = seen.states.filter(([job]) => job === id).map(([, seq]) => seq);
      assert.deepEqual(seqs, Array.from(seqs, (_, index) => index + 1), "each state once, in order");
    }
  }
});

test("a newcomer is told everything by the leader", async () => {
  const a = gateway.enqueue();
  const { feed } = new Tab().feed({ queue: "default" });
  await eventually(() => feed.jobs.size === 1);
  gateway.append(a, "started", {});
  await eventually(() => feed.jobs.get(a)?.seq === 2);
  const late = new Tab().feed({ queue: "default" });
  await eventually(() => late.feed.jobs.get(a)?.seq === 2 && late.feed.link === "live");
  assert.equal(asked().length, 1);
});

test("a leader that is not heard of loses the office, and follows when it comes back", async () => {
  const a = gateway.enqueue();
  const [first, second] = [new Tab(), new Tab()];
  const leading = first.feed({ queue: "default" });
  await eventually(() => leading.feed.link === "live");
  const following = second.feed({ queue: "default" });
  await eventually(() => following.feed.link === "live");
  second.clock.advance(60_000);
  await eventually(() => asked().length === 2);
  await eventually(() => gateway.open === 1);
  gateway.append(a, "started", {});
  await eventually(() => leading.feed.jobs.get(a)?.seq === 2 && following.feed.jobs.get(a)?.seq === 2);
  assert.equal(asked().length, 2);
});

test("signs of life reach the followers", async () => {
  gateway.enqueue();
  const [first, second] = [new Tab(), new Tab()];
  const leading = first.feed({ queue: "default" });
  await eventually(() => leading.feed.link === "live");
  const following = second.feed({ queue: "default" });
  await eventually(() => following.feed.link === "live");
  for (let minute = 0; minute < 5; minute += 1) {
    second.clock.advance(36_000);
    gateway.say({ type: "ping" });
    await settle();
  }
  assert.equal(asked().length, 1);
});

/** @param {Record<string, unknown>} claims */
const jwt = (claims) => `h.${Buffer.from(JSON.stringify(claims)).toString("base64url")}.s${Math.random().toString(36).slice(2)}`;

test("only tabs of one credential share; two tokens that allow the same are one", async () => {
  gateway.enqueue();
  const queues = ["llm"];
  const tokens = [
    jwt({ queues, exp: 1, jti: "a" }), jwt({ exp: 2, queues, jti: "b" }), jwt({ queues: ["other"], exp: 1 }), "opaque-1", "opaque-2", null,
  ];
  for (const token of tokens) {
    const { feed } = new Tab().feed({ queue: "default" }, { token: token === tokens[1] ? async () => token : token });
    await eventually(() => feed.jobs.size === 1);
  }
  const sent = gateway.asked.map(({ headers }) => headers.authorization ?? null);
  assert.deepEqual(sent, [0, 2, 3, 4, 5].map((index) => (tokens[index] === null ? null : `Bearer ${tokens[index]}`)));
  assert.ok(locks.names.every((name) => !name.includes("opaque")), "a lock's name tells a credential");
});

test("a leader whose credential no longer does stops alone; the next tab tries its own", async () => {
  const a = gateway.enqueue();
  const [first, second] = [new Tab(), new Tab()];
  const leading = first.feed({ queue: "default" }, { share: "us", token: "one" });
  await eventually(() => leading.feed.link === "live");
  const following = second.feed({ queue: "default" }, { share: "us", token: "two" });
  await eventually(() => following.feed.link === "live");
  gateway.intercept = ({ headers, response }) => headers.authorization === "Bearer one" && problem(response, 401, "unauthorized");
  gateway.cut();
  await first.clock.until(() => leading.feed.link === "denied");
  assert.deepEqual(leading.seen.errors, [401]);
  gateway.append(a, "started", {});
  await eventually(() => following.feed.jobs.get(a)?.seq === 2);
  assert.deepEqual(following.seen.errors, []);
});

test("of many logs in a browser three are streams, one is a parked poll, the rest are plain polls; all arrive", async () => {
  const ids = Array.from({ length: 7 }, () => gateway.enqueue());
  const tabs = ids.map(() => new Tab());
  const watches = ids.map((id, index) => watch(`${gateway.url}/v1/jobs/${id}`, { environment: tabs[index].environment }));
  open.push(...watches);
  const turn = () => tabs.forEach(({ clock }) => clock.advance(20));
  await eventually(() => (turn(), watches.every(({ link }) => link === "live")));
  await eventually(() => (turn(), gateway.open >= 4));
  assert.equal(gateway.count("stream"), 3);
  for (let round = 0; round < 30; round += 1) {
    turn();
    await settle();
    const parked = gateway.asked.filter(({ response }) => !response.closed);
    assert.ok(parked.filter(({ headers }) => headers.accept === "text/event-stream").length <= 3);
    assert.ok(parked.filter(({ url }) => url.includes("wait=")).length <= 1);
    if (round === 10) ids.forEach((id) => gateway.append(id, "progress", { percent: 1 }));
  }
  await eventually(() => (turn(), watches.every(({ job }) => job?.seq === 2)));
  // Room that is left is taken: a stream ends, a poll becomes one.
  const stream = watches.findIndex(({ transport }) => transport === "stream");
  watches[stream].close();
  await eventually(() => (turn(), gateway.count("stream") === 4));
});

test("a subject's job: the active one, else the newest; then the next", async () => {
  const old = gateway.enqueue({ subject: "article:42" });
  gateway.append(old, "failed", { code: "boom" });
  const now = gateway.enqueue({ subject: "article:42" });
  gateway.append(now, "started", {});
  gateway.append(now, "output", { text: "früh " });
  const ended = gateway.enqueue({ subject: "article:42" });
  gateway.append(ended, "cancelled", {});
  const tab = new Tab();
  /** @type {string[]} */
  const types = [];
  const subject = watchSubject("article:42", { base: gateway.url, environment: tab.environment, onEvent: ({ type }) => types.push(type) });
  open.push(subject);
  await eventually(() => subject.output.text === "früh ");
  assert.equal(subject.job?.id, now);
  gateway.append(now, "completed", {});
  await eventually(() => subject.job?.terminal && subject.link === "live");
  const next = gateway.enqueue({ subject: "article:42" });
  await eventually(() => subject.job?.id === next);
  // A newer prompt replaces the old one.
  const newest = gateway.enqueue({ subject: "article:42" });
  await eventually(() => subject.job?.id === newest);
  gateway.append(newest, "expired", {});
  await eventually(() => subject.job?.id === next);
  gateway.append(next, "expired", {});
  await eventually(() => subject.job?.id === newest || subject.job?.terminal);
  assert.deepEqual(types.slice(0, 1), ["completed"]);
  subject.close();
  assert.equal(await subject.ended, null);
  await eventually(() => gateway.open === 0);
  assert.deepEqual(locks.names, []);
});

test("a subject whose last job the feed no longer knows is looked up", async () => {
  const old = gateway.enqueue({ subject: "s" });
  gateway.append(old, "completed", {});
  const tab = new Tab();
  // What ended more than 10 minutes ago is not in the opening.
  const held = gateway.jobs.get(old);
  gateway.intercept = ({ url }) => {
    if (held && url.startsWith("/v1/events")) held.changed = -2;
  };
  const subject = watchSubject("s", { base: gateway.url, environment: tab.environment });
  open.push(subject);
  await eventually(() => subject.job?.state === "completed");
  const loop = subject[Symbol.asyncIterator]();
  assert.equal((await loop.next()).value?.job.id, old);
  const next = gateway.enqueue({ subject: "s" });
  assert.equal((await loop.next()).value?.job.id, next);
});

test("a job that is redriven is watched again", async () => {
  const id = gateway.enqueue({ subject: "s" });
  gateway.append(id, "failed", { code: "boom" });
  const subject = watchSubject("s", { base: gateway.url, environment: new Tab().environment });
  open.push(subject);
  await eventually(() => subject.job?.state === "failed" && gateway.open === 1);
  gateway.append(id, "requeued", {});
  await eventually(() => subject.job?.state === "queued");
  gateway.append(id, "started", {});
  await eventually(() => subject.job?.state === "running");
});
