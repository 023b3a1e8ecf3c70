#!/usr/bin/env node
/*
 * Imports on a queue with workers of their own and live pages, as people run them on BullMQ, Redis and SSE, on Milepost.
 * Node 18.17, no packages.
 *
 *   queue.add(name, data, { jobId })     POST /v1/jobs with `unique_key`: a live job of the same id answers
 *   attempts, backoff: exponential       `max_attempts`, `backoff`: defaults of the queue, set once by `web`
 *   throw new UnrecoverableError()       `failed` with `"retryable":false`
 *   Worker { concurrency }               CONCURRENCY loops a process; PATCH /v1/queues/Q {"concurrency"} bounds all of them
 *   limiter { max, duration }            `rate_limit` of the queue
 *   worker.rateLimit(ms) after a 429     `failed` with `"scope":"queue"` and `retry_after_ms`: all of the queue waits
 *   a time-out around each call          AbortSignal.timeout(CALL_MS) for a call, `timeout_ms` for the whole run
 *   getFailed(), job.retry(), a DLQ      state=failed: the dead letters; POST /v1/jobs/ID/retry, POST /v1/queues/Q/redrive
 *   QueueEvents → Redis → res.write()    GET /v1/jobs/ID/events, relayed: the state first, then every event; a reconnect
 *                                        goes on at its Last-Event-ID, from the log, whichever process of `web` it meets
 *   return { huge: … }                   an artifact: the result is a file, and the job carries its URL
 *   worker.close()                       SIGTERM: `released`, and the next worker starts the job within milliseconds
 *   getJobCounts(), "queue is stuck"     GET /v1/queues/Q: /healthz/queue is 503 once the oldest job waits too long
 *
 * A job may run twice (its worker died, or fell silent), so its result is written under the job's id, whole or not at all:
 * a second run finds what the first has made. MILEPOST_URL and MILEPOST_KEY stay in these processes: pages ask the app,
 * the app asks the gateway, and passes the stream on as it comes. Put your own login in front of `serve`.
 *
 * Run it, with a gateway (`milepost serve`) on 127.0.0.1:8080, and open http://127.0.0.1:3000:
 *
 *   node bullmq_sse.mjs worker &
 *   node bullmq_sse.mjs web
 */

import { randomUUID } from "node:crypto";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";

const { MILEPOST_URL = "http://127.0.0.1:8080", MILEPOST_KEY, PORT = 3000, QUEUE = "imports" } = process.env;
const { LEASE_MS = 30_000, STEP_MS = 500, CALL_MS = 5000, BACKOFF_MS = 1000, MAX_AGE_MS = 60_000 } = process.env;
const { CONCURRENCY = 2, APP_URL = `http://127.0.0.1:${PORT}`, SOURCES = `${APP_URL}/sources` } = process.env;
const RESULTS = process.env.RESULTS ?? path.join(tmpdir(), "results"); // A stand-in for the object store.

const SETTINGS = {
  concurrency: 10,
  rate_limit: { limit: 100, per_ms: 10_000, burst: 20 },
  defaults: {
    max_attempts: 4,
    backoff: { initial_ms: Number(BACKOFF_MS), factor: 2, max_ms: 60_000 },
    timeout_ms: 600_000,
  },
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

/** An error with the data of a `failed` event. */
const failure = (code, message, more) => Object.assign(new Error(message), { failed: { code, message, ...more } });

/** One call to somebody else, with a time-out of its own, and told apart by what another try could change. */
async function fetchSource(name, signal) {
  const limit = AbortSignal.timeout(Number(CALL_MS));
  try {
    const answer = await fetch(`${SOURCES}/${encodeURIComponent(name)}`, { signal: AbortSignal.any([signal, limit]) });
    const wait = { retry_after_ms: 1000 * (Number(answer.headers.get("retry-after")) || 1) };
    if (answer.status === 429) throw failure("rate_limited", "the source said 429", { scope: "queue", ...wait });
    if (answer.status >= 500) throw failure("source_down", `the source said ${answer.status}`);
    if (!answer.ok) throw failure("unrecoverable", `the source said ${answer.status}`, { retryable: false });
    return await answer.text();
  } catch (error) {
    if (limit.aborted && !signal.aborted) throw failure("call_timed_out", `the source was silent for ${CALL_MS} ms`);
    throw error;
  }
}

const resultFile = (id) => path.join(RESULTS, `${id}.json`);

/** The work itself. What it returns is the Outcome. */
async function importSource({ id, payload: { source } }, append, signal) {
  const text = await readFile(resultFile(id), "utf8").catch(() => null); // An earlier run got as far as this.
  if (text === null) {
    const lines = (await fetchSource(source, signal)).trim().split("\n");
    for (const index of lines.keys()) {
      await append({ type: "progress", data: { current: index + 1, total: lines.length, unit: "lines", message: source } });
      await sleep(Number(STEP_MS), undefined, { signal });
    }
    await mkdir(RESULTS, { recursive: true });
    const draft = `${resultFile(id)}.${randomUUID()}`;
    await writeFile(draft, JSON.stringify({ source, lines }));
    await rename(draft, resultFile(id));
  }
  return { items: 1, artifacts: [{ type: "url", label: "result", url: `${APP_URL}/results/${id}.json` }] };
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
    if (!ok) throw failure(said.code, said.detail, { retryable: false });
  };
  hold().catch(() => {}); // It was stopped.
  let end;
  try {
    end = { type: "completed", data: await importSource(job, append, signal) };
  } catch (error) {
    end = { type: "failed", data: error.failed ?? { code: "exception", message: String(error) } };
    if (signal.aborted) end = { type: signal.reason };
  }
  if (end.type !== "lost") await ask("POST", events, end, { lease });
  stop.abort("done");
}

