#!/usr/bin/env node
/*
 * A concierge for a language model, as people run it on three AMQP queues (request, reply, cancel), on Milepost.
 * Node 18.17, no packages.
 *
 *   request queue, prefetch 1, ack     POST /v1/jobs; a worker claims one at a time and holds its lease
 *   reply queue, correlation id        the job's log: `output` events, streamed to the page, and there again on a reload
 *   cancel queue, or fanout exchange   POST /v1/jobs/ID/cancel: it waits behind nothing. What waits is cancelled at once;
 *                                      what runs hears it in its held heartbeat, and the generation stops in mid-token
 *   x-message-ttl                      `ttl_ms`: what nobody has started in time expires, and is never generated
 *   (the client went, nobody noticed)  `cancel_if_unwatched_ms`: once the last page has gone that long, it is cancelled
 *   queue.purge() on start             `milepost serve --purge-on-start chat`, or PURGE=1 here: POST /v1/queues/Q/purge
 *   one consumer time-out for all      two queues with defaults of their own: `chat` for light, `report` for heavy jobs
 *   broker credentials in the page     none: MILEPOST_URL and MILEPOST_KEY stay in these processes; pages ask the app, the
 *                                      app asks the gateway, and passes the stream on as it comes. A job may be seen and
 *                                      stopped by whoever knows its id, which cannot be guessed
 *
 * Run it, with a gateway (`milepost serve`) on 127.0.0.1:8080, and open http://127.0.0.1:3000:
 *
 *   node amqp_concierge.mjs worker &
 *   node amqp_concierge.mjs web
 */

import { randomUUID } from "node:crypto";
import http from "node:http";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";

const { MILEPOST_URL = "http://127.0.0.1:8080", MILEPOST_KEY, PORT = 3000, LEASE_MS = 30_000, TOKEN_MS = 60 } = process.env;
const { TTL_MS = 60_000, UNWATCHED_MS = 10_000, PURGE } = process.env;

/** How long a job of each queue may take, and wait. What takes longer is cut off. */
const QUEUES = {
  chat: { defaults: { timeout_ms: 60_000, ttl_ms: Number(TTL_MS), max_attempts: 1 } },
  report: { defaults: { timeout_ms: 1_800_000, ttl_ms: 10 * TTL_MS, max_attempts: 2 }, concurrency: 2 },
};

const authority = MILEPOST_KEY ? { Authorization: `Bearer ${MILEPOST_KEY}` } : {};

/** What the gateway says. The key makes it safe to repeat a request until there is an answer, or the signal ends it. */
async function ask(method, route, body, { lease, key = randomUUID(), signal } = {}) {
  const headers = { "Content-Type": "application/json", ...authority };
  if (lease) headers["Lease-Token"] = lease;
  if (method === "POST" && body.length !== 0) headers["Idempotency-Key"] = key;
  for (;;) {
    const request = { method, headers, body: body && JSON.stringify(body), signal };
    const answer = await fetch(MILEPOST_URL + route, request).catch(() => null);
    const said = await answer?.json().catch(() => null); // Neither: the gateway is away, or restarts.
    const passing = answer?.status === 429 || said?.code === "idempotency_in_flight";
    if (said && answer.status < 500 && !passing) return { ok: answer.ok, status: answer.status, said };
    signal?.throwIfAborted();
    console.error(`no answer from ${MILEPOST_URL} yet`);
    await sleep(1000, undefined, { signal });
  }
}

// --- The worker ------------------------------------------------------------------------------------------------

/** A stand-in for the model. A real one gets the signal, too: to close the request is what stops the generation. */
async function* generate(prompt, tokens, signal) {
  const words = prompt.split(/\s+/);
  for (let n = 0; n < tokens; n++) {
    await sleep(Number(TOKEN_MS), undefined, { signal });
    yield `${words[n % words.length]} `;
  }
}

/** The work itself: tokens out as they come. What it returns is the Outcome. */
async function answerPrompt({ prompt, tokens }, append, signal, count) {
  let text = "";
  let sending = null;
  let refused = null;
  // One append at a time: what is generated in the meantime leaves with the next, so that a slow network slows nothing.
  const send = async () => {
    while (text) {
      const data = { text };
      text = "";
      await append({ type: "output", data });
    }
    sending = null;
  };
  for await (const token of generate(prompt, tokens, signal)) {
    if (refused) break;
    text += token;
    count.tokens++;
    sending ??= send().catch((error) => (refused = error));
  }
  await sending;
  if (refused) throw refused;
  return { items: 1, metrics: { ...count } };
}

const NOTHING = { ok: true, said: { jobs: [] } };

