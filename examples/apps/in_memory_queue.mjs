#!/usr/bin/env node
/*
 * A queue in the memory of the web process, with 202 and status polling, on Milepost. Node 18.17, no packages.
 *
 * What it was: one process with a Map of jobs, an array for a queue, and a loop that works it off. A restart forgot it all.
 *
 *   queue.push(job), 202 { jobId }      POST /v1/jobs; what was answered 202 survives restarts of app and gateway
 *   the loop, N at a time               `work()` below, still in this process, or started once more in another
 *   jobs.get(id), polling               GET /v1/jobs/ID, held until something changes (`?wait=25&after=SEQ`)
 *   activeByResource.get("invoice:17")  GET /v1/jobs?subject=invoice:17&active=true: a reload finds its job again
 *   if (active) return active           `unique_key`, judged in one transaction: a double click, a second tab and a
 *                                       second process of the app all get the job that is there
 *   log.push("charging …")              `log` events; GET /v1/jobs/ID/events is the activity log
 *   process.on("SIGTERM")               `released`: the job waits for the next process and has not used an attempt
 *
 * `unique_key` holds while the job lives. That an invoice is not paid again by a later job, or by the second attempt of
 * one whose first died just after the charge, is up to the effect itself: `charge()` gives the provider a key of its own.
 * MILEPOST_URL and MILEPOST_KEY stay in this process: pages ask the app, the app asks the gateway. A job may be seen by
 * whoever knows its id, which cannot be guessed; put your own login in front of `route`.
 *
 * Run it, with a gateway on 127.0.0.1:8080, and open http://127.0.0.1:3000:
 *
 *   milepost serve &
 *   node in_memory_queue.mjs
 */

import { randomUUID } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const { MILEPOST_URL = "http://127.0.0.1:8080", MILEPOST_KEY, PORT = 3000, QUEUE = "payments" } = process.env;
const { LEASE_MS = 30_000, STEP_MS = 1000, CONCURRENCY = 2, LEDGER = path.join(tmpdir(), "ledger") } = process.env;

