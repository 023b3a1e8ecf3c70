// @ts-check
/**
 * A job watched to its end in a real browser, through real proxies as their packages behave: by the client module, by
 * the element in an app's page, and on the job page. Nothing is lost or doubled, and the transport is the best one that
 * gets through there.
 */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { eventually, Gateway, Tabs } from "./harness.mjs";
import { assertOnce, caddy, haproxy, nginx, Relay, varnish } from "./proxies.mjs";

const tabs = new Tabs();
/** @type {Gateway} */
let gateway;
/** @type {import("./proxies.mjs").Target} */
let target;
/** Everything that was started, to be ended. @type {{stop: () => Promise<void>}[]} */
const started = [];
before(async () => {
  await tabs.launch();
  gateway = await Gateway.start("sqlite");
  const { hostname, port } = new URL(gateway.url);
  target = { host: hostname, port: Number(port) };
});
after(async () => {
  await tabs.quit();
  for (const server of started.splice(0)) await server.stop();
  await gateway?.stop();
});

/**
 * @template {{stop: () => Promise<void>}} T
 * @param {Promise<T>} starting
 */
async function keep(starting) {
  const server = await starting;
  started.push(server);
  return server;
}

/**
 * A job with its three watchers behind an address.
 * @param {string} url
 */
async function watched(url) {
  const id = await gateway.track();
  let output = "";
  /** @param {string} text */
  const print = (text) => {
    output += text;
    return { type: "output", data: { text } };
  };
  await gateway.append(id, print("früh "));
  const page = await tabs.open({ ignoreHTTPSErrors: true });
  // Any page of the same origin does: this one has nothing of its own on it.
  await page.goto(`${url}/livez`);
  await page.evaluate(async (id) => {
    const { watch } = await import(/** @type {any} */ ("/client.js"));
    const seen = {
      snapshots: /** @type {number[]} */ ([]),
      covered: /** @type {[number, number][]} */ ([]),
      ended: /** @type {{transport: string, state: string, output: string} | null} */ (null),
    };
    const job = watch(`/v1/jobs/${id}`, {
      onSnapshot: (/** @type {any} */ state) => seen.snapshots.push(state.seq),
      onEvent: (/** @type {any} */ event) => seen.covered.push([event.from_seq ?? event.seq, event.seq]),
      onEnd: (/** @type {any} */ state) => {
        seen.ended = { transport: job.transport, state: state.state, output: job.output.text };
      },
    });
    Object.assign(window, { job, seen });
    document.body.innerHTML = `<milepost-job href="/v1/jobs/${id}"></milepost-job>`;
    await import(/** @type {any} */ ("/assets/client/job-element.js"));
  }, id);
  const jobPage = await page.context().newPage();
  await jobPage.goto(`${url}/jobs/${id}`);

  const seen = () => page.evaluate(() => /** @type {any} */ (window).seen);
  const transport = () => page.evaluate(() => /** @type {any} */ (window).job.transport);
  const element = page.locator("milepost-job");
  return {
    id, page, jobPage, transport,
    /** Appends events one by one, each when the one before has been seen: whoever keeps one back waits for ever. */
    async inStep(count = 5) {
      for (let index = 1; index <= count; index += 1) {
        const seq = await gateway.append(id, print(`step ${index}, ääh; `));
        await eventually(async () => {
          const { snapshots, covered } = await seen();
          assert.ok(Math.max(...snapshots, ...covered.flat()) >= seq, `${seq} is not there yet: ${JSON.stringify(covered)}`);
        }, 40_000);
      }
    },
    /** A flood, then the end; and everything is as the gateway has it. */
    async toTheEnd() {
      for (let burst = 0; burst < 10; burst += 1) {
        const events = Array.from({ length: 20 }, (_, index) =>
          index % 2 ? print(`${burst}.${index} € `) : { type: "progress", data: { percent: burst * 10 + index / 2 } });
        await gateway.append(id, ...events);
      }
      const last = await gateway.append(id, { type: "completed", data: { items: 1 } });
      await eventually(async () => assert.ok((await seen()).ended), 40_000);
      const { snapshots, covered, ended } = await seen();
      assertOnce(snapshots, covered, last);
      assert.deepEqual([ended.state, ended.output], ["completed", output]);
      const stored = await fetch(`${gateway.url}/v1/jobs/${id}/output`);
      assert.equal(await stored.text(), output);
      await eventually(async () => assert.equal(await element.locator("[part=state]").textContent(), "Completed"), 40_000);
      assert.equal(await element.locator("[part=output]").textContent(), output);
      await eventually(async () => assert.match(await jobPage.locator(".badge").first().innerText(), /Completed/), 40_000);
      assert.ok((await jobPage.locator("body").innerText()).includes(output.slice(-200).trim()));
      await page.context().close();
      return ended.transport;
    },
  };
}

