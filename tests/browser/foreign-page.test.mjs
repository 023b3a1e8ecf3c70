// @ts-check
/**
 * The gateway without keys against the web: any page that somebody visits can send requests to this machine. A page of
 * another origin, and one whose host name was rebound to the loopback address, can neither read nor write.
 */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Gateway, launchChromium, otherSite, Recorder, STORES } from "./harness.mjs";

const HOSTILE = "<!doctype html><title>hostile</title><body>";

/**
 * Runs in the hostile page: tries everything that a page can do, and tells what it got to read.
 * @param {{gateway: string, id: string, doomed: string}} target
 */
async function attack({ gateway, id, doomed }) {
  /** @type {Record<string, string>} */
  const told = {};
  /**
   * @param {string} name
   * @param {() => Promise<unknown>} attempt
   */
  const attempt = async (name, attempt) => {
    told[name] = await Promise.race([
      attempt().then(String, (error) => `refused: ${error.name}`),
      new Promise((resolve) => setTimeout(() => resolve("refused: silence"), 3000)),
    ]);
  };
  const spec = JSON.stringify({ kind: "evil", tracked: true });
  const event = JSON.stringify({ type: "completed" });
  const reason = JSON.stringify({ reason: "evil" });
  /** @param {Response} response */
  const read = async (response) => `${response.type} ${response.status} ${await response.text()}`;

  // Reading.
  for (const path of ["/v1/jobs", `/v1/jobs/${id}`, `/v1/jobs/${id}/output`, `/v1/jobs/${id}/events`, "/", "/openapi.json", "/readyz"]) {
    await attempt(`read ${path}`, () => fetch(gateway + path).then(read));
    await attempt(`read ${path} with credentials`, () => fetch(gateway + path, { credentials: "include" }).then(read));
    await attempt(`read ${path} opaque`, () => fetch(gateway + path, { mode: "no-cors" }).then(read));
  }
  await attempt("EventSource", () => new Promise((resolve, reject) => {
    const source = new EventSource(`${gateway}/v1/jobs/${id}/events?unnamed=1`);
    source.onmessage = ({ data }) => resolve(`event ${data}`);
    source.addEventListener("state", ({ data }) => resolve(`event ${data}`));
    source.onerror = () => {
      source.close();
      reject(new Error("error"));
    };
  }));
  await attempt("script tag", () => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${gateway}/v1/jobs`;
    script.onload = () => resolve("loaded");
    script.onerror = () => reject(new Error("error"));
    document.head.append(script);
  }));

  // Writing: with and without a preflight, with every content type that needs none.
  /** @type {[string, string, string][]} */
  const writes = [
    ["POST", "/v1/jobs", spec],
    ["POST", "/v1/jobs/batch", `{"jobs":[${spec}]}`],
    ["POST", `/v1/jobs/${id}/events`, event],
    ["POST", `/v1/jobs/${id}/cancel`, reason],
    ["POST", `/v1/jobs/${id}/cancel`, ""],
    ["POST", `/v1/jobs/${doomed}/retry`, ""],
    ["DELETE", `/v1/jobs/${doomed}`, ""],
    ["PATCH", "/v1/queues/default", '{"concurrency":1}'],
    ["POST", "/v1/queues/default/pause", "{}"],
  ];
  const types = ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", null];
  for (const [method, path, body] of writes) {
    for (const type of types) {
      for (const mode of /** @type {const} */ (["cors", "no-cors"])) {
        // A Blob without a type sends no Content-Type at all.
        const init = { method, mode, body: type === null ? new Blob([body]) : body, headers: type ? { "content-type": type } : undefined };
        await attempt(`${method} ${path} ${body} ${type} ${mode}`, () => fetch(gateway + path, init).then(read));
      }
    }
    if (method === "POST") {
      navigator.sendBeacon(gateway + path, body);
      navigator.sendBeacon(gateway + path, new Blob([body], { type: "text/plain" }));
    }
  }
  // Forms need no script's leave to go elsewhere; one encoding can carry JSON.
  for (const [method, path, body] of writes) {
    if (method !== "POST") continue;
    for (const enctype of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) {
      await attempt(`form ${path} ${enctype}`, () => new Promise((resolve) => {
        const frame = document.createElement("iframe");
        frame.name = `frame-${Math.random()}`;
        const form = document.createElement("form");
        Object.assign(form, { action: gateway + path, method: "post", enctype, target: frame.name });
        const [name, value] = body ? [`${body.slice(0, -1)},"meta":{"a":"`, '"}}'] : ["", ""];
        const field = document.createElement("input");
        Object.assign(field, { name, value });
        form.append(field);
        document.body.append(frame, form);
        frame.onload = () => resolve(frame.contentDocument?.body.innerText.includes("evil") ? "read" : "");
        form.submit();
      }));
    }
  }
  // A sandboxed frame has the origin `null`.
  await attempt("sandbox", () => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts allow-forms");
    frame.srcdoc = `<script>
      const init = { method: "POST", mode: "no-cors", body: ${JSON.stringify(spec)} };
      Promise.allSettled([
        fetch(${JSON.stringify(gateway)} + "/v1/jobs", init),
        fetch(${JSON.stringify(gateway)} + "/v1/jobs", { ...init, body: new Blob([init.body]) }),
        fetch(${JSON.stringify(gateway)} + "/v1/jobs").then((r) => r.text()),
      ]).then((all) => parent.postMessage(String(all[2].value), "*"));
    </script>`;
    addEventListener("message", ({ data }) => resolve(data), { once: true });
    document.body.append(frame);
  }));
  return told;
}

