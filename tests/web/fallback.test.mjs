// @ts-check
/** One job watched through a network that holds back, cuts and answers as proxies do, and before a gateway that refuses. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { eventually, settle } from "./clock.mjs";
import { json, problem } from "./fake-gateway.mjs";
import { clock, gateway, running, truth, watching } from "./watching.mjs";

test("a stream held back by a box in the middle gives way to long-polls after 5 s, with the same cursor", async () => {
  const id = running();
  gateway.append(id, "output", { text: "früh ✓" });
  gateway.intercept = ({ headers, response }) => {
    if (headers.accept !== "text/event-stream") return false;
    // Headers, and then nothing.
    response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
    return true;
  };
  const { job, seen } = watching(id);
  await eventually(() => gateway.count("stream") === 1);
  await settle();
  clock.advance(4_999);
  await settle();
  assert.equal(gateway.count("any"), 1);
  clock.advance(1);
  await clock.until(() => gateway.lines.at(-1)?.endsWith(`/events?after=3&limit=500&wait=25`), 1);
  assert.deepEqual([job.output.text, job.transport, job.link], ["früh ✓", "long-poll", "live"]);
  gateway.append(id, "output", { text: " spät" });
  await clock.until(() => job.output.text === "früh ✓ spät", 1);
  gateway.append(id, "completed", {});
  await clock.until(() => job.link === "ended", 1);
  assert.deepEqual(seen.seqs, [4, 5]);
  assert.equal(gateway.count("stream"), 1);
  assert.equal(gateway.mostOpen, 1);
  assert.deepEqual(seen.links, ["live", "ended"]);
});

test("a poll's opening of a job that has ended ends it", async () => {
  const id = running();
  gateway.append(id, "failed", { code: "boom" });
  gateway.intercept = ({ headers, response }) => headers.accept === "text/event-stream" && problem(response, 502, "no");
  const { job, seen } = watching(id);
  await clock.until(() => job.link === "ended");
  assert.equal(seen.ends[0].error?.code, "boom");
  assert.equal(gateway.count("page"), 1);
});

test("a blocked stream, cut long-polls: plain polls at Retry-After; unblocked, the stream again; nothing doubled", async () => {
  const id = running();
  let blocked = true;
  gateway.intercept = ({ headers, response, url }) => {
    if (!blocked) return false;
    if (headers.accept === "text/event-stream") return json(response, 200, "<html>");
    if (url.includes("wait=")) {
      response.destroy();
      return true;
    }
    return false;
  };
  const { job, seen } = watching(id);
  await clock.until(() => job.transport === "poll" && job.link === "live");
  for (const percent of [10, 20, 30]) {
    gateway.append(id, "progress", { percent });
    await clock.until(() => job.job?.progress?.percent === percent);
  }
  blocked = false;
  await clock.until(() => job.transport === "stream" && job.link === "live", 500);
  const polls = gateway.count("page");
  gateway.append(id, "progress", { percent: 40 });
  await clock.until(() => job.job?.progress?.percent === 40);
  gateway.append(id, "cancelled", {});
  await clock.until(() => job.link === "ended");
  assert.deepEqual(seen.seqs, [3, 4, 5, 6, 7]);
  assert.equal(gateway.count("page"), polls, "no poll beside the stream");
  assert.equal(gateway.mostOpen, 1);
});

for (const [name, refuse] of /** @type {[string, (asked: import("./fake-gateway.mjs").Asked) => boolean][]} */ ([
  ["502", ({ response }) => problem(response, 502, "bad_gateway")],
  ["429 with Retry-After", ({ response }) => problem(response, 429, "too_many_requests", { "retry-after": "5" })],
  ["503", ({ response }) => problem(response, 503, "overloaded", { "retry-after": "1" })],
  ["200 with HTML", ({ response }) => {
    response.writeHead(200, { "content-type": "text/html" }).end("<h1>Welcome to the hotel</h1>");
    return true;
  }],
  ["200 with half of a JSON page", ({ response }) => {
    response.writeHead(200, { "content-type": "application/json" }).end('{"events":[{"seq":');
    return true;
  }],
  ["cut connections", ({ response }) => {
    response.destroy();
    return true;
  }],
])) {
  test(`an outage answered by ${name} is survived, with growing waits, from the cursor on`, async () => {
    const id = running();
    const { job, seen } = watching(id);
    await eventually(() => job.link === "live");
    gateway.intercept = refuse;
    gateway.cut();
    await clock.until(() => job.link === "reconnecting");
    gateway.append(id, "progress", { percent: 10 });
    gateway.append(id, "progress", { percent: 20 });
    const before = gateway.count("any");
    const began = clock.environment.now?.() ?? 0;
    await clock.until(() => gateway.count("any") >= before + 8, 500);
    assert.ok((clock.environment.now?.() ?? 0) - began > 60_000, "it asked too often");
    assert.equal(seen.errors.length, 0);
    gateway.intercept = () => false;
    await clock.until(() => job.job?.progress?.percent === 20, 500);
    gateway.append(id, "completed", {});
    await clock.until(() => job.link === "ended", 500);
    assert.deepEqual(seen.seqs, [3, 4, 5]);
    assert.equal(seen.snapshots, 1);
    assert.equal(gateway.mostOpen, 1);
    assert.ok(gateway.lines.filter((line) => line.includes("after=")).every((line) => /after=[2-5]/.test(line)));
  });
}

