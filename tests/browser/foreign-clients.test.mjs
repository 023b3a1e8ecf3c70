// @ts-check
/**
 * SSE clients that other people wrote, without a line of ours: whatever cuts the stream, each ends with every event of
 * the log once, and stops asking when the job has ended.
 */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { EventSource } from "eventsource";
import { eventually, Gateway, launchChromium, Recorder, STORES } from "./harness.mjs";

/** @typedef {{ended: boolean, seqs: number[]}} Reading seqs as they were covered, in the order of arrival */
/** @typedef {{reading: () => Promise<Reading>, stop: () => Promise<void>}} Client */

const TYPES = ["queued", "started", "progress", "output", "log", "user.step", "completed", "end", "bye", "ping", "state", "reset"];

/**
 * The seqs that log frames stand for: merged output covers `from_seq…seq`.
 * @param {{type?: string, seq?: number, from_seq?: number}[]} frames
 */
function covered(frames) {
  return frames.flatMap(({ seq, from_seq: from }) =>
    seq === undefined ? [] : Array.from({ length: seq - (from ?? seq) + 1 }, (_, index) => (from ?? seq) + index));
}

/**
 * That these are 1…n, each once, in order. Says where it breaks: a list that goes wrong may be endless.
 * @param {number[]} seqs
 * @param {number} last
 * @param {string} name
 */
function assertEachOnce(seqs, last, name) {
  const wrong = seqs.findIndex((seq, index) => seq !== index + 1);
  assert.equal(wrong, -1, `${name}: after ${wrong} events came ${seqs.slice(Math.max(0, wrong - 2), wrong + 3)}`);
  assert.equal(seqs.length, last, name);
}

/**
 * Chromium's own.
 * @param {import("playwright-core").Browser} browser
 * @param {string} origin
 * @param {string} url
 * @returns {Promise<Client>}
 */
async function chromiumClient(browser, origin, url) {
  const page = await browser.newPage({ bypassCSP: true });
  await page.goto(`${origin}/openapi.json`);
  await page.evaluate(({ url, types }) => {
    const all = /** @type {any} */ (window);
    all.frames_ = [];
    const source = (all.source = new EventSource(url));
    for (const type of types) source.addEventListener(type, ({ data, type }) => all.frames_.push({ type, data }));
  }, { url, types: TYPES });
  return {
    async reading() {
      const { frames, closed } = await page.evaluate(() => {
        const { frames_, source } = /** @type {any} */ (window);
        return { frames: frames_, closed: source.readyState === EventSource.CLOSED };
      });
      return { ended: closed, seqs: covered(logFrames(frames)) };
    },
    stop: () => page.close(),
  };
}

/**
 * The `eventsource` package.
 * @param {string} url
 * @returns {Client}
 */
function packageClient(url) {
  /** @type {{type: string, data: string}[]} */
  const frames = [];
  const source = new EventSource(url);
  for (const type of TYPES) source.addEventListener(type, ({ data, type }) => frames.push({ type, data }));
  return {
    reading: async () => ({ ended: source.readyState === EventSource.CLOSED, seqs: covered(logFrames(frames)) }),
    stop: async () => source.close(),
  };
}

/**
 * `curl -N` in a loop, as a shell script would: again with the last id until the answer is 204.
 * @param {string} url
 * @returns {Client}
 */
