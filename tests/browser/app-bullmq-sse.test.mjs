// @ts-check
/** Imports as on BullMQ and SSE, `examples/apps/bullmq_sse.mjs`: real processes, a real browser, both stores. */
import assert from "node:assert/strict";
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { eventually, shows, Stage } from "./app.mjs";
import { Gateway, otherSite, Recorder, STORES, Tabs } from "./harness.mjs";

const FILE = "bullmq_sse.mjs";

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
    let results = "";
    /**
     * What the next calls of the source get, by its name: a status, or a silence; then 200.
     * @type {Map<string, (number | "silence")[]>}
     */
    const script = new Map();
    /** @type {Awaited<ReturnType<typeof otherSite>>} */
    let sources;
    before(async () => {
      gateway = await Gateway.start(store);
      results = await mkdtemp(path.join(tmpdir(), "milepost-results-"));
      sources = await otherSite((request, response) => {
        const next = script.get(request.url?.slice(1) ?? "")?.shift() ?? 200;
        if (next === "silence") return;
        if (next !== 200) response.writeHead(next, { "retry-after": "1" });
        response.end("one\ntwo\nthree\n");
      });
    });
    after(async () => {
      sources?.stop();
      await gateway?.stop();
      await rm(results, { recursive: true, force: true });
    });

    let tests = 0;
    /**
     * A queue that is the test's alone, its web process and an open page.
     * @param {Record<string, string | number>} [more]
     */
    const open = async (more = {}) => {
      const env = {
        MILEPOST_URL: gateway.url, QUEUE: `imports-${++tests}`, RESULTS: results, SOURCES: sources.url,
        STEP_MS: 50, BACKOFF_MS: 100, ...more,
      };
      const web = await stage.serve(FILE, ["web"], env);
      const page = await tabs.open();
      await page.goto(web.url);
      return { page, web, env: { ...env, APP_URL: web.url } };
    };
    /**
     * Starts an import in the page and answers its job's id, once the page watches it.
     * @param {import("playwright-core").Page} page
     * @param {string} source
     */
    const start = async (page, source) => {
      const before = page.url();
      await page.getByLabel("Source").fill(source);
      await page.getByRole("button", { name: "Import" }).click();
      await page.waitForURL((url) => url.href !== before && url.hash !== "");
      return new URL(page.url()).hash.slice(1);
    };
    /** @type {(id: string) => Promise<string[]>} */
    const log = async (id) => (await gateway.call("GET", `/v1/jobs/${id}/events`)).events.map((/** @type {{type: string}} */ { type }) => type);

    test("a failure is tried again with back-off until it succeeds, and the result is a URL", async () => {
      const { page, env } = await open({ CALL_MS: 2000 });
      stage.run(FILE, ["worker"], env);
      script.set("flaky", [503, "silence"]);
      const id = await start(page, "flaky");
      await shows(page, "#state", /^completed$/);
      const { events } = await gateway.call("GET", `/v1/jobs/${id}/events`);
      const retries = events.filter((/** @type {{type: string}} */ { type }) => type === "retrying");
      assert.deepEqual(retries.map((/** @type {any} */ { data }) => data.error.code), ["source_down", "call_timed_out"]);
      const pauses = retries.map((/** @type {any} */ { at, data }) => Date.parse(data.run_at) - Date.parse(at));
      // 100 and 200 ms, each give or take a fifth.
      assert.ok(pauses[0] >= 80 && pauses[0] <= 120 && pauses[1] >= 160 && pauses[1] <= 240, `${pauses}`);
      const job = await gateway.call("GET", `/v1/jobs/${id}`);
      assert.equal(job.attempt, 3);
      assert.equal("result_url" in job.outcome, false, "the result is no payload of the job");
      const [opened] = await Promise.all([page.waitForNavigation(), page.getByRole("link", { name: "Result" }).click()]);
      assert.deepEqual(await opened?.json(), { source: "flaky", lines: ["one", "two", "three"] });
    });

    test("what cannot be recovered is a dead letter at once, and redriven from the page", async () => {
      const { page, env } = await open();
      stage.run(FILE, ["worker"], env);
      script.set("missing", [404]);
      const id = await start(page, "missing");
      await shows(page, "#state", /^failed$/);
      await shows(page, "#detail", "the source said 404");
      await shows(page, "#dead", "unrecoverable");
      await shows(page, "#dead", id);
      assert.deepEqual(await log(id), ["queued", "started", "failed"]);
      await page.locator("#dead").getByRole("button", { name: "Redrive" }).click();
      await shows(page, "#state", /^completed$/);
      await eventually(async () => assert.equal(await page.locator("#dead tr").count(), 0));
      assert.equal(new URL(page.url()).hash, `#${id}`, "it is still the same job");
    });

    test("attempts are used up, and all dead letters are redriven at once", async () => {
      const { page, env } = await open({ BACKOFF_MS: 20 });
      stage.run(FILE, ["worker"], env);
      for (const source of ["down-1", "down-2"]) {
        script.set(source, [500, 500, 500, 500]);
        await start(page, source);
        await shows(page, "#state", /^failed$/);
        await shows(page, "#dead", `${source}`);
      }
      await shows(page, "#dead", "attempt 4");
      await page.getByRole("button", { name: "Redrive all" }).click();
      await eventually(async () => {
        const { jobs } = await gateway.call("GET", `/v1/jobs?queue=${env.QUEUE}&state=completed`);
        assert.equal(jobs.length, 2);
      });
      await eventually(async () => assert.equal(await page.locator("#dead tr").count(), 0));
    });

    test("a 429 of the source holds back the whole queue", async () => {
      const { page, env } = await open({ CONCURRENCY: 1 });
      script.set("limited", [429]);
      const first = await start(page, "limited");
      const second = await start(page, "after-it");
      stage.run(FILE, ["worker"], env);
      await shows(page, "#state", /^completed$/);
      const { events } = await gateway.call("GET", `/v1/jobs/${first}/events`);
      const held = events.find((/** @type {{type: string}} */ { type }) => type === "retrying");
      const { started_at } = await gateway.call("GET", `/v1/jobs/${second}`);
      const pause = Date.parse(started_at) - Date.parse(held.at);
      // A little less than the second asked for: the hold counts from the start of the transaction that stores it.
      assert.ok(pause >= 900, `${pause} ms`);
    });

    test("an id that is live is not added again, and none of its results is lost or doubled", async () => {
      const { page, web, env } = await open();
      const id = await start(page, "books");
      const headers = { "content-type": "application/json" };
      const add = () => fetch(`${web.url}/api/imports`, { method: "POST", headers, body: '{"source":"books"}' });
      const answers = await Promise.all([add(), add(), add()]);
      assert.deepEqual(answers.map(({ status }) => status), [200, 200, 200]);
      for (const answer of answers) assert.equal((await answer.json()).job.id, id);
      // A worker that dies after it has stored its result, and before it could say so, costs no second import.
      const { jobs: [claimed] } = await gateway.call("POST", "/v1/claims", { queues: [env.QUEUE], worker: "dies", lease_ms: 1000 });
      await writeFile(path.join(results, `${claimed.job.id}.json`), '{"source":"books","lines":["by the first run"]}');
      stage.run(FILE, ["worker"], env);
      await shows(page, "#state", /^completed$/);
      const result = await fetch(`${web.url}/results/${id}.json`);
      assert.deepEqual(await result.json(), { source: "books", lines: ["by the first run"] });
      assert.deepEqual((await readdir(results)).filter((name) => name.startsWith(id)), [`${id}.json`]);
    });

    test("a reload shows the state first, and the stream goes on over a restart of the web process", async (t) => {
      const recorder = await Recorder.before(gateway);
      t.after(() => recorder.stop());
      const { page, web, env } = await open({ STEP_MS: 2500, MILEPOST_URL: recorder.url });
      stage.run(FILE, ["worker"], env);
      const id = await start(page, "books");
      await shows(page, "#detail", "1 of 3 lines");
      await page.reload();
      await shows(page, "#first", /^state$/);
      await shows(page, "#state", /^running$/);
      await shows(page, "#detail", /^[12] of 3 lines$/);
      await page.evaluate("window.untouched = true");
      const opened = recorder.streams.length;
      assert.deepEqual(recorder.streams.map(({ lastEventId }) => lastEventId), [undefined, undefined]);
      assert.equal(await web.kill("SIGTERM"), 0);
      await stage.serve(FILE, ["web"], { ...env, PORT: web.port });
      await shows(page, "#state", /^completed$/);
      assert.equal(await page.evaluate("window.untouched"), true);
      const [resumed, ...more] = recorder.streams.slice(opened);
      assert.ok(Number(resumed.lastEventId) > 2, `the gateway is told what the page has seen: ${resumed.lastEventId}`);
      assert.deepEqual(more, []);
      assert.equal((await gateway.call("GET", `/v1/jobs/${id}`)).attempt, 1);
    });

    test("a worker stopped in mid-job gives it to the other", async () => {
      const { page, env } = await open({ CONCURRENCY: 1 });
      const first = stage.run(FILE, ["worker"], { ...env, STEP_MS: 60_000 });
      const id = await start(page, "books");
      await shows(page, "#detail", "1 of 3 lines");
      const { worker } = await gateway.call("GET", `/v1/jobs/${id}`);
      stage.run(FILE, ["worker"], env);
      assert.equal(await first.kill("SIGTERM"), 0);
      await shows(page, "#state", /^completed$/);
      const job = await gateway.call("GET", `/v1/jobs/${id}`);
      assert.notEqual(job.worker, worker);
      assert.equal(job.attempt, 1);
      assert.ok((await log(id)).includes("released"));
    });

    test("two workers share the queue, within its limits", async () => {
      const { page, env } = await open({ CONCURRENCY: 1, STEP_MS: 60_000 });
      stage.run(FILE, ["worker"], env);
      stage.run(FILE, ["worker"], env);
      for (const source of ["one", "two", "three"]) await start(page, source);
      await shows(page, "#queue", "1 queued, 2 running");
      const { concurrency, rate_limit, defaults } = await gateway.call("GET", `/v1/queues/${env.QUEUE}`);
      assert.deepEqual([concurrency, rate_limit.limit, defaults.max_attempts], [10, 100, 4]);
    });

    test("a queue that nobody works off is noticed by its age", async () => {
      const { page, web } = await open({ MAX_AGE_MS: 500 });
      const health = async () => {
        const answer = await fetch(`${web.url}/healthz/queue`);
        return { status: answer.status, ...(await answer.json()) };
      };
      assert.deepEqual(await health(), { status: 200, oldest_ms: 0, queued: 0, running: 0, retrying: 0, dead_letters: 0 });
      await start(page, "books");
      await eventually(async () => assert.equal((await health()).status, 503));
      const { oldest_ms, queued } = await health();
      assert.ok(oldest_ms > 500 && queued === 1);
      await shows(page, "#queue", /1 queued.*the oldest waits for [1-9]/);
    });

    test("a stream that cannot be opened now is opened later", async () => {
      const { page, env } = await open();
      const id = await start(page, "books");
      await shows(page, "#state", /^queued$/);
      await gateway.kill("SIGKILL");
      await page.reload();
      await shows(page, "#first", /^bye$/);
      await gateway.start();
      stage.run(FILE, ["worker"], env);
      await shows(page, "#state", /^completed$/);
      assert.equal((await gateway.call("GET", `/v1/jobs/${id}`)).state, "completed");
    });
  });
}
