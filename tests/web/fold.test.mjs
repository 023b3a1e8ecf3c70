// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { blank, fold, follow, isTerminal, keepTail, NOTHING } from "../../web/client/fold.js";

const ID = "01990000-0000-7000-8000-000000000001";
const BASE = Date.parse("2026-01-01T00:00:00.000Z");

/**
 * A log from `[type, data]` pairs, one second apart, with attempts counted as the gateway does.
 * @param {...[string, Record<string, any>?]} steps
 */
function log(...steps) {
  let attempt = 0;
  return steps.map(([type, data = {}], index) => {
    if (type === "started") attempt += 1;
    if (type === "released") attempt -= 1;
    if (type === "requeued") attempt = 0;
    return { seq: index + 1, type, at: at(index), attempt, data };
  });
}

/** @param {number} seconds */
function at(seconds) {
  return new Date(BASE + seconds * 1000).toISOString();
}

/** @param {ReturnType<typeof log>} events */
function folded(events) {
  return events.reduce(fold, blank(ID));
}

/** @type {[string, Record<string, any>]} */
const QUEUED = ["queued", {
  queue: "llm", kind: "summarize", subject: "article:42", priority: 5, max_attempts: 3, tracked: false,
  run_at: at(0), meta: { a: 1 },
}];

test("queued fills the document from the spec", () => {
  assert.deepEqual(folded(log(QUEUED)), {
    id: ID, queue: "llm", kind: "summarize", subject: "article:42", state: "queued", terminal: false, seq: 1,
    attempt: 0, max_attempts: 3, priority: 5, tracked: false, progress: null, output: { bytes: 0 }, outcome: null,
    error: null, cancel_requested: false, worker: null, created_at: at(0), run_at: at(0), started_at: null,
    finished_at: null, updated_at: at(0), meta: { a: 1 },
  });
});

test("a job that is due later is scheduled", () => {
  const job = folded(log(["queued", { ...QUEUED[1], run_at: at(60) }]));
  assert.equal(job.state, "scheduled");
  assert.equal(job.run_at, at(60));
});

test("a run starts anew", () => {
  const job = folded(log(
    QUEUED, ["started", { worker: "w-1", run: 1 }], ["progress", { percent: 90 }], ["output", { text: "abc" }],
    ["retrying", { error: { code: "boom" }, attempt: 1, run_at: at(9) }], ["started", { worker: "w-2", run: 2 }],
  ));
  assert.equal(job.state, "running");
  assert.equal(job.worker, "w-2");
  assert.equal(job.attempt, 2);
  assert.equal(job.started_at, at(5));
  assert.equal(job.progress, null);
  assert.deepEqual(job.output, { bytes: 0 });
  assert.equal(job.error, null);
});

test("retrying keeps progress and output until the next run", () => {
  const job = folded(log(
    QUEUED, ["started", { worker: "w-1" }], ["progress", { percent: 90 }], ["output", { text: "abc" }],
    ["retrying", { error: { code: "boom" }, attempt: 1, run_at: at(9) }],
  ));
  assert.equal(job.state, "retrying");
  assert.deepEqual(job.error, { code: "boom" });
  assert.equal(job.run_at, at(9));
  assert.equal(job.worker, null);
  assert.equal(job.progress?.percent, 90);
  assert.equal(job.output.bytes, 3);
});

test("shown percent never falls within a run, its message does change", () => {
  const job = folded(log(
    QUEUED, ["started"], ["progress", { percent: 90, message: "almost" }], ["progress", { percent: 40, message: "again" }],
  ));
  assert.equal(job.progress?.percent, 90);
  assert.equal(job.progress?.message, "again");
});

