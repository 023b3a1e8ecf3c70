// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { blank } from "../../web/client/fold.js";
import { ago, amount, bytes, duration, elapsed, fields, oneLine, percent, plain, safeLink, standing } from "../../web/client/format.js";

/** @param {Partial<import("../../web/client/fold.js").Job>} changes */
const job = (changes) => ({ ...blank("id"), ...changes });

test("queued, finished and really succeeded look different", () => {
  const shown = [
    job({ state: "queued" }),
    job({ state: "running" }),
    job({ state: "running", cancel_requested: true }),
    job({ state: "completed", terminal: true, outcome: { ok: true } }),
    job({ state: "completed", terminal: true, outcome: { ok: false } }),
    job({ state: "completed", terminal: true, outcome: { ok: true, items: 0 } }),
    job({ state: "failed", terminal: true }),
  ].map((shown) => standing(shown, 0));
  assert.equal(new Set(shown.map(({ label }) => label)).size, shown.length);
  assert.deepEqual(shown.map(({ tone }) => tone), ["waiting", "active", "warning", "good", "warning", "warning", "bad"]);
});

test("a scheduled job whose time has come is a queued one", () => {
  const waiting = job({ state: "scheduled", run_at: "2026-01-01T00:00:10.000Z" });
  assert.equal(standing(waiting, Date.parse("2026-01-01T00:00:09.999Z")).label, "Scheduled");
  assert.equal(standing(waiting, Date.parse("2026-01-01T00:00:10.000Z")).label, "Queued");
});

test("a state of a newer gateway is shown by its name", () => {
  assert.deepEqual(standing(job({ state: /** @type {any} */ ("paused") }), 0), { label: "paused", tone: "ended" });
});

test("100 % of a running job is not called done", () => {
  assert.equal(amount(job({ state: "running", progress: { percent: 100 } })), "100 % · finishing");
  assert.equal(amount(job({ state: "completed", terminal: true, progress: { percent: 100 } })), "100 %");
  assert.equal(amount(job({ state: "running", progress: null })), "");
});

test("percent is never rounded up to 100", () => {
  assert.deepEqual([0, 41.5, 99.99, 100].map(percent), ["0 %", "41.5 %", "99.9 %", "100 %"]);
});

test("amount names what is counted", () => {
  const progress = { percent: 41.5, current: 1083, total: 2610, unit: "pages" };
  assert.equal(amount(job({ state: "running", progress })), "41.5 % · 1,083 of 2,610 pages");
  assert.equal(amount(job({ state: "running", progress: { current: 0 } })), "0");
});

test("durations are never negative", () => {
  assert.deepEqual(
    [-5000, 0, 59_999, 60_000, 3_600_000, 200_000_000, 9e10].map(duration),
    ["0 s", "0 s", "59 s", "1 min 0 s", "1 h 0 min", "2 d 7 h", "1041 d 16 h"],
  );
  assert.deepEqual([-1, 5000, 61_000, 7_300_000].map(ago), ["just now", "5 s ago", "1 min ago", "2 h ago"]);
});

test("elapsed is counted by the gateway's clock from the run's start", () => {
  const start = "2026-01-01T00:00:00.000Z";
  const now = Date.parse("2026-01-01T00:01:00.000Z");
  const running = job({ state: "running", created_at: start, started_at: "2026-01-01T00:00:30.000Z" });
  assert.deepEqual(elapsed(running, now), { label: "Running for", ms: 30_000 });
  const done = { ...running, state: /** @type {const} */ ("completed"), terminal: true, finished_at: "2026-01-01T00:00:45.000Z" };
  assert.deepEqual(elapsed(done, now), { label: "Took", ms: 15_000 });
  assert.deepEqual(elapsed(job({ state: "queued", created_at: start, run_at: start }), now), { label: "Waiting for", ms: 60_000 });
  const later = job({ state: "scheduled", created_at: start, run_at: "2026-01-01T00:02:00.000Z" });
  assert.deepEqual(elapsed(later, now), { label: "Due in", ms: 60_000 });
  assert.equal(elapsed(job({ state: "expired", terminal: true, created_at: start }), now), null);
});

test("only web addresses become links", () => {
  assert.equal(safeLink("https://example.org/a"), "https://example.org/a");
  assert.equal(safeLink("HTTP://example.org"), "http://example.org/");
  for (const url of [
    "javascript:alert(1)", " java\nscript:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "//x", "/x", "", null,
    7, { href: "https://x" }, "blob:https://example.org/1",
  ]) assert.equal(safeLink(url), null, String(url));
});

test("terminal colours are taken out, text is left alone", () => {
  assert.equal(plain("\u001b[1;31mred\u001b[0m [31m \u001b]0;title\u0007plain <b>"), "red [31m plain <b>");
});

test("one line never ends in half a character", () => {
  assert.equal(oneLine("😀😀", 3), "😀…");
  assert.equal(oneLine({ a: 1 }), '{"a":1}');
  assert.equal(oneLine(undefined), "");
  assert.equal(fields({ percent: 5, worker: null, meta: {}, list: [1] }), "percent 5 · list [1]");
});

test("bytes are shown in their unit", () => {
  assert.deepEqual([0, 1023, 1024, 5 * 1024 * 1024].map(bytes), ["0 B", "1023 B", "1.0 KiB", "5.0 MiB"]);
});
