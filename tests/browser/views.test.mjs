// @ts-check
/** The views of the first page in a real browser: each shows the truth, live, and what is done there is done. */
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { eventually, Gateway, Recorder, shows, Tabs } from "./harness.mjs";
import { enqueue, report, take } from "./small-team.mjs";

const tabs = new Tabs();
before(() => tabs.launch());
afterEach(() => tabs.closeAll());
after(() => tabs.quit());

describe("the views", () => {
  /** @type {Gateway} */
  let gateway;
  before(async () => {
    gateway = await Gateway.start("sqlite");
  });
  after(() => gateway?.stop());

  test("the list is live: queued, finished and succeeded are three things, and an empty success is a warning", async () => {
    const page = await tabs.open();
    await page.goto(`${gateway.url}/?queue=three`);
    await shows(page, ".notice", "No job matches.");
    /** @param {string} subject @param {string} label @param {string} tone */
    const stands = (subject, label, tone) =>
      eventually(async () => {
        const badge = page.locator(".row", { hasText: subject }).locator(".badge");
        assert.deepEqual([await badge.innerText(), await badge.getAttribute("data-tone")], [label, tone]);
      });
    const subjects = ["good", "empty", "not-ok", "broken"];
    for (const subject of subjects) {
      await enqueue(gateway, { queue: "three", kind: "work", subject, max_attempts: 1 });
      await stands(subject, "Queued", "waiting");
    }
    const taken = [];
    for (const subject of subjects) {
      taken.push(await take(gateway, "three", "w"));
      await stands(subject, "Running", "active");
    }
    await report(gateway, taken[0], { type: "completed", data: { items: 2 } });
    await report(gateway, taken[1], { type: "completed", data: { items: 0 } });
    await report(gateway, taken[2], { type: "completed", data: { ok: false } });
    await report(gateway, taken[3], { type: "failed", data: { code: "boom", message: "it broke" } });
    await stands("good", "Completed", "good");
    await stands("empty", "Completed, nothing found", "warning");
    await stands("not-ok", "Completed, not ok", "warning");
    await stands("broken", "Failed", "bad");

    await page.getByLabel("State").selectOption("Failed");
    await eventually(async () => assert.equal(await page.locator(".row").count(), 1));
    await shows(page, ".row", "it broke");
    // A job that ends leaves the list of those that run, without being asked for.
    await page.getByLabel("State").selectOption("Running");
    await shows(page, ".notice", "No job matches.");
    await enqueue(gateway, { queue: "three", kind: "work", subject: "short" });
    const last = await take(gateway, "three", "w");
    await shows(page, ".row", "short");
    await report(gateway, last, { type: "completed" });
    await shows(page, ".notice", "No job matches.");
  });

  test("a failed job is found by its id, and a deleted one goes", async () => {
    const id = await gateway.track({ subject: "lost" });
    await gateway.append(id, { type: "failed", data: { code: "boom", message: "found me" } });
    const page = await tabs.open();
    await page.goto(`${gateway.url}/`);
    await page.getByLabel("Subject or id").fill(id);
    await eventually(async () => assert.equal(await page.locator(".row").count(), 1));
    await shows(page, ".row", "found me");
    await page.reload();
    await shows(page, ".row", "found me");
    await page.getByRole("link", { name: "summarize" }).press("Enter");
    await shows(page, ".box[data-tone=bad]", "found me");
    await page.getByRole("button", { name: "Delete job" }).click();
    await page.getByRole("button", { name: "Yes, delete it" }).click();
    await shows(page, "h1", "Job deleted");
    await assert.rejects(gateway.call("GET", `/v1/jobs/${id}`), /404/);
    await page.goto(`${gateway.url}/?subject=${id}`);
    await shows(page, ".notice", "No job matches.");
  });

  test("today is the viewer's", async () => {
    const seen = await Recorder.before(gateway);
    try {
      for (const timezoneId of ["Pacific/Kiritimati", "Pacific/Pago_Pago"]) {
        const page = await tabs.open({ timezoneId });
        await page.goto(`${seen.url}/?finished=today`);
        const midnight = await page.evaluate(() => new Date(new Date().setHours(0, 0, 0, 0)).toISOString());
        await eventually(() => seen.seen.some(({ path }) => path.includes(`finished_after=${encodeURIComponent(midnight)}`)));
      }
    } finally {
      await seen.stop();
    }
  });

  test("queues show what waits and runs, and can be paused, resumed and limited", async () => {
    const page = await tabs.open();
    await page.goto(`${gateway.url}/#view=queues`);
    for (let index = 0; index < 3; index += 1) await enqueue(gateway, { queue: "ops", kind: "work", subject: `ops-${index}` });
    const card = page.locator(".queue", { has: page.getByRole("link", { name: "ops", exact: true }) });
    /** @param {string} name @param {string | RegExp} value */
    const figure = (name, value) =>
      eventually(async () => assert.match(await card.locator(`[data-figure="${name}"] dd`).innerText(), new RegExp(`^${value}$`)));
    await figure("Waiting", "3");
    await figure("Oldest waits", "\\d+ s");
    const taken = await take(gateway, "ops", "w");
    await figure("Running", "1");
    await figure("Waiting", "2");
    await report(gateway, taken, { type: "completed" });
    await figure("Running", "0");
    await eventually(async () => assert.equal(await card.locator("svg.spark").count(), 3));

    await card.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("button", { name: "Leave it open" }).click();
    assert.equal((await gateway.call("GET", "/v1/queues/ops")).paused, null);
    await card.getByRole("button", { name: "Pause" }).click();
    await page.getByLabel("Reason to pause ops").fill("<b>maintenance</b>");
    await page.getByRole("button", { name: "Yes, pause it" }).click();
    await eventually(async () => assert.equal((await gateway.call("GET", "/v1/queues/ops")).paused?.reason, "<b>maintenance</b>"));
    await eventually(async () => assert.equal(await card.locator(".badge").innerText(), "Paused"));

    await card.getByRole("link", { name: "ops", exact: true }).click();
    await shows(page, ".box", "<b>maintenance</b>");
    await page.getByLabel("Runs at a time", { exact: true }).fill("2");
    await page.getByRole("button", { name: "Set limits" }).click();
    await eventually(async () => assert.equal((await gateway.call("GET", "/v1/queues/ops")).concurrency, 2));
    await page.getByLabel("Hand-outs").fill("5");
    await page.getByRole("button", { name: "Set limits" }).click();
    await shows(page, ".limits .refusal", "A rate has");
    await page.getByLabel("per so many ms").fill("1000");
    await page.getByRole("button", { name: "Set limits" }).click();
    await eventually(async () => assert.equal((await gateway.call("GET", "/v1/queues/ops")).rate_limit?.limit, 5));
    await eventually(async () => assert.equal(await page.locator("svg.chart").count(), 4));
    await page.getByRole("button", { name: "Resume" }).click();
    await eventually(async () => assert.equal((await gateway.call("GET", "/v1/queues/ops")).paused, null));

    await page.getByRole("button", { name: "Purge" }).click();
    await shows(page, ".confirm", "Cancel 2 waiting jobs of ops?");
    await page.getByRole("button", { name: "Yes, cancel them" }).click();
    await eventually(async () => assert.equal((await gateway.call("GET", "/v1/queues/ops")).counts.queued, 0));
  });

  test("dead letters: a dry run changes nothing, a redrive says first what it will do", async () => {
    const ids = [];
    for (const code of ["a", "a", "b"]) {
      const id = await enqueue(gateway, { queue: "dead", kind: "work", subject: `dead-${ids.length}`, max_attempts: 1 });
      ids.push(id);
      await report(gateway, await take(gateway, "dead", "w"), { type: "failed", data: { code, message: `because of ${code}` } });
    }
    const failed = async () => (await gateway.call("GET", "/v1/queues/dead")).counts.failed;
    const page = await tabs.open();
    await page.goto(`${gateway.url}/#view=dead&queue=dead`);
    await eventually(async () => assert.equal(await page.locator(".dead tbody tr").count(), 3));
    await page.getByRole("button", { name: "Dry run" }).click();
    await shows(page, "main", "3 jobs would be put back.");
    assert.equal(await failed(), 3);
    await page.getByLabel("Error").selectOption("a");
    await eventually(async () => assert.equal(await page.locator(".dead tbody tr").count(), 2));
    await page.getByRole("button", { name: "Redrive" }).click();
    await shows(page, ".confirm", "Put 2 jobs back into dead?");
    assert.equal(await failed(), 3);
    await page.getByRole("button", { name: "Yes, put them back" }).click();
    await eventually(async () => assert.equal(await failed(), 1));
    await page.getByLabel("Error").selectOption("All errors");
    await page.getByRole("button", { name: "Retry work dead-2" }).click();
    await shows(page, ".notice", "No dead letters.");
    assert.equal(await failed(), 0);
    assert.equal((await gateway.call("GET", `/v1/jobs/${ids[2]}`)).state, "queued");
  });

  test("workers come and go with what they hold; what happened is kept after its notice is gone", async () => {
    const page = await tabs.open();
    await page.goto(`${gateway.url}/#view=workers`);
    const id = await enqueue(gateway, { queue: "held", kind: "work", subject: "held-1" });
    const taken = await take(gateway, "held", "holder-7");
    const row = page.locator("tr", { hasText: "holder-7" });
    await eventually(async () => assert.match(await row.innerText(), new RegExp(`${id}.*lease runs out in`, "s")));
    await report(gateway, taken, { type: "completed" });
    await shows(page, ".toast", "Completed: work held-1");
    await eventually(async () => assert.match(await row.innerText(), /idle/));
    await page.getByRole("link", { name: "Activity" }).click();
    await shows(page, ".told", "Completed: work held-1");
    await eventually(async () => assert.equal(await page.locator(".toast").count(), 0), 15_000);
    await page.reload();
    await shows(page, ".told", "Completed: work held-1");
    await page.getByRole("link", { name: "Completed: work held-1" }).click();
    await page.waitForURL(`**/jobs/${id}`);
  });

  test("no more than 200 notices are kept", async () => {
    const page = await tabs.open();
    await page.goto(`${gateway.url}/#view=activity`);
    await page.evaluate(async () => {
      const { notice } = await import(/** @type {any} */ ("/assets/app/notices.js"));
      for (let index = 0; index < 230; index += 1) notice(`notice ${index}`);
    });
    await eventually(async () => assert.equal(await page.locator(".told").count(), 200));
    assert.match(await page.locator(".told").first().innerText(), /notice 229/);
    assert.ok((await page.locator(".toast").count()) <= 3);
  });

  test("a credential in the page's address goes along from view to view, and into no request's address", async () => {
    const seen = await Recorder.before(gateway);
    try {
      const id = await gateway.track({ subject: "with-token" });
      const page = await tabs.open();
      await page.goto(`${seen.url}/#view=queues&token=a.b.c`);
      await shows(page, "#link", "Live");
      for (const name of ["Dead letters", "Workers", "Activity"]) {
        await page.getByRole("link", { name }).click();
        await page.waitForURL(/token=a\.b\.c$/);
        await shows(page, "h1", name);
      }
      await page.getByRole("link", { name: "Jobs" }).click();
      await page.locator(".row", { hasText: "with-token" }).getByRole("link").click();
      await page.waitForURL(`**/jobs/${id}#token=a.b.c`);
      await shows(page, "#link", "Live");
      const data = seen.seen.filter(({ path }) => path.startsWith("/v1/"));
      assert.ok(data.length > 5);
      for (const { path, authorization } of data) {
        assert.equal(authorization, "Bearer a.b.c", path);
        assert.doesNotMatch(path, /token/);
      }
    } finally {
      await seen.stop();
    }
  });

  test("silence is shown on a view as well", async () => {
    const seen = await Recorder.before(gateway);
    try {
      const page = await tabs.open();
      await page.clock.install();
      await page.goto(`${seen.url}/#view=queues`);
      await page.clock.runFor(1_000);
      await shows(page, "#link", "Live");
      seen.hold = true;
      await page.clock.fastForward(38_000);
      await shows(page, "#link", "No word from the gateway");
    } finally {
      await seen.stop();
    }
  });
});