test("percent comes from the pair, unrounded, and wins over it", () => {
  const pair = folded(log(QUEUED, ["started"], ["progress", { current: 1, total: 3, unit: "pages" }]));
  assert.equal(pair.progress?.percent, 100 / 3);
  const both = folded(log(QUEUED, ["started"], ["progress", { percent: 10, current: 1, total: 2 }]));
  assert.equal(both.progress?.percent, 10);
  const alone = folded(log(QUEUED, ["started"], ["progress", { current: 7 }]));
  assert.equal(alone.progress?.percent ?? null, null);
  assert.equal(alone.progress?.current, 7);
  const huge = folded(log(QUEUED, ["started"], ["progress", { current: 1e307, total: 1.5e308 }]));
  assert.equal(huge.progress?.percent, 100 * (1e307 / 1.5e308));
});

test("a progress field left out keeps its value", () => {
  const job = folded(log(
    QUEUED, ["started"], ["progress", { current: 1, total: 4, unit: "pages", phase: "reading" }], ["progress", { current: 2 }],
  ));
  assert.deepEqual(job.progress, { percent: 25, current: 2, total: 4, unit: "pages", phase: "reading", message: null });
});

test("output counts UTF-8 bytes, not characters", () => {
  const job = folded(log(QUEUED, ["started"], ["output", { text: "aß€" }], ["output", { text: "😀" }]));
  assert.equal(job.output.bytes, 1 + 2 + 3 + 4);
});

test("released goes back to the queue, or waits for its delay", () => {
  const now = folded(log(QUEUED, ["started", { worker: "w" }], ["released", { reason: "shutdown" }]));
  assert.deepEqual([now.state, now.worker, now.run_at, now.attempt], ["queued", null, at(2), 0]);
  const later = folded(log(QUEUED, ["started", { worker: "w" }], ["released", { delay_ms: 1500 }]));
  assert.deepEqual([later.state, later.run_at], ["scheduled", at(3.5)]);
});

test("each end sets its own facts", () => {
  /** @type {(typeof QUEUED)[]} */
  const running = [QUEUED, ["started", { worker: "w" }]];
  const completed = folded(log(...running, ["completed", { items: 1 }]));
  assert.deepEqual([completed.state, completed.terminal, completed.outcome?.ok, completed.worker], ["completed", true, true, "w"]);
  const useless = folded(log(...running, ["completed", { ok: false }]));
  assert.deepEqual([useless.state, useless.outcome?.ok], ["completed", false]);
  const failed = folded(log(...running, ["failed", { code: "boom", message: "m" }]));
  assert.deepEqual([failed.state, failed.terminal, failed.error?.code, failed.finished_at], ["failed", true, "boom", at(2)]);
  const cancelled = folded(log(...running, ["cancel_requested", {}], ["cancelled", { reason: "r" }]));
  assert.deepEqual([cancelled.state, cancelled.cancel_requested, cancelled.error], ["cancelled", true, null]);
  const lost = folded(log(...running, ["cancelled", { error: { code: "lease_expired" } }]));
  assert.equal(lost.error?.code, "lease_expired");
  const expired = folded(log(QUEUED, ["expired", { reason: "ttl" }]));
  assert.deepEqual([expired.state, expired.terminal, expired.finished_at], ["expired", true, at(1)]);
});

test("a redrive clears what the last life left", () => {
  const job = folded(log(
    QUEUED, ["started", { worker: "w" }], ["progress", { percent: 5 }], ["output", { text: "x" }], ["cancel_requested", {}],
    ["failed", { code: "boom" }], ["requeued", { by: "ops" }],
  ));
  const { state, terminal, attempt, progress, output, outcome, error, cancel_requested, worker, run_at, started_at, finished_at } = job;
  assert.deepEqual(
    { state, terminal, attempt, progress, output, outcome, error, cancel_requested, worker, run_at, started_at, finished_at },
    {
      state: "queued", terminal: false, attempt: 0, progress: null, output: { bytes: 0 }, outcome: null, error: null,
      cancel_requested: false, worker: null, run_at: at(6), started_at: null, finished_at: null,
    },
  );
});

test("log lines and unknown types change nothing but the seq", () => {
  const before = folded(log(QUEUED, ["started"]));
  const after = folded(log(QUEUED, ["started"], ["log", { message: "x" }], ["user.type", { state: "completed" }]));
  assert.deepEqual({ ...after, seq: 2, updated_at: before.updated_at }, before);
  assert.equal(after.seq, 4);
  assert.equal(after.updated_at, at(3));
});

