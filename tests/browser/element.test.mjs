// @ts-check
/** `<milepost-job>` on an app's own page, in a real browser, with a real gateway beside the app. */
import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { FakeGateway, problem } from "../web/fake-gateway.mjs";
import { eventually, Gateway, Recorder, shows, Tabs } from "./harness.mjs";

const tabs = new Tabs();
before(() => tabs.launch());
afterEach(() => tabs.closeAll());
after(() => tabs.quit());

/** @param {string} body */
const app = (body) => `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>An app</title><script type="module" src="/assets/client/job-element.js"></script><main>${body}</main></html>`;

describe("beside a real gateway", () => {
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

  /**
   * A page of the app with the element on it.
   * @param {string} id
   * @param {string} [attributes]
   */
  async function open(id, attributes = "") {
    recorder.pages["/app"] = app(`<milepost-job href="/v1/jobs/${id}" ${attributes}><a href="/jobs/${id}">Progress</a></milepost-job>`);
    recorder.pages["/made"] = "<!doctype html><title>What the job made</title>";
    const page = await tabs.open();
    await page.goto(`${recorder.url}/app`);
    return page;
  }

  const streams = () => recorder.open.filter((path) => path.includes("/events?"));

  test("in mid-job after a reload it shows where the job stands, goes on live, and ends with what was made", async () => {
    const id = await gateway.track();
    await gateway.append(
      id,
      { type: "output", data: { text: "früh " } },
      { type: "progress", data: { current: 83, total: 200, unit: "pages", phase: "drafting", message: "page 83" } },
    );
    const page = await open(id);
    for (const _ of [1, 2]) {
      await shows(page, "[part=state]", "Running");
      await shows(page, "[part=amount]", "41.5 % · 83 of 200 pages");
      await shows(page, "[part=message]", "drafting: page 83");
      await shows(page, "[part=output]", "früh");
      await page.reload();
    }
    const bar = page.getByRole("progressbar", { name: "Progress" });
    await eventually(async () => assert.equal(await bar.getAttribute("aria-valuenow"), "41"));
    await gateway.append(id, { type: "output", data: { text: "spät" } }, { type: "progress", data: { percent: 100 } });
    await eventually(async () => assert.equal(await page.locator("[part=output]").textContent(), "früh spät"));
    await shows(page, "[part=amount]", "finishing");
    await shows(page, "[part=state]", /^Running$/);
    await gateway.append(id, { type: "completed", data: { items: 3, data: { rows: [] }, artifacts: [{ type: "url", label: "report", url: "https://example.org/r" }] } });
    await shows(page, "[part=state]", /^Completed$/);
    assert.equal(await page.getByRole("link", { name: "report" }).getAttribute("href"), "https://example.org/r");
    const result = await page.getByRole("link", { name: "Result data" }).getAttribute("href");
    assert.equal(new URL(result ?? "", page.url()).pathname, `/v1/jobs/${id}/result`);
    assert.equal(await page.getByRole("button").count(), 0);
    const asked = recorder.seen.length;
    await sleep(3_500);
    assert.deepEqual(recorder.seen.slice(asked), []);
    assert.deepEqual(streams(), []);
  });

  for (const signal of /** @type {const} */ (["SIGTERM", "SIGKILL"])) {
    test(`the gateway is restarted under it (${signal})`, async () => {
      const id = await gateway.track();
      await gateway.append(id, { type: "output", data: { text: "one " } });
      const page = await open(id);
      await shows(page, "[part=state]", "Running");
      await page.evaluate("window.untouched = true");
      await gateway.kill(signal);
      await shows(page, "[part=notice]", "Reconnecting");
      await gateway.start();
      await gateway.append(id, { type: "output", data: { text: "two" } }, { type: "progress", data: { percent: 50 } });
      await shows(page, "[part=amount]", "50 %", 30_000);
      assert.equal(await page.locator("[part=output]").textContent(), "one two");
      assert.equal(await page.locator("[part=notice]").isVisible(), false);
      assert.equal(await page.evaluate("window.untouched"), true);
      await gateway.append(id, { type: "failed", data: { code: "boom", message: "it broke" } });
      await shows(page, "[part=error]", "boom it broke");
      await shows(page, "[part=error]", id);
    });
  }

  test("what it opened it closes when it leaves the page, and opens once when it comes back", async () => {
    const id = await gateway.track();
    const page = await open(id);
    await eventually(() => streams().length === 1);
    await page.evaluate(() => {
      const element = /** @type {Element} */ (document.querySelector("milepost-job"));
      element.remove();
      Object.assign(window, { element });
    });
    await eventually(() => streams().length === 0);
    const asked = recorder.seen.length;
    await gateway.append(id, { type: "progress", data: { percent: 5 } });
    await sleep(1_500);
    assert.equal(recorder.seen.length, asked);
    await page.evaluate(() => {
      const { element } = /** @type {any} */ (window);
      const main = /** @type {Element} */ (document.querySelector("main"));
      // Moved three times, and with two attributes that change: one connection.
      for (const _ of [1, 2, 3]) main.append(element);
      element.setAttribute("base", "/x");
      element.setAttribute("credentials", "same-origin");
    });
    await shows(page, "[part=amount]", "5 %");
    await eventually(() => streams().length === 1);
  });

  test("close() of a watch really closes, in a browser too", async () => {
    const id = await gateway.track();
    recorder.pages["/app"] = app("");
    const page = await tabs.open();
    await page.goto(`${recorder.url}/app`);
    await page.evaluate(async (id) => {
      const { watch } = await import(/** @type {any} */ ("/client.js"));
      const calls = /** @type {unknown[]} */ ([]);
      const job = watch(`/v1/jobs/${id}`, { onState: calls.push.bind(calls), onLink: calls.push.bind(calls) });
      Object.assign(window, { job, calls });
      for await (const _ of job) return;
    }, id);
    await eventually(() => streams().length === 0);
    const calls = await page.evaluate("calls.length");
    await gateway.append(id, { type: "progress", data: { percent: 5 } });
    await sleep(1_500);
    assert.deepEqual(await page.evaluate("[job.link, calls.length]"), ["closed", calls]);
    assert.deepEqual(streams(), []);
  });

  test("queued, finished and really succeeded look different", async () => {
    /** @type {[string, string, Record<string, unknown> | null][]} */
    const ends = [
      ["Completed", "good", { items: 1 }],
      ["Completed, not ok", "warning", { ok: false, note: "nothing new" }],
      ["Completed, nothing found", "warning", { items: 0 }],
      ["Queued", "waiting", null],
    ];
    for (const [label, tone, outcome] of ends) {
      const { job } = await gateway.call("POST", "/v1/jobs", { kind: "import", tracked: outcome !== null });
      if (outcome) await gateway.append(job.id, { type: "completed", data: outcome });
      const page = await open(job.id);
      await shows(page, "[part=state]", label);
      assert.equal(await page.locator("[part=card]").getAttribute("data-tone"), tone);
    }
  });

  test("hostile text in every field stays text", async () => {
    const evil = `<img src=x onerror=pwn()><script>pwn()</script>"'><svg onload=pwn()>\u202e\u0007\u001b[31m`;
    const id = await gateway.track({ subject: evil.replace(/[\u0000-\u001f]/g, "") });
    const page = await tabs.open();
    await page.addInitScript("window.pwn = () => { window.pwned = true; }");
    recorder.pages["/app"] = app(`<milepost-job href="/v1/jobs/${id}"></milepost-job>`);
    await page.goto(`${recorder.url}/app`);
    const clean = async () => {
      assert.equal(await page.evaluate("window.pwned"), undefined);
      assert.equal(await page.locator("main img, main svg, main script, main iframe").count(), 0);
      assert.equal(await page.locator("a[href^=javascript], a[href^=data]").count(), 0);
    };
    await gateway.append(
      id,
      { type: "progress", data: { percent: 5, unit: evil, phase: evil, message: evil } },
      { type: "output", data: { text: evil } },
    );
    await shows(page, "[part=output]", "<img src=x onerror=pwn()>");
    await shows(page, "[part=message]", "<script>pwn()</script>");
    await clean();
    await gateway.append(id, { type: "completed", data: { ok: false, status: evil, note: evil, metrics: { [evil]: 1 }, artifacts: [{ label: evil, url: "https://example.org/<img/src=x/onerror=pwn()>" }] } });
    await shows(page, "[part=outcome]", "<svg onload=pwn()>");
    await clean();
    const failed = await gateway.track();
    await gateway.append(failed, { type: "failed", data: { code: "boom", message: evil, details: { [evil]: evil } } });
    recorder.pages["/app"] = app(`<milepost-job href="/v1/jobs/${failed}"></milepost-job><milepost-job href="javascript:pwn()//jobs/x"></milepost-job>`);
    await page.goto(`${recorder.url}/app`);
    await shows(page, "[part=error]", "<img src=x onerror=pwn()>");
    await clean();
  });

  test("on-complete: the page is loaded again once, when a job that was seen running succeeds", async () => {
    const id = await gateway.track();
    const page = await open(id, 'on-complete="reload"');
    await shows(page, "[part=state]", "Running");
    const loads = () => recorder.seen.filter(({ path }) => path === "/app").length;
    const before = loads();
    await gateway.append(id, { type: "completed" });
    await eventually(() => loads() === before + 1);
    await shows(page, "[part=state]", "Completed");
    await sleep(500);
    assert.equal(loads(), before + 1);
    // A failure and a warning are to be read.
    for (const end of [{ type: "failed", data: { code: "x" } }, { type: "completed", data: { ok: false } }]) {
      const other = await gateway.track();
      const second = await open(other, 'on-complete="reload"');
      await shows(second, "[part=state]", "Running");
      const now = loads();
      await gateway.append(other, end);
      await shows(second, "[part=result]", /x|not ok/);
      await sleep(300);
      assert.equal(loads(), now);
    }
  });

  test("on-complete: what was made is opened, unless the app prevents it", async () => {
    const made = { items: 1, artifacts: [{ label: "bad", url: "https://example.invalid/" }] };
    const id = await gateway.track();
    const page = await open(id, 'on-complete="open-artifact"');
    await page.route("https://example.invalid/", (route) => route.fulfill({ contentType: "text/html", body: "<title>What the job made</title>" }));
    await shows(page, "[part=state]", "Running");
    await gateway.append(id, { type: "completed", data: made });
    await page.waitForURL("https://example.invalid/");
    const other = await gateway.track();
    const second = await open(other, 'on-complete="open-artifact"');
    await shows(second, "[part=state]", "Running");
    await second.evaluate(() => document.addEventListener("job-end", (event) => event.preventDefault()));
    await gateway.append(other, { type: "completed", data: made });
    await shows(second, "[part=state]", "Completed");
    await sleep(300);
    assert.equal(second.url(), `${recorder.url}/app`);
  });

  test("cancel by keyboard asks first; where it is not allowed it is no longer offered", async () => {
    const id = await gateway.track();
    const page = await open(id);
    await page.getByRole("button", { name: "Cancel", exact: true }).press("Enter");
    await page.getByRole("button", { name: "Let it run" }).press("Enter");
    assert.equal(await page.evaluate("document.activeElement.shadowRoot.activeElement.textContent"), "Cancel");
    assert.equal((await gateway.call("GET", `/v1/jobs/${id}`)).cancel_requested, false);
    await page.getByRole("button", { name: "Cancel", exact: true }).press("Enter");
    await page.getByRole("button", { name: "Yes, cancel it" }).press("Enter");
    await shows(page, "[part=state]", "Cancelling");
    assert.equal(await page.getByRole("button").count(), 0);
    for (const status of [401, 403, 404]) {
      const other = await gateway.track();
      const second = await open(other);
      await second.route("**/cancel", (route) => route.fulfill({ status, contentType: "application/problem+json", body: "{}" }));
      await second.getByRole("button", { name: "Cancel", exact: true }).click();
      await second.getByRole("button", { name: "Yes, cancel it" }).click();
      await eventually(async () => assert.equal(await second.getByRole("button").count(), 0));
      await gateway.append(other, { type: "progress", data: { percent: 7 } });
      await shows(second, "[part=amount]", "7 %");
    }
    const plain = await open(await gateway.track(), "no-controls");
    await shows(plain, "[part=state]", "Running");
    assert.equal(await plain.getByRole("button").count(), 0);
  });

  test("a job that failed is tried again with one key, however often that is sent, and followed on", async () => {
    const { job } = await gateway.call("POST", "/v1/jobs", { kind: "import", queue: "retry", delay_ms: 3_600_000 });
    await gateway.call("POST", `/v1/jobs/${job.id}/cancel`, {});
    const page = await open(job.id);
    await shows(page, "[part=state]", "Cancelled");
    /** @type {(string | null)[]} */
    const keys = [];
    let fail = true;
    await page.route("**/retry", async (route) => {
      keys.push(await route.request().headerValue("idempotency-key"));
      return fail ? route.fulfill({ status: 502, body: "bad gateway" }) : route.continue();
    });
    await page.getByRole("button", { name: "Try again" }).click();
    await shows(page, "[part=notice]", "Not tried again: the gateway answered 502");
    fail = false;
    await page.getByRole("button", { name: "Try again" }).click();
    await shows(page, "[part=state]", "Queued");
    assert.equal(await page.getByRole("button", { name: "Try again" }).count(), 0);
    assert.deepEqual([keys.length, new Set(keys).size], [2, 1]);
    assert.ok((keys[0] ?? "").length >= 16);
    await gateway.call("POST", "/v1/claims", { worker: "w", queues: ["retry"] });
    await shows(page, "[part=state]", "Running");
  });

  test("one polite live region, that says what matters", async () => {
    const id = await gateway.track();
    const page = await open(id);
    await shows(page, "[part=state]", "Running");
    assert.equal(await page.locator("[aria-live=polite], [role=alert]").count(), 1);
    await page.evaluate(() => {
      const region = /** @type {Element} */ (document.querySelector("milepost-job")?.shadowRoot?.querySelector("[role=status]"));
      const said = /** @type {string[]} */ ([]);
      new MutationObserver(() => said.push(region.textContent ?? "")).observe(region, { childList: true });
      Object.assign(window, { said });
    });
    for (let percent = 1; percent <= 90; percent += 1) await gateway.append(id, { type: "progress", data: { percent } });
    await gateway.append(id, { type: "completed", data: { ok: false } });
    await shows(page, "[part=state]", "not ok");
    assert.deepEqual(await page.evaluate("said"), ["Half-way", "Completed, not ok"]);
  });

  test("every text can be read, in light and dark, and themed from outside; nothing moves for who wants no motion", async () => {
    const id = await gateway.track();
    const page = await open(id);
    await shows(page, "[part=state]", "Running");
    for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
      await page.emulateMedia({ colorScheme, reducedMotion: "no-preference" });
      const ratios = await page.evaluate(contrasts);
      assert.ok(Object.keys(ratios).length >= 8);
      for (const [what, ratio] of Object.entries(ratios)) assert.ok(ratio >= 4.5, `${what} in ${colorScheme}: ${ratio.toFixed(2)}`);
    }
    const motion = () => page.locator("[part=fill]").evaluate((fill) => getComputedStyle(fill).animationName);
    assert.equal(await motion(), "sweep");
    await page.emulateMedia({ reducedMotion: "reduce" });
    assert.equal(await motion(), "none");
    await page.addStyleTag({ content: "milepost-job { --milepost-ground: rgb(1, 2, 3) } milepost-job::part(title) { color: rgb(4, 5, 6) }" });
    assert.equal(await page.locator("[part=card]").evaluate((card) => getComputedStyle(card).backgroundColor), "rgb(1, 2, 3)");
    assert.equal(await page.locator("[part=title]").evaluate((title) => getComputedStyle(title).color), "rgb(4, 5, 6)");
  });
});

