// @ts-check
/** The first page in a real browser: what a person sees, and what the page asks for behind their back. */
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { eventually, Gateway, Recorder, shows, Tabs } from "./harness.mjs";

const tabs = new Tabs();
before(() => tabs.launch());
afterEach(() => tabs.closeAll());
after(() => tabs.quit());

describe("whatever the store", () => {
  /** @type {Gateway} */
  let gateway;
  /** @type {Recorder} */
  let recorder;
  before(async () => {
    gateway = await Gateway.start("sqlite");
    recorder = await Recorder.before(gateway);
  });
  afterEach(() => {
    recorder.refuse = null;
    recorder.hold = false;
  });
  after(async () => {
    await recorder?.stop();
    await gateway?.stop();
  });

  test("a proxy's 502 does not end it: the page comes back with its cursor", async () => {
    const id = await gateway.track();
    await gateway.append(id, { type: "output", data: { text: "one " } });
    const page = await tabs.open();
    await page.goto(`${recorder.url}/jobs/${id}`);
    await shows(page, "#link", "Live");
    recorder.refuse = 502;
    recorder.cut();
    await shows(page, "#link", "Reconnecting");
    const seq = await gateway.append(id, { type: "output", data: { text: "two" } });
    await eventually(() => recorder.seen.filter(({ status }) => status === 502).length >= 3, 15_000);
    recorder.refuse = null;
    await eventually(async () => assert.equal(await page.locator("pre.output").textContent(), "one two"), 20_000);
    await shows(page, "#link", "Live");
    // From where it was, whatever got through first.
    const asked = recorder.seen.filter(({ path, status }) => path.includes("/events?") && status === 200 && path.includes("after="));
    assert.match(asked.find(({ path }) => !path.includes("limit=200"))?.path ?? "", new RegExp(`after=${seq - 1}\\b`));
  });

  test("a stream that reached its maximum age is opened again without a word", async () => {
    const rotating = await Gateway.start("sqlite", ["--stream-max-age-ms", "1500"]);
    const seen = await Recorder.before(rotating);
    try {
      const id = await rotating.track();
      const page = await tabs.open();
      await page.goto(`${seen.url}/jobs/${id}`);
      await shows(page, "#link", "Live");
      await page.evaluate(() => {
        const link = /** @type {HTMLElement} */ (document.getElementById("link"));
        const told = /** @type {string[]} */ (/** @type {any} */ (window).told = []);
        new MutationObserver(() => told.push(link.textContent ?? "")).observe(link, { childList: true, subtree: true });
      });
      await eventually(() => seen.streams.length >= 3, 20_000);
      await rotating.append(id, { type: "progress", data: { percent: 9 } });
      await shows(page, ".head .far", "9 %");
      assert.deepEqual(await page.evaluate("window.told"), []);
      assert.ok(seen.streams.slice(1).every(({ path }) => path.endsWith("after=2")));
    } finally {
      await seen.stop();
      await rotating.stop();
    }
  });

  test("behind a proxy that holds streams back the page goes on by long-poll, one request at a time", async () => {
    const id = await gateway.track();
    await gateway.append(id, { type: "output", data: { text: "früh ✓ " } }, { type: "progress", data: { percent: 5 } });
    recorder.holdStreams = true;
    try {
      const page = await tabs.open();
      await page.goto(`${recorder.url}/jobs/${id}`);
      await shows(page, ".head .far", "5 %");
      await shows(page, "#link", "Live");
      await eventually(() => recorder.open.some((path) => path.includes("after=4&limit=500&wait=25")));
      await gateway.append(id, { type: "output", data: { text: "spät" } });
      await eventually(async () => assert.equal(await page.locator("pre.output").textContent(), "früh ✓ spät"), 2_000);
      await eventually(() => recorder.open.filter((path) => path.includes("/events?")).length === 1);
      await gateway.append(id, { type: "completed" });
      await shows(page, ".badge", /^Completed$/);
      await shows(page, "#link", "Ended");
      assert.equal(recorder.streams.filter(({ path }) => path.includes(id)).length, 1);
    } finally {
      recorder.holdStreams = false;
    }
  });

  test("the watch token in the page's address is sent with every request for data, in no address of theirs", async () => {
    const id = await gateway.track();
    await gateway.append(id, { type: "output", data: { text: "x" } });
    const page = await tabs.open();
    const before = recorder.seen.length;
    await page.goto(`${recorder.url}/jobs/${id}#token=a.b.c`);
    await shows(page, "#link", "Live");
    await shows(page, ".type", "output");
    const data = recorder.seen.slice(before).filter(({ path }) => path.startsWith("/v1/"));
    assert.ok(data.length >= 2);
    for (const { path, authorization } of data) {
      assert.equal(authorization, "Bearer a.b.c", path);
      assert.doesNotMatch(path, /token/);
    }
    // A link can send no header.
    assert.equal(await page.getByRole("link", { name: "Whole output" }).getAttribute("href"), `/v1/jobs/${id}/output?token=a.b.c`);
  });

  test("an unknown job is said to be unknown, once", async () => {
    const page = await tabs.open();
    await page.goto(`${recorder.url}/jobs/01990000-0000-7000-8000-000000000000`);
    await shows(page, "h1", "No such job");
    const asked = recorder.seen.length;
    await sleep(3_500);
    assert.deepEqual(recorder.seen.slice(asked), []);
  });

  test("a job deleted under an open page ends it", async () => {
    const id = await gateway.track();
    const page = await tabs.open();
    await page.goto(`${recorder.url}/jobs/${id}`);
    await shows(page, "#link", "Live");
    await gateway.append(id, { type: "failed", data: { code: "boom", message: "it broke" } });
    await shows(page, ".box[data-tone=bad]", "boom it broke");
    await shows(page, ".box[data-tone=bad]", id);
    await gateway.call("DELETE", `/v1/jobs/${id}`);
    await page.reload();
    await shows(page, "h1", "No such job");
  });

  test("silence is shown as such, and a dead connection is opened again", async () => {
    const id = await gateway.track();
    const page = await tabs.open();
    await page.clock.install();
    await page.goto(`${recorder.url}/jobs/${id}`);
    await page.clock.runFor(1000);
    await shows(page, "#link", "Live");
    recorder.hold = true;
    await gateway.append(id, { type: "progress", data: { percent: 7 } });
    const opened = recorder.streams.length;
    await page.clock.fastForward(38_000);
    await shows(page, "#link", "No word from the gateway");
    await page.clock.runFor(2_000);
    await eventually(() => recorder.streams.length > opened);
    recorder.hold = false;
    recorder.cut();
    await eventually(async () => {
      await page.clock.runFor(1_000);
      assert.match(await page.locator(".head .far").innerText(), /7 %/);
    }, 20_000);
    await shows(page, "#link", "Live");
  });

  test("hostile text in every field stays text", async () => {
    const evil = `<img src=x onerror=pwn()><script>pwn()</script>"'><svg onload=pwn()>\u202e\u0007\u001b[31m`;
    const id = await gateway.track({ subject: evil.replace(/[\u0000-\u001f]/g, ""), meta: { [evil.replace(/\u0000/g, "")]: evil } });
    // The policy would stop what gets through: without it the page must be safe by itself.
    const page = await tabs.open({ bypassCSP: true });
    await page.addInitScript("window.pwn = () => { window.pwned = true; }");
    page.on("dialog", () => assert.fail("a dialog opened"));
    const clean = async () => {
      assert.equal(await page.evaluate("window.pwned"), undefined);
      assert.equal(await page.locator("main img, main svg:not([data-chart]), main script, main iframe").count(), 0);
      assert.equal(await page.locator("a[href^=javascript], a[href^=data]").count(), 0);
    };
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, "#link", "Live");
    await gateway.append(
      id,
      { type: "progress", data: { percent: 5, unit: evil, phase: evil, message: evil } },
      { type: "progress", data: { current: 1, total: 20, unit: evil } },
      { type: "output", data: { text: evil } },
      { type: "log", data: { level: "info", message: evil, fields: { [evil]: evil } } },
      { type: "user.event", data: { [evil]: [evil] } },
    );
    await shows(page, "pre.output", "<img src=x onerror=pwn()>");
    await shows(page, ".said", "<script>pwn()</script>");
    await clean();
    await gateway.append(id, {
      type: "completed",
      data: {
        ok: false, status: evil, note: evil, metrics: { [evil]: 1 },
        artifacts: [{ type: "url", label: evil, url: "https://example.org/<img/src=x/onerror=pwn()>" }],
      },
    });
    await shows(page, ".box", "<svg onload=pwn()>");
    await clean();
    await page.reload();
    await shows(page, ".said", "<script>pwn()</script>");
    await clean();

    const failed = await gateway.track({ subject: "evil-failure" });
    await gateway.append(failed, { type: "failed", data: { code: "boom", message: evil, details: { [evil]: evil } } });
    await page.goto(`${gateway.url}/jobs/${failed}`);
    await shows(page, ".box", "<img src=x onerror=pwn()>");
    await clean();
    await page.goto(`${gateway.url}/`);
    await shows(page, ".row", "<img src=x onerror=pwn()>");
    await clean();
    await page.goto(`${gateway.url}/jobs/${encodeURIComponent("<img src=x onerror=pwn()>")}`);
    await shows(page, "h1", "No such job");
    await clean();
  });

  test("an artifact that is no web address is shown, not linked", async () => {
    const id = await gateway.track();
    await gateway.append(id, { type: "completed", data: { artifacts: [{ type: "url", label: "good", url: "https://example.org/" }] } });
    const job = await gateway.call("GET", `/v1/jobs/${id}`);
    const urls = ["javascript:pwn()", "JaVaScRiPt:pwn()", "\u0001javascript:pwn()", "data:text/html,x", "good"];
    job.outcome.artifacts.push(...urls.map((url, index) => ({ type: "url", label: `bad ${index}`, url })));
    const page = await tabs.open();
    // The gateway refuses such an address; the page does not rely on that.
    await page.route("**/events?unnamed=1", (route) =>
      route.fulfill({
        contentType: "text/event-stream",
        body: `data: ${JSON.stringify({ type: "state", ...job })}\n\ndata: {"type":"end","state":"completed"}\n\n`,
      }));
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, ".artifacts", "bad 4");
    const links = await page.locator(".artifacts a").evaluateAll((all) => all.map((link) => link.getAttribute("href")));
    assert.deepEqual(links, ["https://example.org/"]);
  });

  test("the page runs under a policy without inline script or style", async () => {
    const page = await tabs.open();
    /** @type {string[]} */
    const complaints = [];
    page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
    const id = await gateway.track();
    for (const path of ["/", `/jobs/${id}`]) {
      const response = await page.goto(gateway.url + path);
      const policy = response?.headers()["content-security-policy"] ?? "";
      assert.match(policy, /default-src 'self'/);
      assert.doesNotMatch(policy, /unsafe/);
      await page.waitForSelector(".bar");
    }
    assert.deepEqual(complaints, []);
  });

  test("cancel asks first, and then shows that it was asked for", async () => {
    const id = await gateway.track();
    const page = await tabs.open();
    await page.goto(`${gateway.url}/jobs/${id}`);
    await page.getByRole("button", { name: "Cancel job" }).click();
    await page.getByRole("button", { name: "Let it run" }).click();
    assert.equal((await gateway.call("GET", `/v1/jobs/${id}`)).cancel_requested, false);
    await page.getByRole("button", { name: "Cancel job" }).press("Enter");
    await page.getByRole("button", { name: "Yes, cancel it" }).press("Enter");
    await shows(page, ".badge", "Cancelling");
    assert.equal(await page.getByRole("button", { name: "Cancel job" }).count(), 0);
    await gateway.append(id, { type: "cancelled", data: { reason: "asked to" } });
    await shows(page, ".badge", "Cancelled");
  });

  test("it works under a base path", async () => {
    const mounted = await Gateway.start("sqlite", ["--base-path", "/progress"]);
    try {
      assert.match(mounted.url, /\/progress$/);
      const id = await mounted.track({ subject: "mounted" });
      await mounted.append(id, { type: "progress", data: { percent: 33 } });
      const page = await tabs.open();
      await page.goto(`${mounted.url}/`);
      await shows(page, ".row", "mounted");
      await page.getByRole("link", { name: "summarize" }).click();
      await page.waitForURL(`**/progress/jobs/${id}`);
      await shows(page, ".head .far", "33 %");
      await shows(page, "#link", "Live");
      await page.getByRole("link", { name: "Milepost" }).click();
      await page.waitForURL("**/progress/");
      const state = await page.evaluate(async (id) => {
        const { watch } = await import(/** @type {any} */ ("/progress/client.js"));
        for await (const { job } of watch(`/progress/v1/jobs/${id}`)) return job.progress.percent;
      }, id);
      assert.equal(state, 33);
    } finally {
      await mounted.stop();
    }
  });

  test("times are the gateway's, however wrong the clock of the page", async () => {
    const id = await gateway.track({ subject: "clock" });
    for (const off of [-600_000, 600_000]) {
      const page = await tabs.open();
      await page.clock.install({ time: Date.now() + off });
      await page.goto(`${gateway.url}/jobs/${id}`);
      await page.clock.runFor(1000);
      await shows(page, ".head .time", /^Running for \d\d? s$/);
      await page.goto(`${gateway.url}/?subject=clock`);
      await page.clock.runFor(1000);
      await shows(page, ".row .when", /^(just now|\d\d? s ago)$/);
    }
  });

  test("the list pages, filters, keeps its filter over a reload, and rests in a hidden tab", async () => {
    const jobs = Array.from({ length: 60 }, (_, index) => ({ kind: "import", subject: `many-${index}`, tracked: true }));
    await gateway.call("POST", "/v1/jobs/batch", { jobs });
    const page = await tabs.open();
    await page.goto(`${recorder.url}/?kind=import`);
    await eventually(async () => assert.equal(await page.locator(".row").count(), 50));
    await page.getByRole("button", { name: "Show more" }).click();
    await eventually(async () => assert.equal(await page.locator(".row").count(), 60));
    assert.match(await page.locator(".row").first().innerText(), /many-59/);
    assert.equal(await page.getByRole("button", { name: "Show more" }).count(), 0);

    await page.getByLabel("Subject").fill("many-7");
    await eventually(async () => assert.equal(await page.locator(".row").count(), 1));
    await page.getByLabel("State").selectOption("Failed");
    await shows(page, ".notice", "No job matches.");
    await page.reload();
    assert.equal(await page.getByLabel("Subject").inputValue(), "many-7");
    await page.getByLabel("State").selectOption("Running");
    await shows(page, ".row", "many-7");

    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { value: true, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await sleep(200);
    const asked = recorder.seen.length;
    await sleep(4_000);
    assert.deepEqual(recorder.seen.slice(asked), []);
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { value: false, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await eventually(() => recorder.seen.length > asked);
  });

  test("there is one live region, and it does not repeat every step", async () => {
    const id = await gateway.track();
    const page = await tabs.open();
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, "#link", "Live");
    await page.evaluate(() => {
      const region = /** @type {HTMLElement} */ (document.getElementById("announcer"));
      const said = /** @type {string[]} */ (/** @type {any} */ (window).said = []);
      new MutationObserver(() => said.push(region.textContent ?? "")).observe(region, { childList: true, subtree: true });
    });
    for (let percent = 1; percent <= 60; percent += 1) await gateway.append(id, { type: "progress", data: { percent } });
    await shows(page, ".head .far", "60 %");
    await sleep(500);
    await gateway.append(id, { type: "completed" });
    await shows(page, ".badge", /^Completed$/);
    await eventually(async () => {
      const said = /** @type {string[]} */ (await page.evaluate("window.said"));
      assert.deepEqual(said.filter((text) => text !== "Running"), ["Half-way", "Completed"]);
    });
    assert.equal(await page.locator("[aria-live=polite], [aria-live=assertive]").count(), 1);
  });

  test("a flood of output leaves the page small and complete at its end", async () => {
    const id = await gateway.track();
    const page = await tabs.open();
    await page.goto(`${gateway.url}/jobs/${id}`);
    await shows(page, "#link", "Live");
    const line = "x".repeat(99) + "\n";
    for (let batch = 0; batch < 10; batch += 1) {
      const events = Array.from({ length: 500 }, () => ({ type: "output", data: { text: line } }));
      await gateway.append(id, ...events, { type: "log", data: { message: `batch ${batch}` } });
    }
    for (let batch = 0; batch < 2; batch += 1) {
      await gateway.append(id, ...Array.from({ length: 400 }, (_, index) => ({ type: "log", data: { message: `line ${index}` } })));
    }
    await gateway.append(id, { type: "output", data: { text: "the end" } });
    await shows(page, "pre.output", "the end");
    await shows(page, ".size", "488.3 KiB");
    const size = await page.evaluate(() => ({
      output: document.querySelector("pre.output")?.textContent?.length ?? 0,
      rows: document.querySelectorAll("li").length,
    }));
    assert.ok(size.output <= 400_000 && size.output >= 200_000, `${size.output} characters`);
    assert.ok(size.rows <= 600, `${size.rows} rows`);
  });
});
