// @ts-check
/** The concierge on three queues, `examples/apps/amqp_concierge.mjs`: real processes, a real browser, both stores. */
import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { eventually, shows, Stage } from "./app.mjs";
import { Gateway, STORES, Tabs } from "./harness.mjs";

const FILE = "amqp_concierge.mjs";

const tabs = new Tabs();
const stage = new Stage();
before(() => tabs.launch());
afterEach(() => tabs.closeAll());
after(() => tabs.quit());

for (const store of STORES) {
  describe(`on ${store}`, () => {
    /** @type {Gateway} */
    let gateway;
    // One for each test: the queues have the same names in all of them.
    beforeEach(async () => (gateway = await Gateway.start(store)));
    afterEach(async () => {
      await stage.clear();
      await gateway?.stop();
    });

    /** @param {Record<string, string | number>} [more] */
    const open = async (more = {}) => {
      const env = { MILEPOST_URL: gateway.url, ...more };
      const web = await stage.serve(FILE, ["web"], env);
      const page = await tabs.open();
      await page.goto(web.url);
      return { page, web, env };
    };
    /**
     * Sends a prompt from the page and answers its job's id, once the page watches it.
     * @param {import("playwright-core").Page} page
     * @param {"chat" | "report"} queue
     * @param {string} prompt
     */
    const send = async (page, queue, prompt) => {
      const before = page.url();
      await page.locator("textarea").fill(prompt);
      await page.getByLabel(queue).check();
      await page.getByRole("button", { name: "Send" }).click();
      await page.waitForURL((url) => url.href !== before && url.hash !== "");
      return new URL(page.url()).hash.slice(1);
    };
    /** @param {import("playwright-core").Page} page */
    const output = async (page) => (await page.locator("#output").textContent()) ?? "";
    /** @type {(id: string) => Promise<any>} */
    const state = (id) => gateway.call("GET", `/v1/jobs/${id}`);
    /** @type {(id: string) => Promise<any>} */
    const last = async (id) => (await gateway.call("GET", `/v1/jobs/${id}/events`)).events.at(-1);

    test("tokens appear as they are generated, are there again on a reload, and none is lost or doubled", async () => {
      const { page, env } = await open({ TOKEN_MS: 100 });
      stage.run(FILE, ["worker"], env);
      const id = await send(page, "chat", "a <b>b</b> ç");
      await eventually(async () => assert.match(await output(page), /^a <b>b<\/b> ç a/));
      const early = (await output(page)).length;
      assert.equal((await state(id)).state, "running");
      await eventually(async () => assert.ok((await output(page)).length > early));
      assert.equal((await state(id)).state, "running");
      await page.reload();
      await shows(page, "#state", /^running$/);
      assert.ok((await output(page)).length > early, "all of it is there at once");
      await shows(page, "#state", /^completed$/);
      const whole = Array.from({ length: 40 }, (_, n) => ["a", "<b>b</b>", "ç"][n % 3]).join(" ");
      assert.equal((await output(page)).trim(), whole);
      assert.equal((await state(id)).outcome.metrics.tokens, 40);
    });

    test("a cancel stops a running generation at once, and the worker takes the next", async () => {
      const { page, env } = await open();
      stage.run(FILE, ["worker"], env);
      const id = await send(page, "report", "on and on");
      await eventually(async () => assert.match(await output(page), /^on and on on/));
      await page.getByRole("button", { name: "Stop" }).click();
      await shows(page, "#state", /^cancelled$/);
      const { events } = await gateway.call("GET", `/v1/jobs/${id}/events`);
      const [asked, ended] = ["cancel_requested", "cancelled"].map((type) => events.find((/** @type {any} */ event) => event.type === type));
      // By the worker's own word, not by the force that follows after ten seconds.
      const stopped = Number(/^stopped after (\d+) tokens$/.exec(ended.data.reason)?.[1]);
      assert.ok(stopped > 0 && stopped < 400, ended.data.reason);
      assert.equal(asked.data.reason, "stopped by the reader");
      await shows(page, "#detail", ended.data.reason);
      await send(page, "chat", "next");
      await shows(page, "#output", /^next next/);
    });

    test("a cancel is heard in the middle of a token", async () => {
      const { page, env } = await open({ TOKEN_MS: 60_000 });
      stage.run(FILE, ["worker"], env);
      const id = await send(page, "report", "never said");
      await shows(page, "#state", /^running$/);
      await page.getByRole("button", { name: "Stop" }).click();
      await shows(page, "#state", /^cancelled$/);
      assert.equal((await last(id)).data.reason, "stopped after 0 tokens");
    });

    test("a cancel overtakes what waits before it", async () => {
      const { page, web, env } = await open();
      stage.run(FILE, ["worker"], env);
      const busy = await send(page, "report", "busy");
      await shows(page, "#state", /^running$/);
      const other = await tabs.open();
      await other.goto(web.url);
      const waiting = await send(other, "chat", "waiting");
      await shows(other, "#state", /^queued$/);
      await other.getByRole("button", { name: "Stop" }).click();
      await shows(other, "#state", /^cancelled$/);
      assert.equal((await state(busy)).state, "running");
      assert.equal((await state(waiting)).attempt, 0, "it was never begun");
    });

    test("what nobody starts in time expires, and is never generated", async () => {
      const { page, env } = await open({ TTL_MS: 300 });
      const id = await send(page, "chat", "too late");
      await shows(page, "#state", /^expired$/);
      await shows(page, "#detail", "ttl");
      stage.run(FILE, ["worker"], env);
      const { page: later } = await open();
      await send(later, "chat", "in time");
      await shows(later, "#output", /^in time/);
      assert.equal((await state(id)).attempt, 0);
    });

    test("what nobody watches any more is stopped", async () => {
      const { page, web, env } = await open({ UNWATCHED_MS: 4000 });
      stage.run(FILE, ["worker"], env);
      const id = await send(page, "report", "for nobody");
      await eventually(async () => assert.match(await output(page), /^for nobody/));
      // A reload is no going away.
      await page.reload();
      await eventually(async () => assert.match(await output(page), /^for nobody/));
      await page.goto("about:blank");
      await eventually(async () => {
        // By the list, since to look at the job itself is to watch it.
        const { jobs } = await gateway.call("GET", "/v1/jobs?queue=report&state=cancelled");
        assert.ok(jobs.some((/** @type {{id: string}} */ job) => job.id === id));
      });
      assert.match((await last(id)).data.reason, /^stopped after \d+ tokens$/);
      const { events } = await gateway.call("GET", `/v1/jobs/${id}/events`);
      assert.equal(events.find((/** @type {any} */ { type }) => type === "cancel_requested").data.reason, "unwatched");
      assert.equal((await fetch(web.url)).status, 200);
    });

    test("a start with PURGE cancels what waited, and lets run what runs", async () => {
      const { page, web, env } = await open({ UNWATCHED_MS: 60_000 });
      stage.run(FILE, ["worker", "report"], env);
      const running = await send(page, "report", "running");
      await shows(page, "#state", /^running$/);
      const waiting = await tabs.open();
      await waiting.goto(web.url);
      const id = await send(waiting, "chat", "of yesterday");
      await shows(waiting, "#state", /^queued$/);
      await web.kill();
      await stage.serve(FILE, ["web"], { ...env, PORT: web.port, PURGE: 1 });
      await shows(waiting, "#state", /^cancelled$/);
      assert.equal((await last(id)).data.reason, "purged");
      assert.equal((await state(running)).state, "running");
    });

    test("so does a start of the gateway with --purge-on-start", async () => {
      const purging = await Gateway.start(store, ["--purge-on-start", "chat"]);
      try {
        const { page } = await open({ MILEPOST_URL: purging.url, UNWATCHED_MS: 60_000 });
        await send(page, "chat", "of yesterday");
        await shows(page, "#state", /^queued$/);
        await purging.kill("SIGKILL");
        await purging.start();
        await shows(page, "#state", /^cancelled$/);
      } finally {
        await purging.stop();
      }
    });

    test("light and heavy jobs have time-outs of their own, and workers of their own", async () => {
      const { page, web, env } = await open();
      const defaults = async (/** @type {string} */ queue) => (await gateway.call("GET", `/v1/queues/${queue}`)).defaults;
      assert.deepEqual([(await defaults("chat")).timeout_ms, (await defaults("report")).timeout_ms], [60_000, 1_800_000]);
      stage.run(FILE, ["worker", "report"], env);
      stage.run(FILE, ["worker", "chat"], env);
      const heavy = await send(page, "report", "heavy");
      await shows(page, "#state", /^running$/);
      // The same settings, cut short for one queue: only its jobs are cut off.
      await gateway.call("PATCH", "/v1/queues/chat", { defaults: { timeout_ms: 500, max_attempts: 1 } });
      const other = await tabs.open();
      await other.goto(web.url);
      const light = await send(other, "chat", "light");
      await shows(other, "#state", /^failed$/);
      assert.equal((await state(light)).error.code, "timed_out");
      assert.equal((await state(heavy)).state, "running");
    });

    test("a worker that is stopped gives its job back, and the page begins the text anew", async () => {
      const { page, env } = await open();
      const first = stage.run(FILE, ["worker"], env);
      const id = await send(page, "chat", "one two three");
      await eventually(async () => assert.match(await output(page), /^one two/));
      assert.equal(await first.kill("SIGTERM"), 0);
      await shows(page, "#state", /^queued$/);
      stage.run(FILE, ["worker"], env);
      await shows(page, "#state", /^completed$/);
      assert.equal((await output(page)).trim().split(" ").length, 40);
      assert.equal((await state(id)).attempt, 1);
    });
  });
}