async function worker() {
  const leaving = new AbortController();
  const stops = new Set();
  process.on("SIGTERM", () => {
    leaving.abort();
    for (const stop of stops) stop.abort("released");
  });
  const claim = { queues: [QUEUE], worker: `bull-${process.pid}`, wait_ms: 30_000, lease_ms: Number(LEASE_MS) };
  const loop = async () => {
    while (!leaving.signal.aborted) {
      // A parked claim takes nothing once its connection is closed.
      const { signal } = leaving;
      const { ok, said } = await ask("POST", "/v1/claims", claim, { signal }).catch(() => NOTHING);
      if (!ok) throw new Error(said.detail);
      for (const { job, lease } of said.jobs) {
        const stop = new AbortController();
        stops.add(stop);
        await run(job, lease.token, stop);
        stops.delete(stop);
      }
    }
  };
  await Promise.all(Array.from({ length: Number(CONCURRENCY) }, loop));
}

// --- The web app -----------------------------------------------------------------------------------------------

/** A job's stream, passed on as it comes. When the page goes, so does the gateway's side of it. */
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

/** How long the oldest job that could run has been waiting, for whoever is woken at night. */
async function queueHealth(signal) {
  const { said } = await ask("GET", `/v1/queues/${QUEUE}`, undefined, { signal });
  const ageMs = said.oldest_queued_at ? Math.max(0, Date.now() - Date.parse(said.oldest_queued_at)) : 0;
  const { queued, running, retrying, failed } = said.counts;
  const body = { oldest_ms: ageMs, queued, running, retrying, dead_letters: failed };
  return { status: ageMs > MAX_AGE_MS ? 503 : 200, said: body };
}

async function route(method, pathname, body, key) {
  const signal = AbortSignal.timeout(8_000); // To say in time that the gateway is away.
  const [, id, retry] = /^\/api\/jobs\/([0-9a-f-]{36})(\/retry)?$/.exec(pathname) ?? [];
  const source = body?.source;
  switch (`${method} ${id ? `job${retry ?? ""}` : pathname}`) {
    case "POST /api/imports": {
      const refusal = { status: 422, said: { detail: "a source is 1 to 64 of A–Z a–z 0–9 . _ -" } };
      if (typeof source !== "string" || !/^[\w.-]{1,64}$/.test(source)) return refusal;
      const spec = { queue: QUEUE, kind: "import", payload: { source }, subject: source, unique_key: source };
      return ask("POST", "/v1/jobs", spec, { key, signal });
    }
    case "GET /api/dead-letters":
      return ask("GET", `/v1/jobs?queue=${QUEUE}&state=failed`, undefined, { signal });
    case "POST /api/dead-letters/redrive":
      return ask("POST", `/v1/queues/${QUEUE}/redrive`, {}, { signal });
    case "POST job/retry":
      return ask("POST", `/v1/jobs/${id}/retry`, {}, { signal });
    case "GET /healthz/queue":
      return queueHealth(signal);
  }
  return { status: 404, said: { detail: "there is nothing here" } };
}

/** A stand-in for the service that is imported from: it knows all sources but `gone`, and `down` is always down. */
const STATUSES = { "/sources/gone": 404, "/sources/down": 503 };
const LINES = "one\ntwo\nthree\nfour\nfive\n";

