// @ts-check
/** The page of one job in a real browser: its attempts and leases, why it waits, its payload, what it says, what can be done. */
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { eventually, Gateway, Recorder, shows, Tabs } from "./harness.mjs";
import { enqueue, report, take } from "./small-team.mjs";

const tabs = new Tabs();
before(() => tabs.launch());
afterEach(() => tabs.closeAll());
after(() => tabs.quit());

describe("a job's page", () => {
  /** @type {Gateway} */
  let gateway;
  before(async () => {
    gateway = await Gateway.start("sqlite");
  });
  after(() => gateway?.stop());

  test("attempts are told with worker, lease and end, live and after a reload", async () => {
    const id = await enqueue(gateway, {
      queue: "tries", kind: "work", max_attempts: 3, backoff: { initial_ms: 100, factor: 1, max_ms: 100, jitter: 0 },
    });
    const page = await tabs.open();
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, ".badge", "Queued");
    const row = (/** @type {number} */ index) => page.locator(".runs tbody tr").nth(index);
    const first = await take(gateway, "tries", "first-worker");
    await shows(page, ".badge", "Running");
    await report(gateway, first, { type: "failed", data: { code: "boom", message: "it broke" } });
    const second = await take(gateway, "tries", "second-worker");
    await report(gateway, second, { type: "progress", data: { percent: 10 } }, { type: "released", data: { delay_ms: 0, reason: "shutting down" } });
    const third = await take(gateway, "tries", "third-worker");
    for (const percent of [10, 40, 80]) await report(gateway, third, { type: "progress", data: { percent } });
    const told = async () => {
      await eventually(async () => {
        assert.match(await row(0).innerText(), /^1\s+1\s+first-worker\s.*failed: boom: it broke$/s);
        assert.match(await row(1).innerText(), /^2\s+\d\s+second-worker\s.*released: shutting down$/s);
        assert.match(await row(2).innerText(), /^3\s+\d\s+third-worker\s.*running$/s);
      });
      // A lane of waits, and one for each run.
      await eventually(async () => assert.equal(await page.locator("svg.chart rect.span[data-tone=active]").count(), 1));
      await eventually(async () => assert.equal(await page.locator("svg.chart rect.span[data-tone=bad]").count(), 1));
      await eventually(async () => assert.equal(await page.locator("svg.chart path.line").count(), 1));
    };
    await told();
    await page.reload();
    await told();
    await report(gateway, third, { type: "completed" });
    await eventually(async () => assert.match(await row(2).innerText(), /completed$/));
  });

  test("the attempts of a long log are read from its beginning", async () => {
    const id = await enqueue(gateway, { queue: "long", kind: "work", backoff: { initial_ms: 1, factor: 1, max_ms: 1, jitter: 0 } });
    await report(gateway, await take(gateway, "long", "early-worker"), { type: "failed", data: { code: "early" } });
    const taken = await take(gateway, "long", "late-worker");
    for (let batch = 0; batch < 3; batch += 1) {
      await report(gateway, taken, ...Array.from({ length: 500 }, (_, line) => ({ type: "log", data: { message: `line ${line}` } })));
    }
    const page = await tabs.open();
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, ".runs", "early-worker");
    await shows(page, ".runs", "late-worker");
    await report(gateway, taken, { type: "completed" });
    await shows(page, ".runs", "completed");
  });

  test("why it waits is told and followed", async () => {
    await gateway.call("POST", "/v1/queues/waits/pause", { reason: "for the test" });
    const id = await enqueue(gateway, { queue: "waits", kind: "work" });
    const page = await tabs.open();
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, ".waiting", /its queue is paused.*\(for the test\)/);
    await gateway.call("POST", "/v1/queues/waits/resume");
    await shows(page, ".waiting", "no worker is free for it");
    await gateway.call("PATCH", "/v1/queues/waits", { concurrency: 1 });
    const other = await enqueue(gateway, { queue: "waits", kind: "work", priority: 5 });
    const taken = await take(gateway, "waits", "w");
    assert.equal(taken.job.id, other);
    await shows(page, ".waiting", "1 of the queue's 1 slots are taken");
    assert.equal(await page.locator(".waiting a").getAttribute("href"), `/jobs/${other}`);
    await report(gateway, taken, { type: "completed" });
    await take(gateway, "waits", "w");
    await shows(page, ".badge", "Running");
    assert.equal(await page.locator(".waiting").isVisible(), false);
  });

  test("the payload is asked for only when it is unfolded", async () => {
    const seen = await Recorder.before(gateway);
    try {
      const id = await enqueue(gateway, { queue: "loads", kind: "work", payload: { secret: "<b>42</b>" } });
      const page = await tabs.open();
      await page.goto(`${seen.url}/jobs/${id}`);
      await shows(page, "#link", "Live");
      assert.equal(seen.seen.some(({ path }) => path.includes("include=payload")), false);
      await page.getByText("Payload", { exact: true }).press("Enter");
      await shows(page, ".payload pre", `"secret": "<b>42</b>"`);
    } finally {
      await seen.stop();
    }
  });

  test("output stands still while it is paused, and is whole when followed again; it can be copied", async () => {
    const id = await gateway.track();
    await gateway.append(id, { type: "output", data: { text: "one " } });
    const page = await tabs.open({ permissions: ["clipboard-read", "clipboard-write"] });
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, "pre.output", "one");
    await page.getByRole("button", { name: "Pause output" }).click();
    await gateway.append(id, { type: "output", data: { text: "two " } });
    await shows(page, ".size", "8 B");
    assert.equal(await page.locator("pre.output").textContent(), "one ");
    await page.getByRole("button", { name: "Pause output" }).click();
    assert.equal(await page.locator("pre.output").textContent(), "one two ");
    await page.getByRole("button", { name: "Copy output" }).click();
    await shows(page, "main", "Copied");
    assert.equal((await page.evaluate(() => navigator.clipboard.readText())).trim(), "one two");
  });

  test("how long it will take is guessed from its pace, and not when it stands still", async () => {
    const id = await gateway.track();
    const page = await tabs.open();
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, "#link", "Live");
    const begun = Date.now();
    // Ten per cent a second: the reports themselves are the clock.
    await eventually(async () => {
      await gateway.append(id, { type: "progress", data: { percent: Math.min(60, (Date.now() - begun) / 100) } });
      return /^about \d+ s left$/.test(await page.locator(".eta").innerText());
    });
    await eventually(async () => assert.equal(await page.locator(".eta").innerText(), ""), 30_000);
  });

  test("a job that ended badly is retried from its page, which goes on with it", async () => {
    const id = await enqueue(gateway, { queue: "again", kind: "work", max_attempts: 1 });
    await report(gateway, await take(gateway, "again", "w"), { type: "failed", data: { code: "boom", message: "it broke" } });
    const page = await tabs.open();
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, "#link", "Ended");
    await page.getByRole("button", { name: "Retry job" }).click();
    await page.getByRole("button", { name: "Leave it" }).click();
    assert.equal((await gateway.call("GET", `/v1/jobs/${id}`)).state, "failed");
    await page.getByRole("button", { name: "Retry job" }).press("Enter");
    await page.getByRole("button", { name: "Yes, retry it" }).press("Enter");
    await shows(page, ".badge", "Queued");
    await report(gateway, await take(gateway, "again", "w"), { type: "completed" });
    await shows(page, ".badge", "Completed");
    assert.equal(await page.getByRole("button", { name: "Retry job" }).count(), 0);
  });
});