test("429 is not asked again before its Retry-After", async () => {
  const id = running();
  gateway.intercept = ({ response }) => problem(response, 429, "too_many_requests", { "retry-after": "20" });
  watching(id);
  await eventually(() => gateway.count("any") === 1);
  await settle();
  clock.advance(19_999);
  await settle();
  assert.equal(gateway.count("any"), 1);
  clock.chance = 0;
  clock.advance(1_001);
  await eventually(() => gateway.count("any") === 2);
});

for (const [status, link] of /** @type {const} */ ([[401, "denied"], [403, "denied"], [404, "gone"], [410, "gone"], [422, "refused"]])) {
  test(`${status} stops it: ${link}, one error, no more requests`, async () => {
    const id = running();
    gateway.intercept = ({ response }) => problem(response, status, "no_way");
    const { job, seen } = watching(id, { token: "t" });
    await assert.rejects(job.ended, { status, code: "no_way" });
    assert.deepEqual([seen.links, seen.errors.map((error) => error.status)], [[link], [status]]);
    await settle();
    clock.advance(3_600_000);
    await settle();
    assert.equal(gateway.count("any"), 1);
    assert.equal(gateway.asked[0].headers.authorization, "Bearer t");
    await assert.rejects(async () => {
      for await (const _ of job) assert.fail("nothing can come");
    }, { status });
  });
}

test("404 under a parked poll stops it too", async () => {
  const id = running();
  gateway.intercept = ({ headers, response }) => headers.accept === "text/event-stream" && problem(response, 502, "no");
  const { job } = watching(id);
  await clock.until(() => gateway.lines.at(-1)?.includes("wait="));
  gateway.remove(id);
  await clock.until(() => job.link === "gone");
});

test("a credential that ran out is asked for anew, once, and the watch goes on from its cursor", async () => {
  const id = running();
  let valid = "one";
  const given = ["one", "two", "three"];
  let asked = 0;
  gateway.intercept = ({ headers, response }) => headers.authorization !== `Bearer ${valid}` && problem(response, 401, "unauthorized");
  const { job, seen } = watching(id, { token: async () => given[asked++] });
  await eventually(() => job.link === "live");
  valid = "two";
  gateway.cut();
  gateway.append(id, "progress", { percent: 10 });
  await clock.until(() => job.job?.progress?.percent === 10);
  assert.equal(asked, 2);
  // The gateway says that it has run out: no refusal is needed.
  valid = "three";
  gateway.say({ type: "bye", reason: "token_expired" }, 1500);
  gateway.append(id, "progress", { percent: 20 });
  await clock.until(() => job.job?.progress?.percent === 20);
  assert.equal(asked, 3);
  assert.equal(seen.snapshots, 1);
  assert.ok(!gateway.asked.some(({ headers }, index) => index > 0 && headers.authorization === gateway.asked[index - 1].headers.authorization && index === gateway.asked.length - 1));
  // Refused for good: the new one does no more than the old.
  valid = "none";
  gateway.cut();
  await clock.until(() => job.link === "denied");
  assert.equal(asked, 4);
  assert.equal(seen.errors[0].status, 401);
});

test("an app that has no credential to give for now is asked again", async () => {
  const id = running();
  let asked = 0;
  const { job } = watching(id, {
    token: () => {
      asked += 1;
      if (asked < 3) throw new Error("the app's server is away");
      return "t";
    },
  });
  await clock.until(() => job.link === "live");
  assert.equal(clock.reported.length, 2);
});

test("the same over polls", async () => {
  const id = running();
  gateway.append(id, "progress", { percent: 90 });
  gateway.intercept = ({ headers, response }) => headers.accept === "text/event-stream" && problem(response, 502, "no");
  const { job, seen } = watching(id);
  await clock.until(() => gateway.lines.at(-1)?.includes("after=3"));
  const held = truth(id);
  held.events.length = 2;
  held.job = { ...held.job, seq: 2, progress: null };
  gateway.cut();
  await clock.until(() => job.job?.seq === 2);
  gateway.append(id, "completed", {});
  await clock.until(() => job.link === "ended");
  assert.deepEqual([seen.seqs, seen.snapshots], [[3], 2]);
});

test("more than a page is fetched page by page, without a wait", async () => {
  const id = running();
  gateway.intercept = ({ headers, response }) => headers.accept === "text/event-stream" && problem(response, 502, "no");
  const { job, seen } = watching(id);
  await clock.until(() => gateway.lines.at(-1)?.includes("wait="));
  gateway.cut();
  for (let line = 0; line < 1700; line += 1) truth(id).events.push({ seq: line + 3, type: "log", at: "2026-01-01T00:00:00.000Z", attempt: 1, data: {} });
  truth(id).job = { ...truth(id).job, seq: 1702 };
  await clock.until(() => seen.seqs.length === 1700);
  assert.deepEqual(seen.seqs, Array.from({ length: 1700 }, (_, index) => index + 3));
  assert.equal(job.job?.seq, 1702);
});