async function serve(request, response) {
  const [pathname] = request.url.split("?");
  const [, streamed] = /^\/api\/jobs\/([0-9a-f-]{36})\/events$/.exec(pathname) ?? [];
  const [, result] = /^\/results\/([0-9a-f-]{36})\.json$/.exec(pathname) ?? [];
  const send = (status, type, text) =>
    response.writeHead(status, { "Content-Type": type, "Cache-Control": "no-store" }).end(text);
  if (request.method === "GET" && streamed) return relay(request, response, `/v1/jobs/${streamed}/events?unnamed=1`);
  if (pathname === "/") return send(200, "text/html; charset=utf-8", PAGE);
  if (pathname.startsWith("/sources/")) return send(STATUSES[pathname] ?? 200, "text/plain", LINES);
  try {
    if (result) return send(200, "application/json", await readFile(resultFile(result)));
    let text = "";
    for await (const chunk of request) if ((text += chunk).length > 65_536) throw new Error("too much");
    const { method, headers } = request;
    // A form on somebody else's page cannot send this type.
    const foreign = method === "POST" && headers["content-type"] !== "application/json";
    if (foreign) return send(415, "application/json", '{"detail":"send application/json"}');
    const { status, said } = await route(method, pathname, text ? JSON.parse(text) : null, headers["idempotency-key"]);
    send(status, "application/json", JSON.stringify(said));
  } catch (error) {
    const status = error instanceof SyntaxError ? 400 : error.code === "ENOENT" ? 404 : 503;
    send(status, "application/json", JSON.stringify({ code: "refused", detail: "try again" }));
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
  await ask("PATCH", `/v1/queues/${QUEUE}`, SETTINGS);
  server.listen(Number(PORT), "127.0.0.1", () => console.log(`ready at http://127.0.0.1:${server.address().port}`));
}

const PAGE = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Imports</title>
<style>body { font: 16px sans-serif; margin: 2em } td { padding: .2em .8em } progress { width: 20em }</style>
<h1>Imports</h1>
<form id="add"><label>Source <input name="source" value="books" required></label> <button>Import</button></form>
<p><b id="state" role="status">none</b> <progress id="bar" max="100" value="0"></progress> <span id="detail"></span>
<a id="result" hidden>Result</a></p>
<p>First frame: <code id="first"></code></p>
<h2>Dead letters</h2><button id="all">Redrive all</button><table><tbody id="dead"></tbody></table>
<h2>Queue</h2><p id="queue"></p>
<script>
const $ = (id) => document.getElementById(id);

/** Asks until the app answers, with one key for all tries. */
async function ask(method, path, body) {
  const key = crypto.getRandomValues(new Uint32Array(4)).join("-");
  const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
  for (;;) {
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) }).catch(() => null);
    const said = await answer?.json().catch(() => null);
    if (said && (answer.status < 500 || said.oldest_ms)) return said; // The alarm is an answer.
    await new Promise((done) => setTimeout(done, 1000));
  }
}

let stream = null;
const STATE_AFTER = { requeued: "queued", released: "queued", started: "running", retrying: "retrying",
  completed: "completed", failed: "failed", cancelled: "cancelled", expired: "expired" };

function show(state, { message, worker, reason, artifacts = [] } = {}) {
  $("state").textContent = state;
  $("detail").textContent = message ?? worker ?? reason ?? "";
  $("result").hidden = artifacts.length === 0;
  for (const { url } of artifacts) $("result").href = url; // The gateway takes http and https only.
  if (state !== "running") list();
}

function progress({ percent, current, total, unit }) {
  $("bar").value = percent ?? (100 * current) / total;
  $("detail").textContent = current + " of " + total + " " + unit;
}

/** The state comes first, then every event; a reconnect brings what was missed, and nothing twice. */
function watch(id) {
  stream?.close();
  location.hash = id; // A reload finds it again.
  $("first").textContent = "";
  stream = new EventSource("/api/jobs/" + id + "/events");
  stream.onmessage = (message) => {
    const frame = JSON.parse(message.data);
    const { type, data } = frame;
    $("first").textContent ||= type;
    if (type === "started" || type === "state") $("bar").value = 0;
    if (type === "state") {
      show(frame.state, frame.outcome ?? frame.error ?? {});
      if (frame.progress) progress(frame.progress);
    }
    if (type === "progress") progress(data);
    if (Object.hasOwn(STATE_AFTER, type)) show(STATE_AFTER[type], data?.error ?? data ?? {});
    if (type === "end") stream.close();
  };
}

/** Cells of text: nothing that comes from a job is ever read as HTML. */
function row(job) {
  const tr = document.createElement("tr");
  const { code, message } = job.error;
  const cells = [job.id, job.subject, code + ": " + message, "attempt " + job.attempt];
  for (const text of cells) tr.insertCell().textContent = text;
  const again = document.createElement("button");
  again.textContent = "Redrive";
  again.onclick = () => ask("POST", "/api/jobs/" + job.id + "/retry", {}).then(() => watch(job.id));
  tr.insertCell().append(again);
  return tr;
}

let shown;
async function list() {
  const { jobs } = await ask("GET", "/api/dead-letters");
  if (shown !== (shown = JSON.stringify(jobs))) $("dead").replaceChildren(...jobs.map(row));
  const { queued, running, retrying, oldest_ms } = await ask("GET", "/healthz/queue");
  const age = Math.round(oldest_ms / 1000) + " s";
  const counts = [queued, "queued,", running, "running,", retrying, "retrying;"].join(" ");
  $("queue").textContent = counts + " the oldest waits for " + age;
}
$("add").onsubmit = async (event) => {
  event.preventDefault();
  const { job, detail } = await ask("POST", "/api/imports", { source: event.target.source.value });
  if (job) watch(job.id);
  else $("detail").textContent = detail;
};
$("all").onclick = () => ask("POST", "/api/dead-letters/redrive", {}).then(list);
if (location.hash) watch(location.hash.slice(1));
(async function keepListing() {
  await list();
  setTimeout(keepListing, 2000);
})();
</script></html>
`;

const commands = { web, worker };
if (!Object.hasOwn(commands, process.argv[2])) {
  console.error("usage: bullmq_sse.mjs web|worker");
  process.exit(2);
}
await commands[process.argv[2]]();