/** One job, from its lease to its end. */
async function run(job, lease, stop) {
  const events = `/v1/jobs/${job.id}/events`;
  const { signal } = stop;
  const hold = async () => {
    for (;;) { // Heartbeat and cancel signal in one: the answer comes early when there is something to say.
      const { ok, said } = await ask("POST", `${events}?wait_ms=${Math.floor(LEASE_MS / 3)}`, [], { lease, signal });
      if (!ok || said.cancel_requested) return stop.abort(ok ? "cancelled" : "lost");
    }
  };
  const append = async (...added) => {
    const { ok, status, said } = await ask("POST", events, added, { lease, signal });
    if (status === 409) stop.abort("lost");
    signal.throwIfAborted();
    if (!ok) throw new Error(said.detail);
  };
  hold().catch(() => {}); // It was stopped.
  const count = { tokens: 0 };
  let end;
  try {
    end = { type: "completed", data: await answerPrompt(job.payload, append, signal, count) };
  } catch (error) {
    end = { type: "failed", data: { code: "exception", message: String(error) } };
    if (signal.aborted) end = { type: signal.reason, data: { reason: `stopped after ${count.tokens} tokens` } };
  }
  if (end.type !== "lost") await ask("POST", events, end, { lease });
  stop.abort("done");
}

/** Works for the queues named, or for all, the light one first. */
async function worker(...queues) {
  const leaving = new AbortController();
  let stop = null;
  process.on("SIGTERM", () => {
    leaving.abort();
    stop?.abort("released");
  });
  if (queues.length === 0) queues = Object.keys(QUEUES);
  const claim = { queues, worker: `concierge-${process.pid}`, wait_ms: 30_000, lease_ms: Number(LEASE_MS) };
  while (!leaving.signal.aborted) {
    // A parked claim takes nothing once its connection is closed.
    const { signal } = leaving;
    const { ok, said } = await ask("POST", "/v1/claims", claim, { signal }).catch(() => NOTHING);
    if (!ok) throw new Error(said.detail);
    for (const { job, lease } of said.jobs) {
      stop = new AbortController();
      await run(job, lease.token, stop);
    }
  }
}

// --- The web app -----------------------------------------------------------------------------------------------

/** A job's stream, passed on as it comes. When the page goes, so does the gateway's side of it, which counts watchers. */
async function relay(request, response, route) {
  const gone = new AbortController();
  response.on("close", () => gone.abort());
  const headers = { Accept: "text/event-stream", ...authority };
  if (request.headers["last-event-id"] !== undefined) headers["Last-Event-ID"] = request.headers["last-event-id"];
  try {
    const stream = await fetch(MILEPOST_URL + route, { headers, signal: gone.signal });
    if (stream.status >= 500) throw new Error(`${stream.status}`);
    response.writeHead(stream.status, {
      "Content-Type": stream.headers.get("content-type") ?? "text/plain",
      "Cache-Control": "no-store, no-transform",
      "X-Accel-Buffering": "no",
    });
    response.flushHeaders();
    if (stream.body) await pipeline(stream.body, response);
    else response.end();
  } catch {
    if (response.headersSent) return response.destroy(); // Cut in the middle: the browser comes back by itself.
    // Any status but 200 would make it give up for good.
    response.writeHead(200, { "Content-Type": "text/event-stream" }).end('retry: 2000\ndata: {"type":"bye"}\n\n');
  }
}

async function route(method, pathname, body, key) {
  const signal = AbortSignal.timeout(8_000); // To say in time that the gateway is away.
  const [, id] = /^\/api\/jobs\/([0-9a-f-]{36})\/cancel$/.exec(pathname) ?? [];
  const cancel = { reason: "stopped by the reader" };
  if (method === "POST" && id) return ask("POST", `/v1/jobs/${id}/cancel`, cancel, { signal });
  const { queue, prompt } = body ?? {};
  if (method !== "POST" || pathname !== "/api/prompts") return { status: 404, said: { detail: "there is nothing here" } };
  if (!Object.hasOwn(QUEUES, queue) || typeof prompt !== "string" || !prompt.trim() || prompt.length > 10_000) {
    return { status: 422, said: { detail: "a prompt is 1 to 10,000 characters, for `chat` or `report`" } };
  }
  const payload = { prompt: prompt.trim(), tokens: queue === "chat" ? 40 : 400 };
  const spec = { queue, kind: "generate", payload, cancel_if_unwatched_ms: Number(UNWATCHED_MS) };
  return ask("POST", "/v1/jobs", spec, { key, signal });
}

