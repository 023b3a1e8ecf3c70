// @ts-check
/** The job base polled from web pages, `examples/apps/rq_polling.py`: real processes, a real browser, both stores. */
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { eventually, shows, Stage } from "./app.mjs";
import { Gateway, STORES, Tabs } from "./harness.mjs";

const FILE = "rq_polling.py";

const tabs = new Tabs();
const stage = new Stage();
before(() => tabs.launch());
afterEach(async () => {
  await tabs.closeAll();
  await stage.clear();
});
after(() => tabs.quit());

for (const store of STORES) {
  describe(`on ${store}`, () => {
    /** @type {Gateway} */
    let gateway;
    before(async () => (gateway = await Gateway.start(store)));
    after(() => gateway?.stop());

    let tests = 0;
    /** A queue that is the test's alone. */
    const settings = () => ({ MILEPOST_URL: gateway.url, QUEUE: `reports-${++tests}`, STEP_MS: 100 });

    /**
     * @param {import("playwright-core").Page} page
     * @param {string} customer
     */
    const order = async (page, customer) => {
      await page.getByLabel("Customer").fill(customer);
      await page.getByRole("button", { name: "Make a report" }).click();
    };

    test("a job is queued, then running, then succeeded, each shown as what it is", async () => {
      const env = settings();
      const web = await stage.serve(FILE, ["web"], env);
      const page = await tabs.open();
      await page.goto(web.url);
      await order(page, "7");
      await shows(page, "#status", /^queued$/);
      const [job] = (await gateway.call("GET", `/v1/jobs?queue=${env.QUEUE}`)).jobs;
      await shows(page, "#jobs", job.id);

      // What is polled has the envelope's shape, from the first answer to the last.
      const waiting = await (await fetch(`${web.url}/api/jobs/${job.id}`)).json();
      assert.deepEqual(
        [waiting.job_id, waiting.status, waiting.done, waiting.result, waiting.error],
        [job.id, "queued", false, null, null],
      );
      const held = fetch(`${web.url}/api/jobs/${job.id}?after=${waiting.seq}`);
      stage.run(FILE, ["worker"], { ...env, STEP_MS: 1500 });
      assert.equal((await (await held).json()).status, "running", "a held poll is answered by the change");
      await shows(page, "#status", /^running$/);
      await shows(page, "#detail", /^(33|66|100) %$/);
      await shows(page, "#status", /^succeeded$/);
      await shows(page, "#detail", "apples, pears, plums");
      const done = await (await fetch(`${web.url}/api/jobs/${job.id}`)).json();
      assert.deepEqual(Object.keys(done), Object.keys(waiting));
      assert.deepEqual(
        [done.status, done.done, done.result, done.error],
        ["succeeded", true, { customer: "7", rows: ["apples", "pears", "plums"] }, null],
      );
    });

    test("a failed job is found by its id in the list, and requeued from there", async () => {
      const env = settings();
      const web = await stage.serve(FILE, ["web"], env);
      stage.run(FILE, ["worker"], env);
      const page = await tabs.open();
      await page.goto(web.url);
      for (const customer of ["7", "<b>nobody</b>", "8"]) {
        await order(page, customer);
        await shows(page, "#status", customer.startsWith("<") ? /^failed$/ : /^succeeded$/);
      }
      const [{ id }] = (await gateway.call("GET", `/v1/jobs?queue=${env.QUEUE}&state=failed`)).jobs;
      assert.equal(await page.locator("#jobs tr").count(), 3);
      await page.getByLabel("Job id").fill(id);
      await page.getByRole("button", { name: "Find" }).click();
      await eventually(async () => assert.equal(await page.locator("#jobs tr").count(), 1));
      await shows(page, "#jobs", id);
      await shows(page, "#jobs", "KeyError");
      await shows(page, "#jobs", "customer:<b>nobody</b>");
      await page.getByLabel("Job id").fill("");
      await page.getByLabel("failed only").check();
      await eventually(async () => assert.equal(await page.locator("#jobs tr").count(), 1));
      await shows(page, "#jobs", id);
      await page.getByRole("button", { name: "Requeue" }).click();
      await eventually(async () => {
        const { events } = await gateway.call("GET", `/v1/jobs/${id}/events`);
        const types = events.map((/** @type {{type: string}} */ event) => event.type);
        assert.deepEqual(types, ["queued", "started", "failed", "requeued", "started", "failed"]);
      });
    });

    test("yesterday's success is never shown for today's click, nor an earlier click's end for a later one", async () => {
      const env = settings();
      const web = await stage.serve(FILE, ["web"], env);
      const yesterdays = stage.run(FILE, ["worker"], env);
      const page = await tabs.open();
      await page.goto(web.url);
      await order(page, "7");
      await shows(page, "#status", /^succeeded$/);
      await yesterdays.kill();

      // Nobody works: what is shown for these clicks can be of no other job.
      await page.goto(web.url);
      await order(page, "7");
      await shows(page, "#status", /^queued$/);
      await order(page, "8");
      await shows(page, "#status", /^queued$/);
      const ids = (await gateway.call("GET", `/v1/jobs?queue=${env.QUEUE}`)).jobs.map((/** @type {{id: string}} */ { id }) => id);
      assert.equal(new Set(ids).size, 3);
      // The first click's job ends while the page waits for the second's.
      await gateway.call("POST", `/v1/jobs/${ids[1]}/cancel`);
      await shows(page, "#jobs", "cancelled");
      assert.equal(await page.locator("#status").textContent(), "queued");
      stage.run(FILE, ["worker"], env);
      await shows(page, "#status", /^succeeded$/);
      await shows(page, "#detail", /^nuts$/);
    });

    test("a job that ran and found nothing is no success", async () => {
      const env = settings();
      const web = await stage.serve(FILE, ["web"], env);
      stage.run(FILE, ["worker"], env);
      const page = await tabs.open();
      await page.goto(web.url);
      await order(page, "9");
      await shows(page, "#status", /^unsuccessful$/);
      await shows(page, "#detail", "this customer has bought nothing");
    });

    test("a worker that is stopped gives its job back, one that is killed loses an attempt", async () => {
      const env = settings();
      const web = await stage.serve(FILE, ["web"], env);
      const slow = { ...env, STEP_MS: 60_000 };
      const page = await tabs.open();
      await page.goto(web.url);
      await order(page, "7");
      const stopped = stage.run(FILE, ["worker"], slow);
      await shows(page, "#status", /^running$/);
      assert.equal(await stopped.kill("SIGTERM"), 0);
      await shows(page, "#status", /^queued$/);
      const killed = stage.run(FILE, ["worker"], { ...slow, LEASE_MS: 3000 });
      await shows(page, "#status", /^running$/);
      // Once a heartbeat has passed: a run that was never heard of would be given back.
      const id = (await gateway.call("GET", `/v1/jobs?queue=${env.QUEUE}`)).jobs[0].id;
      const expiry = async () => {
        const { workers } = await gateway.call("GET", "/v1/workers");
        const jobs = workers.flatMap((/** @type {{jobs: {id: string, expires_at: string}[]}} */ worker) => worker.jobs);
        return jobs.find((/** @type {{id: string}} */ job) => job.id === id)?.expires_at;
      };
      const first = await expiry();
      await eventually(async () => (await expiry()) !== first);
      await killed.kill("SIGKILL");
      stage.run(FILE, ["worker"], env);
      await shows(page, "#status", /^succeeded$/);
      const { attempt } = await gateway.call("GET", `/v1/jobs/${id}`);
      assert.equal(attempt, 2);
    });

    test("the page knows nothing of the gateway, and page and worker survive its restart", async () => {
      const env = { ...settings(), STEP_MS: 500 };
      const web = await stage.serve(FILE, ["web"], env);
      const page = await tabs.open();
      /** @type {Set<string>} */
      const origins = new Set();
      page.on("request", (request) => origins.add(new URL(request.url()).origin));
      await page.goto(web.url);
      assert.ok(!(await page.content()).includes(gateway.url));
      const worker = stage.run(FILE, ["worker"], env);
      await order(page, "7");
      await shows(page, "#status", /^running$/);
      await gateway.kill("SIGKILL");
      // Its heartbeat and its next append, both in vain.
      await eventually(() => worker.unanswered > 3);
      await gateway.start();
      await shows(page, "#status", /^succeeded$/);
      const [job] = (await gateway.call("GET", `/v1/jobs?queue=${env.QUEUE}`)).jobs;
      assert.equal(job.attempt, 1);
      assert.deepEqual([...origins], [web.url]);
    });

    test("what is no request of ours is refused", async () => {
      const web = await stage.serve(FILE, ["web"], settings());
      const foreign = await gateway.track();
      const json = { "content-type": "application/json" };
      const say = async (/** @type {string} */ route, /** @type {RequestInit} */ init = {}) => (await fetch(web.url + route, init)).status;
      assert.equal(await say(`/api/jobs/${foreign}`), 404, "a job of another app");
      assert.equal(await say(`/api/jobs/${foreign}/retry`, { method: "POST", body: "{}", headers: json }), 404);
      assert.equal(await say("/api/jobs/..%2f..%2fqueues"), 404);
      assert.equal(await say("/api/jobs", { method: "POST", body: '{"customer":"7"}' }), 415, "what a foreign form can send");
      assert.equal(await say("/api/jobs", { method: "POST", body: "{", headers: json }), 400);
      assert.equal(await say("/api/jobs", { method: "POST", body: '{"customer":7}', headers: json }), 422);
    });
  });
}
