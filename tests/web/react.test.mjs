// @ts-check
/** The hooks on real React, in a document of jsdom, against a fake gateway over real HTTP. */
import assert from "node:assert/strict";
import { register } from "node:module";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { JSDOM } from "jsdom";
import { eventually, settle } from "./clock.mjs";
import { FakeGateway, problem } from "./fake-gateway.mjs";

// The module's peer is the app's; here it is the tests'.
register(`data:text/javascript,${encodeURIComponent(`
  export const resolve = (name, context, next) =>
    next(name, name === "react" ? { ...context, parentURL: ${JSON.stringify(import.meta.url)} } : context);
`)}`);

const dom = new JSDOM("<!doctype html><main></main>", { pretendToBeVisual: true });
Object.assign(globalThis, {
  window: dom.window, document: dom.window.document, IS_REACT_ACT_ENVIRONMENT: true,
  requestAnimationFrame: dom.window.requestAnimationFrame.bind(dom.window),
});
// Newer versions of Node have one of their own, which cannot be assigned.
Object.defineProperty(globalThis, "navigator", { value: dom.window.navigator, configurable: true });
const { act, createElement: h, StrictMode, useState } = await import("react");
const { createRoot } = await import("react-dom/client");
const { renderToString } = await import("react-dom/server");
const { useJob, useSubject } = await import("../../web/client/react.js");

/** @type {FakeGateway} */
let gateway;
/** @type {import("react-dom/client").Root[]} */
let roots = [];
/** @type {unknown[]} */
const complaints = [];

before(() => {
  console.error = (...words) => complaints.push(words);
});
beforeEach(async () => {
  gateway = await FakeGateway.start();
});
afterEach(async () => {
  await act(async () => roots.splice(0).forEach((root) => root.unmount()));
  await eventually(() => gateway.open === 0);
  await gateway.stop();
  assert.deepEqual(complaints.splice(0), []);
});
after(() => dom.window.close());

/** @param {import("react").ReactNode} node */
async function render(node) {
  const main = document.body.appendChild(document.createElement("main"));
  const root = createRoot(main);
  roots.push(root);
  await act(async () => root.render(node));
  return { root, main };
}

/**
 * Waits until the document says so; React is given its turn in between.
 * @param {Element} target
 * @param {RegExp} text
 */
async function shows(target, text) {
  await eventually(async () => {
    await act(async () => settle());
    return text.test(target.textContent ?? "");
  }).catch(() => assert.match(target.textContent ?? "", text));
}

/** @param {{url: string | null, options?: import("../../web/client/types.js").WatchOptions}} props */
function Card({ url, options }) {
  const { job, output, link, error } = useJob(url, options);
  return h("p", {}, `${link} ${job?.state ?? "nothing"} ${job?.progress?.percent ?? ""} ${output.text} ${error?.status ?? ""}`);
}

/** @param {string} id */
const urlOf = (id) => `${gateway.url}/v1/jobs/${id}`;

test("a job is state: what it is, what it says, how it ends; under StrictMode on one connection ever", async () => {
  const id = gateway.enqueue();
  const { main } = await render(h(StrictMode, null, h(Card, { url: urlOf(id) })));
  await shows(main, /^live queued/);
  gateway.append(id, "started", {});
  gateway.append(id, "progress", { percent: 42 });
  gateway.append(id, "output", { text: "früh" });
  await shows(main, /^live running 42 früh/);
  assert.deepEqual([gateway.count("any"), gateway.open], [1, 1]);
  gateway.append(id, "completed", {});
  await shows(main, /^ended completed/);
  assert.equal(gateway.count("any"), 1);
});

test("components that watch the same share a connection, which closes with the last", async () => {
  const id = gateway.enqueue();
  const card = () => h(Card, { url: urlOf(id) });
  const { root, main } = await render([h("div", { key: 1 }, card()), h("div", { key: 2 }, card())]);
  await shows(main, /^live queued.*live queued/);
  assert.equal(gateway.count("any"), 1);
  await act(async () => root.render([h("div", { key: 2 }, card())]));
  gateway.append(id, "started", {});
  await shows(main, /^live running/);
  assert.deepEqual([gateway.count("any"), gateway.open], [1, 1]);
  await act(async () => root.render(null));
  await eventually(() => gateway.open === 0);
  gateway.append(id, "progress", { percent: 1 });
  await settle();
  assert.equal(gateway.count("any"), 1);
});