async function serve(request, response) {
  const [pathname] = request.url.split("?");
  const [, streamed] = /^\/api\/jobs\/([0-9a-f-]{36})\/events$/.exec(pathname) ?? [];
  const send = (status, type, text) =>
    response.writeHead(status, { "Content-Type": type, "Cache-Control": "no-store" }).end(text);
  if (request.method === "GET" && streamed) return relay(request, response, `/v1/jobs/${streamed}/events?unnamed=1`);
  if (pathname === "/") return send(200, "text/html; charset=utf-8", PAGE);
  try {
    let text = "";
    for await (const chunk of request) if ((text += chunk).length > 65_536) throw new Error("too much");
    const { method, headers } = request;
    // A form on somebody else's page cannot send this type.
    const foreign = method === "POST" && headers["content-type"] !== "application/json";
    if (foreign) return send(415, "application/json", '{"detail":"send application/json"}');
    const { status, said } = await route(method, pathname, text ? JSON.parse(text) : null, headers["idempotency-key"]);
    send(status, "application/json", JSON.stringify(said));
  } catch (error) {
    const [status, detail] = error instanceof SyntaxError ? [400, "send JSON"] : [503, "the concierge is away, try again"];
    send(status, "application/json", JSON.stringify({ detail }));
  }
}

async function web() {
  const server = http.createServer(serve);
  process.on("SIGTERM", () => {
    // Streams are cut, and the pages come back to the next process with their Last-Event-ID; what is short finishes.
    server.close(() => process.exit());
    server.closeIdleConnections();
    setTimeout(() => server.closeAllConnections(), 200);
  });
  for (const [queue, settings] of Object.entries(QUEUES)) {
    await ask("PATCH", `/v1/queues/${queue}`, settings);
    if (PURGE) console.log(`purged ${queue}: ${(await ask("POST", `/v1/queues/${queue}/purge`, {})).said.count}`);
  }
  server.listen(Number(PORT), "127.0.0.1", () => console.log(`ready at http://127.0.0.1:${server.address().port}`));
}

const PAGE = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Concierge</title>
<style>body { font: 16px sans-serif; margin: 2em; max-width: 45em }
textarea { width: 100% } pre { white-space: pre-wrap }</style>
<h1>Concierge</h1>
<form id="ask"><textarea name="prompt" rows="3" required>Tell me about the sea</textarea>
<label><input type="radio" name="queue" value="chat" checked> chat</label>
<label><input type="radio" name="queue" value="report"> report</label>
<button>Send</button> <button type="button" id="stop" disabled>Stop</button></form>
<p><b id="state" role="status">idle</b> <span id="detail"></span></p>
<pre id="output" role="log" aria-live="off"></pre>
<script>
const $ = (id) => document.getElementById(id);
const STATE_AFTER = { requeued: "queued", released: "queued", started: "running", retrying: "retrying",
  cancel_requested: "stopping", completed: "completed", failed: "failed", cancelled: "cancelled", expired: "expired" };
const OVER = ["completed", "failed", "cancelled", "expired"];

/** Posts until the app answers, with one key for all tries. */
async function post(path, body) {
  const key = crypto.getRandomValues(new Uint32Array(4)).join("-");
  const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
  for (;;) {
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
    const said = await answer?.json().catch(() => null);
    if (said && answer.status < 500) return said;
    $("detail").textContent = "reconnecting";
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function show(state, { message, reason, error } = {}) {
  $("state").textContent = state;
  $("detail").textContent = message ?? error?.message ?? reason ?? "";
  $("stop").disabled = OVER.includes(state);
}

let stream = null;
/** The state comes first, with all of the output so far, then every event. */
function watch(id) {
  stream?.close();
  location.hash = id; // A reload finds it again.
  stream = new EventSource("/api/jobs/" + id + "/events");
  stream.onmessage = (message) => {
    const { type, data, ...job } = JSON.parse(message.data);
    // A run begins with nothing: what an earlier one has said does not count.
    if (type === "state" || type === "started" || type === "requeued") $("output").textContent = "";
    if (type === "state") show(job.state, job.error ?? {});
    if (type === "output") $("output").append(data.text); // As text, whatever it is.
    if (Object.hasOwn(STATE_AFTER, type)) show(STATE_AFTER[type], data ?? {});
    if (type === "end") stream.close();
  };
  $("stop").onclick = () => post("/api/jobs/" + id + "/cancel", {});
}

$("ask").onsubmit = async (event) => {
  event.preventDefault();
  const { prompt, queue } = event.target;
  show("sending");
  const { job, detail } = await post("/api/prompts", { prompt: prompt.value, queue: queue.value });
  if (job) watch(job.id);
  else show("refused", { message: detail });
};
if (location.hash) watch(location.hash.slice(1));
</script></html>
`;

const [command, ...names] = process.argv.slice(2);
if (command === "web") await web();
else if (command === "worker") await worker(...names);
else {
  console.error("usage: amqp_concierge.mjs web | worker [QUEUE…]");
  process.exit(2);
}