describe("a job reaches its end", { concurrency: 4 }, () => {
  /**
   * @param {string} url
   * @returns {Promise<string>} the protocol that the browser spoke
   */
  async function byStream(url) {
    const job = await watched(url);
    const protocol = await job.page.evaluate(
      () => /** @type {PerformanceResourceTiming} */ (performance.getEntriesByType("navigation")[0]).nextHopProtocol,
    );
    await job.inStep();
    assert.equal(await job.toTheEnd(), "stream");
    return protocol;
  }

  test("by stream, through nginx: buffering, gzip for everything, TLS and HTTP/2", async () => {
    const { urls } = await keep(nginx(target));
    for (const name of ["http", "http gzip", "https"]) {
      assert.equal(await byStream(urls[name]), name === "https" ? "h2" : "http/1.1");
    }
  });

  test("by stream, through HAProxy", async () => {
    const { urls } = await keep(haproxy(target));
    await byStream(urls.http);
  });

  test("by stream, through Varnish", async () => {
    const { urls } = await keep(varnish(target));
    await byStream(urls.http);
  });

  test("by stream, through Caddy; by long-poll, where its `encode` gathers what it compresses", async () => {
    const { urls } = await keep(caddy(target));
    await byStream(urls.http);
    const job = await watched(urls["http encode"]);
    await eventually(async () => assert.equal(await job.transport(), "long-poll"), 20_000);
    await job.inStep();
    assert.equal(await job.toTheEnd(), "long-poll");
  });

  test("by long-poll, where whatever streams is held back until it has ended", async () => {
    const relay = await keep(Relay.before(target, { hold: true }));
    const job = await watched(relay.url);
    await eventually(async () => assert.equal(await job.transport(), "long-poll"), 20_000);
    await job.inStep();
    assert.equal(await job.toTheEnd(), "long-poll");
  });

  test("by long-poll, through an nginx that is deaf to the wish not to be buffered", async () => {
    const { urls } = await keep(nginx(target));
    const job = await watched(urls["http deaf"]);
    await eventually(async () => assert.equal(await job.transport(), "long-poll"), 20_000);
    await job.inStep();
    assert.equal(await job.toTheEnd(), "long-poll");
  });

  test("by polls, where nothing may take longer than a second and streams are held back", async () => {
    const relay = await keep(Relay.before(target, { hold: true, limitMs: 1_000 }));
    const job = await watched(relay.url);
    // What is cut could be an outage that is over: better ways are tried again in between, and one may bring the end.
    await eventually(async () => assert.equal(await job.transport(), "poll"), 40_000);
    await job.inStep(2);
    await job.toTheEnd();
  });

  test("by stream after stream, where each is cut after 15 s", async () => {
    const relay = await keep(Relay.before(target, { limitMs: 15_000 }));
    const job = await watched(relay.url);
    await job.inStep();
    // That of the module, of the element and of the job page.
    await eventually(() => relay.cuts >= 3, 60_000);
    await job.inStep();
    assert.equal(await job.toTheEnd(), "stream");
  });
});