function curlClient(url) {
  /** @type {{type: string, data: string}[]} */
  const frames = [];
  let ended = false;
  let stopped = false;
  let last = "";
  /** @type {import("node:child_process").ChildProcess | undefined} */
  let curl;
  const loop = (async () => {
    while (!ended && !stopped) {
      curl = spawn("curl", [
        "-sN", "-w", "\n\nevent: status\ndata: %{http_code}\n\n", "-H", "Accept: text/event-stream",
        ...(last ? ["-H", `Last-Event-ID: ${last}`] : []), url,
      ], { stdio: ["ignore", "pipe", "inherit"] });
      const closed = once(curl, "close");
      let text = "";
      for await (const chunk of /** @type {import("node:stream").Readable} */ (curl.stdout).setEncoding("utf8")) {
        text += chunk;
        let end;
        while ((end = text.indexOf("\n\n")) >= 0) {
          const lines = text.slice(0, end).split("\n");
          text = text.slice(end + 2);
          const field = (/** @type {string} */ name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
          last = field("id") ?? last;
          const [type, data] = [field("event"), field("data")];
          if (type === "status") ended = data === "204";
          else if (type && data) frames.push({ type, data });
        }
      }
      await closed;
      if (!ended && !stopped) await sleep(100);
    }
  })();
  return {
    reading: async () => ({ ended, seqs: covered(logFrames(frames)) }),
    async stop() {
      stopped = true;
      curl?.kill();
      await loop;
    },
  };
}

/** @param {{type: string, data: string}[]} frames */
function logFrames(frames) {
  return frames
    .filter(({ type }) => !["end", "bye", "ping", "state", "reset"].includes(type))
    .map(({ data }) => JSON.parse(data));
}

for (const store of STORES) {
  // Together: most of the time is spent waiting for clients that were told to come back later.
  describe(`on ${store}`, { concurrency: true }, () => {
    /** @type {import("playwright-core").Browser} */
    let browser;
    before(async () => {
      browser = await launchChromium();
    });
    after(() => browser?.close());

    /**
     * Posts events to one job while something keeps cutting its streams, and lets every client read them all.
     * @param {Gateway} gateway
     * @param {(id: string) => Promise<void>} play appends events and makes trouble
     */
    async function everybodySeesEverythingOnce(gateway, play) {
      const recorders = await Promise.all([1, 2, 3].map(() => Recorder.before(gateway)));
      /** @type {Client[]} */
      const clients = [];
      try {
        const id = await gateway.track();
        const urls = recorders.map(({ url }) => `${url}/v1/jobs/${id}/events?after=0`);
        clients.push(await chromiumClient(browser, recorders[0].url, urls[0]), packageClient(urls[1]), curlClient(urls[2]));
        const names = ["chromium", "eventsource", "curl"];
        await play(id);
        const seq = await gateway.append(id, { type: "completed" });
        for (const [index, client] of clients.entries()) {
          await eventually(async () => assertEachOnce((await client.reading()).seqs, seq, names[index]), 30_000);
          await eventually(async () => assert.ok((await client.reading()).ended, `${names[index]} has stopped`), 15_000);
          const { streams } = recorders[index];
          assert.equal(streams.at(-1)?.status, 204, names[index]);
          assert.equal(streams.at(-1)?.lastEventId, String(seq), names[index]);
          assert.ok(streams.length >= 3, `${names[index]} was cut: ${streams.length} requests`);
        }
        // Nobody asks again, and nobody has seen anything twice since.
        const asked = recorders.map(({ seen }) => seen.length);
        await sleep(3_500);
        assert.deepEqual(recorders.map(({ seen }) => seen.length), asked);
        for (const [index, client] of clients.entries()) assertEachOnce((await client.reading()).seqs, seq, names[index]);
      } finally {
        for (const client of clients) await client.stop();
        for (const recorder of recorders) await recorder.stop();
      }
    }

    /**
     * @param {Gateway} gateway
     * @param {string} id
     * @param {number} count
     */
    async function post(gateway, id, count) {
      for (let index = 0; index < count; index += 1) {
        await gateway.append(
          id,
          { type: "output", data: { text: `${index} ` } },
          { type: "output", data: { text: "\u2028\r\n€" } },
          { type: "progress", data: { current: index, total: 1000 } },
          { type: "user.step", data: { index } },
        );
        await sleep(10);
      }
    }

    for (const signal of /** @type {const} */ (["SIGTERM", "SIGKILL"])) {
      test(`over restarts of the gateway (${signal})`, async () => {
        const gateway = await Gateway.start(store, ["--drain-ms", "500"]);
        try {
          await everybodySeesEverythingOnce(gateway, async (id) => {
            await post(gateway, id, 20);
            await gateway.kill(signal);
            await gateway.start();
            await post(gateway, id, 20);
          });
        } finally {
          await gateway.stop();
        }
      });
    }

    test("over streams that reach their maximum age", async () => {
      const gateway = await Gateway.start(store, ["--stream-max-age-ms", "1000"]);
      try {
        await everybodySeesEverythingOnce(gateway, async (id) => {
          for (let second = 0; second < 6; second += 1) {
            await post(gateway, id, 10);
            await sleep(700);
          }
        });
      } finally {
        await gateway.stop();
      }
    });

    test("a fresh EventSource on a finished job sees the state, and asks once more at most", async () => {
      const gateway = await Gateway.start(store);
      const recorder = await Recorder.before(gateway);
      try {
        const id = await gateway.track();
        await gateway.append(id, { type: "output", data: { text: "done" } }, { type: "completed" });
        const page = await browser.newPage({ bypassCSP: true });
        await page.goto(`${recorder.url}/openapi.json`);
        const told = await page.evaluate((url) => new Promise((resolve) => {
          /** @type {[string, any][]} */
          const frames = [];
          const source = new EventSource(url);
          for (const type of ["state", "output", "end"]) {
            source.addEventListener(type, ({ data, type }) => frames.push([type, JSON.parse(data)]));
          }
          source.onerror = () => source.readyState === EventSource.CLOSED && resolve(frames);
        }), `${recorder.url}/v1/jobs/${id}/events`).then((frames) => /** @type {[string, any][]} */ (frames));
        assert.deepEqual(told.map(([type]) => type), ["state", "output", "end"]);
        assert.equal(told[0][1].state, "completed");
        assert.deepEqual(told[1][1].data, { offset: 0, text: "done" });
        assert.deepEqual(told[2][1], { state: "completed" });
        await sleep(3_500);
        const streams = recorder.seen.filter(({ path }) => path.endsWith("/events"));
        assert.deepEqual(streams.map(({ status }) => status), [200, 204]);
        await page.close();
      } finally {
        await recorder.stop();
        await gateway.stop();
      }
    });
  });
}