/** What the gateway says. The key makes it safe to repeat a request until there is an answer, or the signal ends it. */
async function ask(method, route, body, { lease, key = randomUUID(), signal } = {}) {
  const headers = { "Content-Type": "application/json" };
  if (MILEPOST_KEY) headers.Authorization = `Bearer ${MILEPOST_KEY}`;
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

/** A stand-in for the payment provider: it remembers by the key whom it has charged, as real ones do. */
async function charge(key, reference) {
  await mkdir(LEDGER, { recursive: true });
  const entry = path.join(LEDGER, encodeURIComponent(key));
  await writeFile(entry, reference, { flag: "wx" }).catch((error) => {
    if (error.code !== "EEXIST") throw error;
  });
  return { paidBy: await readFile(entry, "utf8") };
}

/** The work itself. What it returns is the Outcome; `ok` false is "it ran, and there was nothing to do". */
async function pay({ id, payload: { invoice } }, append, signal) {
  const step = async (current, message) => {
    const progress = { type: "progress", data: { current, total: 3, unit: "steps", message } };
    await append({ type: "log", data: { message } }, progress);
    await sleep(Number(STEP_MS), undefined, { signal });
  };
  await step(0, "checking the invoice");
  await step(1, "charging the card");
  const { paidBy } = await charge(`invoice-${invoice}`, id);
  await step(2, "booking the payment");
  if (paidBy !== id) return { ok: false, items: 0, note: "it had been paid before" };
  return { items: 1, note: "paid", data: { receipt: paidBy } };
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
  let end;
  try {
    end = { type: "completed", data: await pay(job, append, signal) };
  } catch (error) {
    end = { type: "failed", data: { code: "exception", message: String(error) } };
    if (signal.aborted) end = { type: signal.reason };
  }
  if (end.type !== "lost") await ask("POST", events, end, { lease });
  stop.abort("done");
}

const leaving = new AbortController();
const stops = new Set();

async function work() {
  const claim = { queues: [QUEUE], worker: `app-${process.pid}`, wait_ms: 30_000, lease_ms: Number(LEASE_MS) };
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
}

// --- The web app -----------------------------------------------------------------------------------------------

const JOB = /^\/api\/jobs\/([0-9a-f-]{36})(\/log)?$/;
const INVOICE = /^\/api\/invoices\/([0-9]{1,10})\/(pay|job)$/;

async function route({ method, url, headers }) {
  const [pathname, query] = url.split("?");
  // Long enough for a held request, and short enough to say in time that the gateway is away.
  const signal = AbortSignal.timeout(method === "GET" ? 40_000 : 8_000);
  const get = (target) => ask("GET", target, undefined, { signal });
  const after = Number(new URLSearchParams(query).get("after")) || 0;
  const [, id, log] = JOB.exec(pathname) ?? [];
  const [, invoice, wish] = INVOICE.exec(pathname) ?? [];
  if (method === "POST" && wish === "pay") {
    const subject = `invoice:${invoice}`;
    const spec = { queue: QUEUE, kind: "pay", payload: { invoice }, subject, unique_key: subject, timeout_ms: 60_000 };
    const { ok, status, said } = await ask("POST", "/v1/jobs", spec, { key: headers["idempotency-key"], signal });
    return { status, body: ok ? { job: said.job, created: said.created } : said };
  }
  if (method === "GET" && wish === "job") {
    const about = `/v1/jobs?queue=${QUEUE}&subject=invoice:${invoice}&limit=1`;
    const [active] = (await get(`${about}&active=true`)).said.jobs;
    const [latest = null] = (await get(about)).said.jobs;
    return { status: 200, body: { job: active ?? latest } };
  }
  if (method === "GET" && id) {
    const { status, said } = await get(`/v1/jobs/${id}${log ? "/events" : ""}?wait=25&after=${after}`);
    return { status, body: said };
  }
  return { status: 404, body: { detail: "there is nothing here" } };
}

const server = http.createServer(async (request, response) => {
  request.resume();
  const send = (status, type, text) =>
    response.writeHead(status, { "Content-Type": type, "Cache-Control": "no-store" }).end(text);
  if (request.url.split("?")[0] === "/") return send(200, "text/html; charset=utf-8", PAGE);
  // A form on somebody else's page cannot send this type.
  const foreign = request.method === "POST" && request.headers["content-type"] !== "application/json";
  if (foreign) return send(415, "application/json", '{"detail":"send application/json"}');
  try {
    const { status, body } = await route(request);
    send(status, "application/json", JSON.stringify(body));
  } catch {
    send(503, "application/json", '{"detail":"the queue is away, try again"}');
  }
});

const PAGE = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Invoices</title>
<style>body { font: 16px sans-serif; margin: 2em }
[data-state=completed] { color: green } [data-state=failed] { color: firebrick }</style>
<h1>Invoice <input id="invoice" size="6" pattern="[0-9]+"></h1>
<p><button id="pay">Pay</button> <b id="state" role="status">unpaid</b> <span id="detail"></span></p>
<p>Job: <code id="job">none</code></p>
<h2>Activity</h2><ol id="activity"></ol>
<script>
const $ = (id) => document.getElementById(id);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
$("invoice").value = new URLSearchParams(location.search).get("invoice") ?? "17";
$("invoice").onchange = () => { location.search = "?invoice=" + encodeURIComponent($("invoice").value); };

/** Asks until the app answers, with one key for all tries. */
async function ask(method, path) {
  const key = crypto.getRandomValues(new Uint32Array(4)).join("-");
  const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
  for (;;) {
    const answer = await fetch(path, { method, headers, body: method === "POST" ? "{}" : undefined }).catch(() => null);
    const said = await answer?.json().catch(() => null);
    if (said && answer.status < 500) return said;
    $("detail").textContent = "reconnecting";
    await pause(1000);
  }
}

let watched = null;
async function watch(job) {
  if (!job || job.id === watched) return;
  watched = job.id;
  $("activity").replaceChildren();
  for (let seen = 0; ;) {
    if (job.id !== watched) return; // Another job has taken its place.
    const { state, terminal, outcome, error, progress } = job;
    $("job").textContent = job.id;
    const shown = state !== "completed" ? state : outcome.ok ? "paid" : "nothing done";
    $("state").dataset.state = shown === "nothing done" ? "failed" : state;
    $("state").textContent = shown;
    $("detail").textContent = outcome?.note ?? error?.message ?? progress?.message ?? "";
    const { events, next } = await ask("GET", "/api/jobs/" + job.id + "/log?after=" + seen);
    if (job.id !== watched) return;
    for (const { at, type, attempt, data } of events) {
      if (type === "progress") continue;
      const entry = document.createElement("li");
      const detail = data?.message ?? data?.note ?? (attempt ? "attempt " + attempt : "");
      entry.textContent = [at.slice(11, 19), type, detail].join(" ");
      $("activity").append(entry);
    }
    seen = next;
    if (terminal) return;
    job = await ask("GET", "/api/jobs/" + job.id + "?after=" + job.seq);
  }
}

$("pay").onclick = async () => watch((await ask("POST", "/api/invoices/" + $("invoice").value + "/pay")).job);
ask("GET", "/api/invoices/" + $("invoice").value + "/job").then(({ job }) => watch(job));
</script></html>
`;

process.on("SIGTERM", () => {
  leaving.abort();
  for (const stop of stops) stop.abort("released");
  server.close();
  server.closeAllConnections();
});
server.listen(Number(PORT), "127.0.0.1", () => console.log(`ready at http://127.0.0.1:${server.address().port}`));
await Promise.all(Array.from({ length: Number(CONCURRENCY) }, work));
process.exit();
