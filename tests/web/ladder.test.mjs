// @ts-check
/** Which transport is next, and when: the rules, without a network. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Ladder } from "../../web/client/ladder.js";

const GOOD = { heard: true, livedMs: 60_000 };
const MISS = { heard: false };

/** A ladder on which chance always draws the longest wait. */
const ladder = (chance = 1) => new Ladder(() => chance);

test("two streams in a row without a frame lead to long-polls, one with a frame in between does not", () => {
  const tired = ladder();
  assert.equal(tired.after("stream", MISS, 0).transport, "stream");
  assert.equal(tired.after("stream", GOOD, 0).transport, "stream");
  assert.equal(tired.after("stream", MISS, 0).transport, "stream");
  assert.equal(tired.after("stream", MISS, 0).transport, "long-poll");
});

test("a stream that is held back is given up at once, without a wait", () => {
  assert.deepEqual(ladder().after("stream", { heard: false, held: true }, 0), { transport: "long-poll", delayMs: 0 });
});

test("long-polls that are cut twice in a row lead to plain polls, at Retry-After", () => {
  const cut = ladder(0);
  cut.after("stream", { heard: false, held: true }, 0);
  assert.equal(cut.after("long-poll", MISS, 1).transport, "long-poll");
  assert.equal(cut.after("long-poll", MISS, 2).transport, "poll");
  // Both failed: as soon as anything is answered, streams are innocent again.
  assert.equal(cut.after("poll", { heard: true, retryMs: 7_000 }, 3).transport, "stream");
  // They are not: down to long-polls, which may have been cut by the same outage.
  assert.equal(cut.after("stream", { heard: false, held: true }, 4).transport, "long-poll");
  cut.after("long-poll", MISS, 5);
  assert.equal(cut.after("long-poll", { heard: true, retryMs: null, livedMs: 5_000 }, 6).transport, "stream");
});

test("plain polls come when they were asked for", () => {
  const polling = ladder(0);
  assert.equal(polling.after("poll", { heard: true, retryMs: 7_000 }, 0).delayMs, 7_000);
  assert.equal(polling.after("poll", { heard: true }, 0).delayMs, 2_000);
  assert.equal(polling.after("poll", { heard: true, more: true }, 0).delayMs, 0);
});

test("streams are tried again now and then, at growing distances, and less often the longer they fail", () => {
  const climbing = ladder(0);
  /** @type {number[]} */
  const probes = [];
  climbing.after("stream", { heard: false, held: true }, 0);
  for (let now = 0; now < 3_600_000; now += 1_000) {
    if (climbing.after("long-poll", { heard: true, livedMs: 1_000 }, now).transport !== "stream") continue;
    probes.push(now);
    assert.equal(climbing.after("stream", { heard: false, held: true }, now).transport, "long-poll");
  }
  assert.deepEqual(probes.slice(0, 5), [30_000, 90_000, 210_000, 450_000, 930_000]);
  assert.ok(probes.slice(6).every((at, index) => at - probes[5 + index] === 600_000));
  // One that works is kept.
  while (climbing.transport !== "stream") climbing.after("long-poll", { heard: true, livedMs: 1_000 }, 1e9);
  assert.equal(climbing.after("stream", GOOD, 1e9).transport, "stream");
  assert.equal(climbing.after("stream", MISS, 1e9).transport, "stream");
});

test("waits are drawn from the whole of a span that doubles up to half a minute", () => {
  const most = ladder(1);
  assert.deepEqual([1, 2, 3, 4, 5, 6, 7, 8].map(() => most.after("stream", MISS, 0).delayMs), [1, 2, 4, 8, 16, 30, 30, 30].map((s) => s * 1000));
  const least = ladder(0);
  assert.deepEqual([1, 2, 3].map(() => least.after("stream", MISS, 0).delayMs), [0, 0, 0]);
});

test("a stream that lived long starts with short waits again, one that died young only with less long ones", () => {
  const stable = ladder();
  for (let tries = 0; tries < 9; tries += 1) stable.after("stream", MISS, 0);
  assert.equal(stable.after("stream", { heard: true, livedMs: 500 }, 0).delayMs, 4_000);
  assert.equal(stable.after("stream", GOOD, 0).delayMs, 1_000);
});

test("what the gateway wishes is kept: after a bye exactly, after a refusal at least", () => {
  assert.equal(ladder().after("stream", { heard: true, planned: true, retryMs: 2_345 }, 0).delayMs, 2_345);
  assert.equal(ladder(0.5).after("stream", { heard: false, retryMs: 20_000 }, 0).delayMs, 20_500);
  assert.equal(ladder(0.5).after("stream", { heard: true, livedMs: 60_000, retryMs: 3_000 }, 0).delayMs, 1_500);
});

test("a box that does not know how to hold a poll is not asked in a loop", () => {
  assert.ok(ladder(0).after("long-poll", { heard: true, livedMs: 3, empty: true }, 0).delayMs >= 2_000);
  assert.equal(ladder(0).after("long-poll", { heard: true, livedMs: 25_000, empty: true }, 0).delayMs, 0);
  // What comes in a flood is fetched by handfuls.
  assert.equal(ladder(0).after("long-poll", { heard: true, livedMs: 50 }, 0).delayMs, 200);
});

test("for want of room a poll stands in for a stream, and the stream stays what is wanted", () => {
  const crowded = ladder(0);
  for (let now = 0; now < 5; now += 1) {
    assert.equal(crowded.after("poll", { heard: true }, now).transport, "stream");
    assert.equal(crowded.after("long-poll", MISS, now).transport, "stream");
  }
});
