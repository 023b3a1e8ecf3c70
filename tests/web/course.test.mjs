// @ts-check
/** A job's course from its log, and how long it will still take. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { remaining } from "../../web/app/eta.js";
import { Runs } from "../../web/app/runs.js";

const at = (/** @type {number} */ ms) => new Date(ms).toISOString();

/** @param {...[number, string, Record<string, any>?]} log */
function life(...log) {
  const runs = new Runs();
  log.forEach(([ms, type, data], index) => runs.add({ seq: index + 1, type, at: at(ms), attempt: 1, data }));
  return runs;
}

test("a log becomes runs and waits without a gap between them", () => {
  const { runs, waits } = life(
    [0, "queued", {}], [100, "started", { worker: "a", run: 1 }], [300, "retrying", { error: { code: "x", message: "y" } }],
    [800, "started", { worker: "b", run: 2 }], [900, "released", { reason: "shutdown", delay_ms: 0 }],
    [950, "started", { worker: "c", run: 3 }], [990, "completed", { items: 0 }],
  );
  assert.deepEqual(waits, [
    { from: 0, to: 100, reason: "queued" }, { from: 300, to: 800, reason: "back-off" }, { from: 900, to: 950, reason: "released" },
  ]);
  assert.deepEqual(runs.map(({ worker, from, to, end, why, tone }) => [worker, from, to, end, why, tone]), [
    ["a", 100, 300, "failed", "x: y", "bad"], ["b", 800, 900, "released", "shutdown", "waiting"], ["c", 950, 990, "completed", "", "warning"],
  ]);
});

test("a job that was put back waits again; one that never ran has no run", () => {
  const { runs, waits } = life([0, "queued", { run_at: at(50) }], [60, "expired", { reason: "ttl" }], [100, "requeued", { by: "me" }]);
  assert.deepEqual(runs, []);
  assert.deepEqual(waits, [{ from: 0, to: 60, reason: "scheduled" }, { from: 100, to: null, reason: "put back" }]);
});

test("what ended a run stays its end, whatever comes later", () => {
  const { runs } = life([0, "started", {}], [10, "failed", { code: "x" }], [20, "requeued"], [30, "started", {}], [40, "cancelled", { reason: "r" }]);
  assert.deepEqual(runs.map(({ end, why }) => [end, why]), [["failed", "x"], ["cancelled", "r"]]);
});

test("the course of a run never falls, and stays small however much is reported", () => {
  const many = life([0, "started", {}], ...Array.from({ length: 5_000 }, (_, index) => /** @type {[number, string, any]} */ ([index, "progress", { current: index % 2 ? index : 0, total: 5_000 }])));
  const points = many.runs[0].progress;
  assert.ok(points.length <= 801, `${points.length} points`);
  assert.deepEqual(points, [...points].sort(([, a], [, b]) => a - b));
});

test("how long it will take is told from the pace of late, and only if there is one", () => {
  /** @type {[number, number][]} */
  const even = [[0, 0], [1_000, 10], [2_000, 20], [3_000, 30]];
  assert.equal(remaining(even, 3_000), 7_000);
  assert.equal(remaining(even, 4_000), 6_000);
  // The first minutes were slow; they count no more.
  assert.equal(remaining([[0, 0], [600_000, 10], [601_000, 20], [602_000, 30], [603_000, 40]], 603_000), 6_000);
  assert.equal(remaining(even.slice(0, 2), 3_000), null);
  assert.equal(remaining([[0, 5], [3_000, 5], [6_000, 5]], 6_000), null);
  assert.equal(remaining([...even, [4_000, 100]], 4_000), null);
  assert.equal(remaining(even, 60_000), null);
  assert.equal(remaining([], 0), null);
});