test("a component that is mounted anew at once goes on with the same connection", async () => {
  const id = gateway.enqueue();
  const { root, main } = await render(h(Card, { key: 1, url: urlOf(id) }));
  await shows(main, /^live queued/);
  await act(async () => root.render(h(Card, { key: 2, url: urlOf(id) })));
  gateway.append(id, "started", {});
  await shows(main, /^live running/);
  assert.equal(gateway.count("any"), 1);
});

test("another address is another job; none is none", async () => {
  const [a, b] = [gateway.enqueue(), gateway.enqueue()];
  gateway.append(b, "started", {});
  const { root, main } = await render(h(Card, { url: null }));
  await shows(main, /^connecting nothing/);
  assert.equal(gateway.count("any"), 0);
  for (const [url, text] of /** @type {[string | null, RegExp][]} */ ([[urlOf(a), /^live queued/], [urlOf(b), /^live running/], [null, /^connecting nothing/]])) {
    await act(async () => root.render(h(Card, { url })));
    await shows(main, text);
    await eventually(() => gateway.open === (url ? 1 : 0));
  }
});

test("options made anew at each render open nothing anew; the newest token and callbacks are used", async () => {
  const id = gateway.enqueue();
  /** @type {string[]} */
  const told = [];
  let valid = "t0";
  gateway.intercept = ({ headers, response }) => headers.authorization !== `Bearer ${valid}` && problem(response, 401, "unauthorized");
  /** @type {(count: number) => void} */
  let rerender = () => {};
  function Counter() {
    const [count, setCount] = useState(0);
    rerender = setCount;
    return h(Card, { url: urlOf(id), options: { token: () => `t${count}`, onEvent: ({ type }) => void told.push(`${type} ${count}`) } });
  }
  const { main } = await render(h(Counter));
  await shows(main, /^live queued/);
  for (const count of [1, 2, 3]) await act(async () => rerender(count));
  assert.equal(gateway.count("any"), 1);
  gateway.append(id, "started", {});
  await shows(main, /^live running/);
  assert.deepEqual(told, ["started 3"]);
  valid = "t3";
  gateway.cut();
  gateway.append(id, "progress", { percent: 5 });
  await shows(main, /^live running 5/);
});

test("what stops it for good is state too", async () => {
  const { main } = await render(h(Card, { url: urlOf("0199-unknown") }));
  await shows(main, /^gone nothing.*404/);
});

test("a flood of events is drawn by frames", async () => {
  const id = gateway.enqueue();
  let renders = 0;
  function Counting() {
    renders += 1;
    return h(Card, { url: urlOf(id) });
  }
  const Inner = () => {
    renders += 1;
    return h("b", {}, String(useJob(urlOf(id)).job?.seq));
  };
  const { main } = await render(h("div", {}, h(Inner), h(Counting)));
  await shows(main, /live queued/);
  renders = 0;
  for (let percent = 1; percent <= 2_000; percent += 1) gateway.append(id, "log", { message: String(percent) });
  await shows(main, /^2001/);
  assert.ok(renders < 200, `${renders} renders for 2,000 events`);
});

test("a subject's job, and the next", async () => {
  const id = gateway.enqueue({ subject: "article:42" });
  const Subject = () => {
    const { job, link } = useSubject("article:42", { base: gateway.url, share: false });
    return h("p", {}, `${link} ${job?.kind} ${job?.state}`);
  };
  const { main } = await render(h(StrictMode, null, h(Subject)));
  await shows(main, /^live summarize queued/);
  assert.equal(gateway.open, 2);
  gateway.append(id, "expired", {});
  await shows(main, /expired/);
  gateway.enqueue({ subject: "article:42", kind: "translate" });
  await shows(main, /^live translate queued/);
});

test("on a server it is nothing yet, and asks nothing", () => {
  assert.equal(renderToString(h(Card, { url: urlOf("x") })), "<p>connecting nothing   </p>");
  assert.equal(gateway.count("any"), 0);
});