/**
 * Everything a stranger could have changed.
 * @param {Gateway} gateway
 * @returns {Promise<any[]>}
 */
async function everything(gateway) {
  const { jobs } = await gateway.call("GET", "/v1/jobs?limit=200");
  return jobs;
}

for (const store of STORES) {
  describe(`on ${store}`, () => {
    /** @type {Gateway} */
    let gateway;
    /** What the attack can reach: the gateway, and a record of what got there. @type {Recorder} */
    let recorder;
    /** @type {{gateway: string, id: string, doomed: string}} */
    let target;
    /** @type {any[]} */
    let untouched;
    before(async () => {
      gateway = await Gateway.start(store);
      recorder = await Recorder.before(gateway);
      recorder.pages["/hostile"] = HOSTILE;
      const id = await gateway.track({ subject: "secret-subject" });
      await gateway.append(id, { type: "output", data: { text: "secret-output" } });
      const doomed = await gateway.track({ subject: "secret-subject" });
      await gateway.append(doomed, { type: "failed", data: { code: "secret-code" } });
      target = { gateway: recorder.url, id, doomed };
      untouched = await everything(gateway);
      assert.equal(untouched.length, 2);
    });
    after(async () => {
      await recorder?.stop();
      await gateway?.stop();
    });

    /**
     * @param {Record<string, string>} told
     */
    async function nothingHappened(told) {
      assert.ok(Object.keys(told).length > 100, "the attack was cut short");
      for (const [attempt, answer] of Object.entries(told)) {
        assert.doesNotMatch(answer, /secret|^event |^loaded$|^read$|^(basic|cors) 2/, attempt);
      }
      const { length } = recorder.seen.filter(({ method, status }) => method === "POST" && status === 403);
      assert.ok(length > 50, `only ${length} writes got as far as the gateway`);
      recorder.seen = [];
      assert.deepEqual(await everything(gateway), untouched);
    }

    test("the attack works where nothing stands in its way", async () => {
      // From the gateway's own origin: if this read and wrote nothing, the tests below would prove nothing.
      const own = await Gateway.start(store);
      const browser = await launchChromium();
      try {
        const id = await own.track({ subject: "secret-subject" });
        const doomed = await own.track();
        await own.append(doomed, { type: "failed", data: { code: "secret-code" } });
        const page = await browser.newPage({ bypassCSP: true });
        await page.goto(`${own.url}/`);
        const told = await page.evaluate(attack, { gateway: own.url, id, doomed });
        assert.match(told["read /v1/jobs"], /^basic 200 .*secret-subject/);
        assert.match(told["EventSource"], /^event /);
        const jobs = await everything(own);
        assert.ok(jobs.some(({ kind }) => kind === "evil"), "nothing was enqueued");
        assert.equal(jobs.find((job) => job.id === id).state, "completed");
        assert.ok(!jobs.some((job) => job.id === doomed), "nothing was deleted");
      } finally {
        await browser.close();
        await own.stop();
      }
    });

    test("a page of another origin can neither read nor write", async () => {
      const site = await otherSite((_, response) => {
        response.writeHead(200, { "content-type": "text/html" }).end(HOSTILE);
      });
      const browser = await launchChromium();
      try {
        const page = await browser.newPage();
        await page.goto(site.url);
        await nothingHappened(await page.evaluate(attack, target));
        // The same machine under its other name is another origin too.
        await page.goto(site.url.replace("127.0.0.1", "localhost"));
        await nothingHappened(await page.evaluate(attack, target));
      } finally {
        await browser.close();
        site.stop();
      }
    });

    test("a host name rebound to the loopback address can neither read nor write", async () => {
      const browser = await launchChromium(["--host-resolver-rules=MAP evil.test 127.0.0.1"]);
      try {
        const page = await browser.newPage();
        // The attacker's server gave the page before the name was pointed here: now it is of one origin with us.
        const rebound = recorder.url.replace("127.0.0.1", "evil.test");
        await page.goto(`${rebound}/hostile`);
        const told = await page.evaluate(attack, { ...target, gateway: rebound });
        assert.match(told["read /v1/jobs"], /^basic 403 /);
        await nothingHappened(told);
      } finally {
        await browser.close();
      }
    });

    test("another page cannot frame the gateway's", async () => {
      // A click on "Cancel job" under a transparent frame would be a write.
      const site = await otherSite((_, response) => {
        response.writeHead(200, { "content-type": "text/html" }).end(`<!doctype html><iframe src="${gateway.url}/jobs/${target.id}"></iframe>`);
      });
      const browser = await launchChromium();
      try {
        const page = await browser.newPage();
        await page.goto(site.url, { waitUntil: "networkidle" });
        const framed = page.frames().find((frame) => frame !== page.mainFrame());
        assert.equal(await framed?.locator("main").count(), 0);
      } finally {
        await browser.close();
        site.stop();
      }
    });
  });
}