test("an event that is known already changes nothing, a hole is an error", () => {
  const events = log(QUEUED, ["started"], ["output", { text: "a" }], ["output", { text: "b" }]);
  const job = folded(events);
  assert.equal(fold(job, events[2]), job);
  assert.throws(() => fold(folded(events.slice(0, 2)), events[3]), RangeError);
});

test("the document that is folded is left as it was", () => {
  const events = log(QUEUED, ["started"], ["progress", { percent: 1 }], ["progress", { percent: 2 }], ["output", { text: "x" }]);
  const frozen = (/** @type {any} */ value) => {
    if (value && typeof value === "object") Object.values(Object.freeze(value)).forEach(frozen);
    return value;
  };
  events.reduce((job, event) => frozen(fold(job, event)), frozen(blank(ID)));
});

test("the state after an opening covers the output frame that follows it", () => {
  const job = folded(log(QUEUED, ["started"], ["output", { text: "früh " }]));
  let view = follow(NOTHING, { type: "state", ...job });
  assert.deepEqual(view.job, job);
  view = follow(view, { type: "output", data: { offset: 0, text: "früh " } });
  assert.deepEqual(view, { job, output: { offset: 0, text: "früh " } });
  view = follow(view, { seq: 4, type: "output", at: at(3), attempt: 1, data: { offset: 6, text: "spät" } });
  assert.equal(view.output.text, "früh spät");
  assert.equal(view.job?.output.bytes, 11);
});

test("merged output covers every seq it stands for", () => {
  const events = log(QUEUED, ["started"], ["output", { text: "a" }], ["output", { text: "b" }], ["output", { text: "c" }]);
  const merged = { ...events[4], from_seq: 3, data: { offset: 0, text: "abc" } };
  const before = { job: folded(events.slice(0, 2)), output: { offset: 0, text: "" } };
  const after = follow(before, merged);
  assert.deepEqual(after.job, folded(events));
  assert.equal(after.output.text, "abc");
  assert.throws(() => follow(before, { ...merged, from_seq: 4 }), RangeError);
});

test("output is cleared by a new run and kept after the end", () => {
  const events = log(QUEUED, ["started"], ["output", { text: "one" }], ["released", {}], ["started", {}], ["output", { text: "two" }], ["completed", {}]);
  const views = events.map((_, index) =>
    events.slice(0, index + 1).reduce(follow, { job: blank(ID), output: { offset: 0, text: "" } }).output.text);
  assert.deepEqual(views, ["", "", "one", "one", "", "two", "two"]);
});

test("reset forgets, control frames change nothing", () => {
  const view = { job: folded(log(QUEUED)), output: { offset: 0, text: "" } };
  for (const type of ["ping", "bye", "end"]) assert.equal(follow(view, { type, seq: 9 }), view);
  assert.equal(follow(view, { type: "reset", reason: "ahead" }).job, null);
  assert.throws(() => follow(NOTHING, { seq: 1, type: "log", at: at(0), attempt: 0 }), RangeError);
});

test("kept output is bounded and knows its offset", () => {
  const text = "ä".repeat(10) + "\nzeile\n" + "x".repeat(8);
  const kept = keepTail({ offset: 5, text }, 12);
  assert.equal(kept.text, "x".repeat(8));
  assert.equal(kept.offset, 5 + 20 + 7);
  const emoji = keepTail({ offset: 0, text: "😀".repeat(9) }, 7);
  assert.equal(emoji.text, "😀".repeat(3));
  assert.equal(emoji.offset, 24);
  const short = { offset: 0, text: "short" };
  assert.equal(keepTail(short, 4), short);
});

test("terminal states are exactly four", () => {
  const states = ["scheduled", "queued", "running", "retrying", "completed", "failed", "cancelled", "expired"];
  assert.deepEqual(states.filter(isTerminal), ["completed", "failed", "cancelled", "expired"]);
});