/** Runs in the page: the contrast of each tone's badge and of the plain text on the card. */
function contrasts() {
  const root = /** @type {ShadowRoot} */ (document.querySelector("milepost-job")?.shadowRoot);
  const card = /** @type {Element} */ (root.querySelector("[part=card]"));
  const badge = /** @type {HTMLElement} */ (root.querySelector("[part=state]"));
  const context = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  /** @param {string[]} layers colours painted one over the other */
  const luminance = (layers) => {
    for (const color of layers) {
      context.fillStyle = color;
      context.fillRect(0, 0, 1, 1);
    }
    const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  /** @param {Element} element */
  const ratio = (element) => {
    const ground = [getComputedStyle(card).backgroundColor, getComputedStyle(element).backgroundColor];
    const [dark, light] = [luminance(ground), luminance([...ground, getComputedStyle(element).color])].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  /** @type {Record<string, number>} */
  const ratios = {};
  for (const part of ["title", "words", "amount"]) ratios[part] = ratio(/** @type {Element} */ (root.querySelector(`[part=${part}]`)));
  for (const tone of ["waiting", "active", "good", "warning", "bad", "ended"]) {
    badge.setAttribute("data-tone", tone);
    ratios[tone] = ratio(badge);
  }
  return ratios;
}

describe("before a fake gateway", () => {
  /** @type {FakeGateway} */
  let gateway;
  before(async () => {
    gateway = await FakeGateway.start();
  });
  afterEach(() => {
    gateway.intercept = () => false;
    gateway.asked.length = 0;
  });
  after(() => gateway?.stop());

  test("the credential is the attribute's, the property's, or the fragment's of a page's address", async () => {
    const id = gateway.enqueue();
    gateway.append(id, "started", {});
    gateway.intercept = ({ headers, response }) => !/^Bearer (one|two|three)$/.test(headers.authorization ?? "") && problem(response, 401, "unauthorized");
    gateway.pages["/page"] = app(`<milepost-job id="a" href="/v1/jobs/${id}" token="one"></milepost-job>
      <milepost-job id="b" href="/v1/jobs/${id}"></milepost-job><milepost-job id="c" href="/jobs/${id}#token=three"></milepost-job>`);
    const page = await tabs.open();
    await page.goto(`${gateway.url}/page`);
    await shows(page, "#a [part=state]", "Running");
    await shows(page, "#c [part=state]", "Running");
    // Without one: said, and left alone.
    await shows(page, "#b [part=notice]", "Not allowed: sign in again");
    const refused = () => gateway.asked.filter(({ headers, url }) => url.startsWith("/v1/") && headers.authorization === undefined).length;
    assert.equal(refused(), 1);
    await page.evaluate(() => {
      /** @type {any} */ (document.getElementById("b")).token = async () => "two";
    });
    await shows(page, "#b [part=state]", "Running");
    assert.equal(refused(), 1);
    // Set before the class is known, as frameworks do.
    gateway.pages["/page"] = `<!doctype html><milepost-job></milepost-job><script>
      Object.assign(document.querySelector("milepost-job"), { href: "/v1/jobs/${id}", token: () => "one" });
      import("/assets/client/job-element.js");</script>`;
    const early = await tabs.open();
    await early.goto(`${gateway.url}/page`);
    await shows(early, "[part=state]", "Running");
    assert.equal(refused(), 1);
    await page.locator("#c").getByRole("button", { name: "Cancel", exact: true }).click();
    await page.locator("#c").getByRole("button", { name: "Yes, cancel it" }).click();
    await shows(page, "#c [part=state]", "Cancelling");
    assert.equal(gateway.asked.find(({ method }) => method === "POST")?.headers.authorization, "Bearer three");
  });

  test("a page that knows only its subject finds the job again after a reload, and the next one", async () => {
    const id = gateway.enqueue({ subject: "article:42" });
    gateway.append(id, "started", {});
    gateway.append(id, "output", { text: "früh" });
    gateway.pages["/page"] = app(`<milepost-job subject="article:42"></milepost-job>`);
    const page = await tabs.open();
    await page.goto(`${gateway.url}/page`);
    await shows(page, "[part=output]", "früh");
    await page.reload();
    await shows(page, "[part=output]", "früh");
    gateway.append(id, "completed", { items: 1 });
    await shows(page, "[part=state]", "Completed");
    gateway.enqueue({ subject: "article:42", kind: "translate" });
    await shows(page, "[part=title]", "translate");
    await shows(page, "[part=state]", "Queued");
    await page.evaluate(() => document.querySelector("milepost-job")?.remove());
    await eventually(() => gateway.open === 0);
  });

  test("an address that is none is said, and no request is made", async () => {
    gateway.pages["/page"] = app(`<milepost-job href="/v1/queues/x"></milepost-job><milepost-job></milepost-job>`);
    const page = await tabs.open();
    await page.goto(`${gateway.url}/page`);
    await shows(page, "[part=notice]", "not the address of a job");
    assert.deepEqual(gateway.lines.filter((line) => line.includes("/v1/")), []);
  });
});
