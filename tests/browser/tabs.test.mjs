// @ts-check
/** Several tabs of one real browser: real Web Locks, a real BroadcastChannel, and its six connections to a host. */
import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { FakeGateway } from "../web/fake-gateway.mjs";
import { eventually, Gateway, Recorder, shows, Tabs } from "./harness.mjs";

const tabs = new Tabs();
before(() => tabs.launch());
afterEach(() => tabs.closeAll());
after(() => tabs.quit());

/** @typedef {import("playwright-core").Page} Page */

describe("a feed", () => {
  /** @type {FakeGateway} */
  let gateway;
  beforeEach(async () => {
    gateway = await FakeGateway.start();
    gateway.pages["/page"] = "<!doctype html><title>tab</title>";
  });
  afterEach(() => gateway?.stop());

  /** @param {Page} page */
  async function follow(page) {
    await page.goto(`${gateway.url}/page`);
    await page.evaluate(async () => {
      const { watchFeed } = await import(/** @type {any} */ ("/assets/client/milepost.js"));
      const seen = /** @type {[string, number][]} */ ([]);
      const feed = watchFeed({ queue: "default" }, { onState: (/** @type {any} */ job) => seen.push([job.id, job.seq]) });
      Object.assign(window, { feed, seen });
    });
  }

  /** @param {Page} page @param {string} id @param {number} seq */
  const knows = (page, id, seq) =>
    eventually(async () => assert.equal(await page.evaluate((id) => /** @type {any} */ (window).feed.jobs.get(id)?.seq, id), seq));

  const feeds = () => gateway.asked.filter(({ url }) => url.startsWith("/v1/events"));

  test("is one connection; when the leader's tab closes the next goes on from its cursor, and nothing is lost", async () => {
    const id = gateway.enqueue();
    const first = await tabs.open();
    const pages = [first, await first.context().newPage(), await first.context().newPage(), await first.context().newPage()];
    for (const page of pages) {
      await follow(page);
      await knows(page, id, 1);
    }
    assert.equal(feeds().length, 1);
    let seq = 1;
    for (let leader = 0; leader < 3; leader += 1) {
      gateway.append(id, "log", {});
      seq += 1;
      for (const page of pages.slice(leader)) await knows(page, id, seq);
      const closed = pages[leader].close();
      gateway.append(id, "log", {});
      seq += 1;
      await closed;
      for (const page of pages.slice(leader + 1)) await knows(page, id, seq);
      assert.equal(feeds().length, leader + 2);
      assert.match(feeds()[leader + 1].url, /after=c\d+/);
    }
    await eventually(() => gateway.open === 1);
    const seen = /** @type {[string, number][]} */ (await pages[3].evaluate("seen"));
    const seqs = seen.map(([, seq]) => seq);
    assert.deepEqual(seqs, [...seqs].sort((a, b) => a - b));
    assert.equal(seqs.at(-1), seq);
    await pages[3].evaluate("feed.close()");
    await eventually(() => gateway.open === 0);
    assert.deepEqual(await pages[3].evaluate("navigator.locks.query().then(({ held, pending }) => [...held, ...pending])"), []);
  });

  test("goes to another tab when the leader is silent", async () => {
    const id = gateway.enqueue();
    const first = await tabs.open();
    const second = await first.context().newPage();
    await second.clock.install();
    for (const page of [first, second]) {
      await follow(page);
      await eventually(async () => {
        if (page === second) await page.clock.runFor(50);
        assert.equal(await page.evaluate("feed.link"), "live");
      });
    }
    assert.equal(feeds().length, 1);
    await second.clock.runFor(60_000);
    await eventually(() => feeds().length === 2);
    await eventually(() => gateway.open === 1);
    gateway.append(id, "log", {});
    await knows(first, id, 2);
    await knows(second, id, 2);
  });
});

describe("logs", () => {
  /** @type {Gateway} */
  let gateway;
  /** @type {Recorder} */
  let recorder;
  before(async () => {
    gateway = await Gateway.start("sqlite");
    recorder = await Recorder.before(gateway);
  });
  after(async () => {
    await recorder?.stop();
    await gateway?.stop();
  });

  test("ten tabs with a job each: the next one still loads, at most three are streams, and all go on", async () => {
    const ids = await Promise.all(Array.from({ length: 10 }, () => gateway.track()));
    const first = await tabs.open();
    const pages = [first];
    while (pages.length < ids.length) pages.push(await first.context().newPage());
    for (const [index, page] of pages.entries()) {
      await page.goto(`${recorder.url}/jobs/${ids[index]}`);
      await shows(page, "#link", "Live", 5_000);
    }
    const held = recorder.open.filter((path) => path.includes("/events?"));
    assert.ok(held.filter((path) => path.includes("unnamed=1")).length === 3, String(held));
    assert.ok(held.filter((path) => path.includes("wait=")).length <= 1, String(held));
    await Promise.all(ids.map((id) => gateway.append(id, { type: "progress", data: { percent: 12 } })));
    for (const page of pages) await shows(page, ".head .far", "12 %", 10_000);
    await Promise.all(ids.map((id) => gateway.append(id, { type: "completed" })));
    for (const page of pages) await shows(page, ".badge", "Completed", 10_000);
    await eventually(() => recorder.open.filter((path) => path.includes("/events?")).length === 0);
  });
});
