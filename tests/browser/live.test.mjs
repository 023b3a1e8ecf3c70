// @ts-check
/** A job on the first page in a real browser, live, on both stores: to its end, over a reload, over a restart. */
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { eventually, Gateway, Recorder, shows, STORES, Tabs } from "./harness.mjs";

const tabs = new Tabs();
before(() => tabs.launch());
afterEach(() => tabs.closeAll());
after(() => tabs.quit());

for (const store of STORES) {
  describe(`on ${store}`, () => {
    /** @type {Gateway} */
    let gateway;
    /** @type {Recorder} */
    let recorder;
    before(async () => {
      gateway = await Gateway.start(store);
      recorder = await Recorder.before(gateway);
    });
    after(async () => {
      await recorder?.stop();
      await gateway?.stop();
    });

    test("a tracked job is seen live from the list to its end, and then nothing more is asked", async () => {
      const page = await tabs.open();
      await page.goto(`${recorder.url}/`);
      const subject = `live-${store}`;
      const id = await gateway.track({ subject });
      await shows(page, ".row", subject);
      await page.getByRole("link", { name: "summarize" }).first().click();
      await page.waitForURL(`**/jobs/${id}`);
      await shows(page, ".badge", "Running");
      await shows(page, "#link", "Live");

      await gateway.append(id, { type: "progress", data: { current: 83, total: 200, unit: "pages", phase: "drafting", message: "page 83" } });
      await shows(page, ".head .far", "41.5 % · 83 of 200 pages");
      await shows(page, ".head .message", "drafting: page 83");
      const bar = page.locator(".head [role=progressbar]");
      assert.equal(await bar.getAttribute("aria-valuenow"), "41");
      await gateway.append(id, { type: "output", data: { text: "Hello " } }, { type: "output", data: { text: "wörld\n" } });
      await shows(page, "pre.output", "Hello wörld");
      await gateway.append(id, { type: "log", data: { level: "warn", message: "slow source", fields: { ms: 4000 } } });
      await shows(page, "[data-level=warn]", "slow source ms 4000");
      await gateway.append(id, { type: "source.read", data: { url: "https://example.org" } });
      await shows(page, ".type", "source.read");
      await gateway.append(id, { type: "progress", data: { percent: 100 } });
      await shows(page, ".head .far", "100 % · 83 of 200 pages · finishing");
      await shows(page, ".badge", /^Running$/);

      await gateway.append(id, {
        type: "completed",
        data: {
          ok: false, status: "empty", items: 0, note: "nothing new", data: { rows: [] },
          artifacts: [{ type: "url", label: "report", url: "https://example.org/report" }],
        },
      });
      await shows(page, ".badge", "Completed, not ok");
      assert.equal(await page.locator(".badge").getAttribute("data-tone"), "warning");
      await shows(page, ".box[data-tone=warning]", "nothing new");
      assert.equal(await page.getByRole("link", { name: "report" }).getAttribute("href"), "https://example.org/report");
      await shows(page, "#link", "Ended");
      assert.equal(await page.getByRole("button", { name: "Cancel job" }).count(), 0);
      const result = await page.getByRole("link", { name: "Result data" }).getAttribute("href");
      assert.deepEqual(await gateway.call("GET", `/v1/jobs/${id}/result`), { rows: [] });
      assert.equal(result, `/v1/jobs/${id}/result`);

      const asked = recorder.seen.length;
      // Longer than any `retry:` of a stream, and than the list's refresh.
      await sleep(4_000);
      assert.deepEqual(recorder.seen.slice(asked), []);
      assert.equal(recorder.streams.filter(({ path }) => path.includes(id)).length, 1);
    });

    test("a reload in mid-job shows state, output and log at once", async () => {
      const id = await gateway.track();
      await gateway.append(
        id,
        { type: "log", data: { message: "before the page" } },
        { type: "output", data: { text: "ab" } }, { type: "output", data: { text: "ab" } }, { type: "output", data: { text: "\n\n€ " } },
        { type: "progress", data: { percent: 12.5 } },
      );
      const page = await tabs.open();
      await page.goto(`${recorder.url}/jobs/${id}`);
      for (const _ of [1, 2]) {
        await shows(page, ".head .far", "12.5 %");
        await shows(page, "[data-level]", "before the page");
        await eventually(async () => assert.equal(await page.locator("pre.output").textContent(), "abab\n\n€ "));
        await page.reload();
      }
      await gateway.append(id, { type: "output", data: { text: "tail" } });
      await eventually(async () => assert.equal(await page.locator("pre.output").textContent(), "abab\n\n€ tail"));
    });

    for (const signal of /** @type {const} */ (["SIGTERM", "SIGKILL"])) {
      test(`an open page goes on when the gateway is restarted (${signal})`, async () => {
        const id = await gateway.track();
        await gateway.append(id, { type: "output", data: { text: "one " } });
        const page = await tabs.open();
        await page.goto(`${gateway.url}/jobs/${id}`);
        await shows(page, "#link", "Live");
        await page.evaluate("window.untouched = true");
        await gateway.kill(signal);
        await shows(page, "#link", "Reconnecting");
        await gateway.start();
        await gateway.append(id, { type: "output", data: { text: "two " } }, { type: "progress", data: { percent: 50 } });
        await eventually(async () => assert.equal(await page.locator("pre.output").textContent(), "one two "), 20_000);
        await shows(page, ".head .far", "50 %");
        await shows(page, "#link", "Live");
        assert.equal(await page.evaluate("window.untouched"), true);
        await gateway.append(id, { type: "completed" });
        await shows(page, ".badge", /^Completed$/);
      });
    }
  });
}
