// @ts-check
/** The queue that was in memory, `examples/apps/in_memory_queue.mjs`: a real process, a real browser, both stores. */
import assert from "node:assert/strict";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { shows, Stage } from "./app.mjs";
import { Gateway, STORES, Tabs } from "./harness.mjs";

const FILE = "in_memory_queue.mjs";

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
    let ledger = "";
    before(async () => {
      gateway = await Gateway.start(store);
      ledger = await mkdtemp(path.join(tmpdir(), "milepost-ledger-"));
    });
    after(async () => {
      await gateway?.stop();
      await rm(ledger, { recursive: true, force: true });
    });

    let tests = 0;
    /** A queue and a ledger that are the test's alone. */
    const settings = () => {
      tests++;
      return { MILEPOST_URL: gateway.url, QUEUE: `payments-${tests}`, LEDGER: path.join(ledger, `${tests}`), STEP_MS: 300 };
    };
    /** @type {(env: {QUEUE: string}) => Promise<any[]>} */
    const jobs = async ({ QUEUE }) => (await gateway.call("GET", `/v1/jobs?queue=${QUEUE}`)).jobs;

    test("a reload in mid-job finds the job by what it is about, with its activity", async () => {
      const env = { ...settings(), STEP_MS: 2000 };
      const app = await stage.serve(FILE, [], env);
      const page = await tabs.open();
      await page.goto(`${app.url}/?invoice=21`);
      await shows(page, "#state", /^unpaid$/);
      await page.getByRole("button", { name: "Pay" }).click();
      await shows(page, "#activity", "charging the card");
      await shows(page, "#state", /^running$/);
      const [{ id }] = await jobs(env);
      await page.reload();
      await shows(page, "#job", id);
      await shows(page, "#activity", "checking the invoice");
      // Another page, of somebody who has never seen the job's id.
      const other = await tabs.open();
      await other.goto(`${app.url}/?invoice=21`);
      await shows(other, "#job", id);
      for (const each of [page, other]) {
        await shows(each, "#state", /^paid$/);
        await shows(each, "#activity", "completed"); // The log comes just after the state.
        const lines = (await each.locator("#activity li").allInnerTexts()).map((line) => line.slice(9));
        assert.deepEqual(lines, [
          "queued", "started attempt 1", "log checking the invoice", "log charging the card", "log booking the payment", "completed paid",
        ]);
      }
      // Nobody else's invoice.
      await other.goto(`${app.url}/?invoice=22`);
      await shows(other, "#job", /^none$/);
    });

    test("a double click, and a click in another tab, yield one job", async () => {
      const env = settings();
      const app = await stage.serve(FILE, [], env);
      const [page, other] = [await tabs.open(), await tabs.open()];
      await page.goto(`${app.url}/?invoice=31`);
      await other.goto(`${app.url}/?invoice=31`);
      /** @type {number[]} */
      const answers = [];
      page.on("response", (response) => response.request().method() === "POST" && answers.push(response.status()));
      await Promise.all([page.getByRole("button", { name: "Pay" }).dblclick(), other.getByRole("button", { name: "Pay" }).click()]);
      await shows(page, "#state", /^paid$/);
      await shows(other, "#state", /^paid$/);
      assert.equal(answers.length, 2, "both clicks were sent");
      const all = await jobs(env);
      assert.equal(all.length, 1);
      assert.deepEqual(await readdir(env.LEDGER), ["invoice-31"]);

      // A click after the end is a job of its own, and pays nothing.
      await page.getByRole("button", { name: "Pay" }).click();
      await shows(page, "#state", /^nothing done$/);
      await shows(page, "#detail", "it had been paid before");
      assert.equal((await jobs(env)).length, 2);
    });

    for (const signal of /** @type {const} */ (["SIGTERM", "SIGKILL"])) {
      test(`a restart of the app loses nothing (${signal})`, async () => {
        const env = { ...settings(), CONCURRENCY: 1 };
        let app = await stage.serve(FILE, [], { ...env, STEP_MS: 2500, LEASE_MS: signal === "SIGKILL" ? 3000 : 30_000 });
        const page = await tabs.open();
        await page.goto(`${app.url}/?invoice=41`);
        await page.getByRole("button", { name: "Pay" }).click();
        await shows(page, "#state", /^running$/);
        const waiting = await tabs.open();
        await waiting.goto(`${app.url}/?invoice=42`);
        await waiting.getByRole("button", { name: "Pay" }).click();
        await shows(waiting, "#state", /^queued$/);
        // The card has been charged, and nobody but its provider knows.
        await shows(page, "#activity", "booking the payment");
        const ids = (await jobs(env)).map(({ id }) => id);
        const ended = await app.kill(signal);
        assert.equal(ended, signal === "SIGTERM" ? 0 : "SIGKILL");
        app = await stage.serve(FILE, [], { ...env, PORT: app.port });
        // The open pages go on by themselves.
        for (const each of [page, waiting]) await shows(each, "#state", /^paid$/);
        const all = await jobs(env);
        assert.deepEqual(all.map(({ id }) => id), ids);
        assert.deepEqual(all.map(({ attempt }) => attempt), [1, signal === "SIGTERM" ? 1 : 2]);
        await shows(page, "#activity", signal === "SIGTERM" ? "released" : "retrying");
        assert.deepEqual((await readdir(env.LEDGER)).sort(), ["invoice-41", "invoice-42"]);
      });
    }

    test("the app answers 202 at once, and the status at a URL of its own", async () => {
      const env = settings();
      await gateway.call("POST", `/v1/queues/${env.QUEUE}/pause`, { reason: "to see a job that waits" });
      const app = await stage.serve(FILE, [], env);
      const headers = { "content-type": "application/json", "idempotency-key": "a-click" };
      const pay = (/** @type {Record<string, string>} */ sent) => fetch(`${app.url}/api/invoices/51/pay`, { method: "POST", headers: sent, body: "{}" });
      const first = await pay(headers);
      assert.equal(first.status, 202);
      const { job } = await first.json();
      assert.equal((await (await fetch(`${app.url}/api/jobs/${job.id}`)).json()).state, "queued");
      // A click whose answer was lost is repeated, and may come when its job has ended.
      await gateway.call("POST", `/v1/jobs/${job.id}/cancel`);
      const again = await pay(headers);
      assert.deepEqual([again.status, (await again.json()).job.id], [200, job.id]);
      assert.equal((await pay({})).status, 415, "what a foreign form can send");
      assert.equal((await fetch(`${app.url}/api/jobs/nothing`)).status, 404);
    });
  });
}
