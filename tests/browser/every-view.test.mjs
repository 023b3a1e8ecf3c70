// @ts-check
/** What holds for every view: no finding of axe-core, in light and in dark; room on a phone; no text that runs. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, afterEach, before, describe, test } from "node:test";
import { Gateway, shows, Tabs } from "./harness.mjs";
import { enqueue, report, smallTeam, take } from "./small-team.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const tabs = new Tabs();
before(() => tabs.launch());
afterEach(() => tabs.closeAll());
after(() => tabs.quit());

describe("every view", () => {
  /** @type {Gateway} */
  let gateway;
  /** Where each view is, and what shows that it is there. @type {Record<string, [string, string, string]>} */
  let views;
  before(async () => {
    gateway = await Gateway.start("sqlite");
    const { retried, waiting, failed } = await smallTeam(gateway, 8);
    views = {
      jobs: ["/", ".row", "clip:17"],
      queues: ["/#view=queues", ".queue", "render"],
      queue: ["/#view=queue&queue=llm", ".figures", "Waiting"],
      "dead letters": ["/#view=dead", ".dead", "clip:17"],
      workers: ["/#view=workers", ".table", "importer-2"],
      activity: ["/#view=activity", "h1", "Activity"],
      "a job": [`/jobs/${retried}`, ".runs", "importer-1"],
      "a job that waits": [`/jobs/${waiting}`, ".waiting", "paused"],
      "a failed job": [`/jobs/${failed}`, ".box", "timed_out"],
    };
  });
  after(() => gateway?.stop());

  for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
    test(`has no serious finding of axe-core when it is ${colorScheme}, and fits a phone`, async () => {
      const page = await tabs.open({ colorScheme, reducedMotion: "reduce" });
      /** @type {string[]} */
      const findings = [];
      // The policy forbids inline script and style, and the console tells what broke it.
      page.on("console", (message) => message.type() === "error" && findings.push(message.text()));
      for (const [name, [path, selector, text]] of Object.entries(views)) {
        await page.goto("about:blank");
        await page.setViewportSize({ width: 1080, height: 800 });
        await page.goto(gateway.url + path);
        await shows(page, selector, text);
        if (name === "activity") {
          await page.evaluate(async () => (await import(/** @type {any} */ ("/assets/app/notices.js"))).notice("something happened"));
        }
        // Confirmations are part of a view.
        const risky = page.getByRole("button", { name: /^(Pause|Cancel job|Retry job)$/ }).first();
        if (await risky.isVisible()) await risky.click();
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => /** @type {any} */ (window).axe.run({ resultTypes: ["violations"] }));
        for (const { id, impact, nodes } of violations) {
          if (impact === "serious" || impact === "critical") findings.push(`${name}: ${id}: ${nodes.map((/** @type {any} */ node) => node.html).join(" ")}`);
        }
        await page.setViewportSize({ width: 360, height: 740 });
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (wide > 0) findings.push(`${name}: ${wide} px too wide for a phone`);
      }
      assert.deepEqual(findings, []);
    });
  }

  test("shows hostile text as text", async () => {
    const evil = `<img src=x onerror=pwn()><script>pwn()</script>"'><svg onload=pwn()>\u202e`;
    const hostile = await Gateway.start("sqlite");
    try {
      await hostile.call("POST", "/v1/queues/q/pause", { reason: evil });
      const waits = await enqueue(hostile, { queue: "q", kind: "k", subject: evil, payload: { [evil]: evil }, meta: { [evil]: evil }, concurrency_key: evil });
      const fails = await enqueue(hostile, { queue: "p", kind: "k", subject: evil, max_attempts: 1 });
      await report(hostile, await take(hostile, "p", "w"), { type: "failed", data: { code: evil.slice(0, 60), message: evil, details: [evil], retryable: false } });
      const runs = await enqueue(hostile, { queue: "p", kind: "k", subject: evil });
      const taken = await take(hostile, "p", "w");
      await report(hostile, taken, { type: "progress", data: { percent: 5, unit: evil, phase: evil, message: evil } });

      // The policy would stop what gets through: without it the page must be safe by itself.
      const page = await tabs.open({ bypassCSP: true });
      await page.addInitScript("window.pwn = () => { window.pwned = true; }");
      const clean = async (/** @type {string} */ where) => {
        assert.equal(await page.evaluate("window.pwned"), undefined, where);
        assert.equal(await page.locator("main img, main script, #toasts img, svg:not([data-chart])").count(), 0, where);
      };
      /** @type {[string, string][]} */
      const places = [
        ["/", ".row"], ["/#view=queues", ".queue"], ["/#view=queue&queue=q", ".box"], ["/#view=dead", ".dead"],
        [`/#view=dead&queue=${encodeURIComponent(evil)}`, "main"], ["/#view=workers", ".table"],
        [`/jobs/${waits}`, ".waiting"], [`/jobs/${fails}`, ".runs"], [`/jobs/${runs}`, ".head .message"],
      ];
      for (const [path, selector] of places) {
        await page.goto("about:blank");
        await page.goto(hostile.url + path);
        await shows(page, selector, path.includes("workers") || path.endsWith("=queues") ? /./ : path.includes("%3C") ? "Dead letters" : "<img src=x onerror=pwn()>");
        await clean(path);
      }
      await page.goto(`${hostile.url}/jobs/${waits}`);
      await page.getByText("Payload", { exact: true }).click();
      await shows(page, ".payload pre", "<script>pwn()</script>");
      await clean("payload");
      await page.goto(`${hostile.url}/#view=activity`);
      await shows(page, "#link", "Live");
      await report(hostile, taken, { type: "completed" });
      await shows(page, ".toast", "<img src=x onerror=pwn()>");
      await shows(page, ".told", "<img src=x onerror=pwn()>");
      await clean("activity");
    } finally {
      await hostile.stop();
    }
  });
});
