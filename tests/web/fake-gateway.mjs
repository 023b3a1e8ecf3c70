// @ts-check
/**
 * A fake gateway: the contract's jobs, streams, pages and feed in memory, over real HTTP, for what the real one does not
 * do on demand: cut at a byte, fall silent, answer as a proxy would. It writes down what was asked, and how much at once.
 */
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import http from "node:http";
import { blank, fold } from "../../web/client/fold.js";

/** @typedef {import("../../web/client/types.js").Job} Job */
/** @typedef {import("../../web/client/types.js").LogEvent} LogEvent */
/** @typedef {{job: Job, events: LogEvent[], output: string, changed: number}} Held */
/** @typedef {{method: string, url: string, headers: http.IncomingHttpHeaders, body: string, response: http.ServerResponse}} Asked */

const BASE = Date.parse("2026-01-01T00:00:00.000Z");

export class FakeGateway {
  /** @type {Map<string, Held>} */
  jobs = new Map();
  /** @type {Asked[]} */
  asked = [];
  /** Requests under way, and the most there ever were. */
  open = 0;
  mostOpen = 0;
  /** Answers in the gateway's place when it returns true. @type {(asked: Asked) => boolean | void} */
  intercept = () => false;
  /** What leaves for streams, before it does. @type {(bytes: Buffer, response: http.ServerResponse) => void} */
  write = (bytes, response) => response.write(bytes);
  url = "";
  retryMs = 1000;
  #changes = 0;
  #minted = 0;
  /** Open streams and parked polls: called after each change. @type {Set<() => void>} */
  #waiting = new Set();
  #server = http.createServer((request, response) => this.#answer(request, response));

  static async start() {
    const gateway = new FakeGateway();
    await gateway.listen(0);
    return gateway;
  }

  /** @param {number} port */
  async listen(port) {
    this.#server.listen(port, "127.0.0.1");
    await once(this.#server, "listening");
    const address = /** @type {import("node:net").AddressInfo} */ (this.#server.address());
    this.url = `http://127.0.0.1:${address.port}`;
  }

  /** Cuts every connection. */
  cut() {
    this.#server.closeAllConnections();
  }

  async stop() {
    const closed = once(this.#server, "close");
    this.#server.close();
    this.cut();
    await closed;
  }

  /**
   * A new job; answers its address.
   * @param {Record<string, any>} [spec]
   */
  enqueue(spec = {}) {
    this.#minted += 1;
    const id = `01990000-0000-7000-8000-${String(this.#minted).padStart(12, "0")}`;
    this.jobs.set(id, { job: blank(id), events: [], output: "", changed: 0 });
    this.append(id, "queued", { queue: "default", kind: "summarize", max_attempts: 3, ...spec });
    return id;
  }

  /**
   * @param {string} id
   * @param {string} type
   * @param {Record<string, any>} [data]
   */
  append(id, type, data = {}) {
    const held = /** @type {Held} */ (this.jobs.get(id));
    const { job, events } = held;
    const attempt = type === "requeued" ? 0 : job.attempt + (type === "started" ? 1 : 0);
    if (type === "output") data = { offset: job.output.bytes, ...data };
    /** @type {LogEvent} */
    const event = { seq: job.seq + 1, type, at: new Date(BASE + 1000 * (this.#changes += 1)).toISOString(), attempt, data };
    events.push(event);
    held.job = fold(job, event);
    held.changed = this.#changes;
    if (type === "output") held.output += data.text;
    if (type === "started" || type === "requeued") held.output = "";
    for (const wake of [...this.#waiting]) wake();
    return event;
  }

  /** @param {string} id */
  remove(id) {
    this.jobs.delete(id);
    for (const wake of [...this.#waiting]) wake();
  }

  /** What was asked for, as `GET /path`. */
  get lines() {
    return this.asked.map(({ method, url }) => `${method} ${url}`);
  }

  /** @param {"stream" | "page" | "any"} kind */
  count(kind) {
    return this.asked.filter(({ headers }) => kind === "any" || (headers.accept === "text/event-stream") === (kind === "stream")).length;
  }

  /**
   * @param {http.IncomingMessage} request
   * @param {http.ServerResponse} response
   */
  async #answer(request, response) {
    let body = "";
    for await (const chunk of request) body += chunk;
    /** @type {Asked} */
    const asked = { method: request.method ?? "", url: request.url ?? "", headers: request.headers, body, response };
    let url = new URL(asked.url, "http://fake");
    if (url.pathname.startsWith("/assets/") || url.pathname.startsWith("/page")) return this.#serveFile(url, response);
    this.asked.push(asked);
    this.open += 1;
    this.mostOpen = Math.max(this.mostOpen, this.open);
    response.on("close", () => (this.open -= 1));
    response.setHeader("access-control-allow-origin", "*");
    if (this.intercept(asked)) return;
    url = new URL(asked.url, "http://fake");
    const [, id, rest = ""] = /^\/v1\/jobs\/([^/]+)(\/\w+)?$/.exec(url.pathname) ?? [];
    const held = id === undefined ? undefined : this.jobs.get(id);
    if (url.pathname === "/v1/events") this.#feed(asked, url);
    else if (url.pathname === "/v1/jobs") this.#list(asked, url);
    else if (!held) problem(response, 404, "job_not_found");
    else if (rest === "/events") asked.headers.accept === "text/event-stream" ? this.#stream(asked, url, id) : this.#page(asked, url, id);
    else if (rest === "/output") output(asked, held.output);
    else if (rest === "/cancel" || rest === "/retry") this.#act(asked, id, rest);
    else json(response, 200, held.job, { "retry-after": "2" });
  }

  /** Pages of the tests' own, and the modules as the gateway serves them. @type {Record<string, string>} */
  pages = {};

  /**
   * @param {URL} url
   * @param {http.ServerResponse} response
   */
  async #serveFile(url, response) {
    const page = this.pages[url.pathname];
    if (page !== undefined) {
      response.writeHead(200, { "content-type": "text/html; charset=utf-8" }).end(page);
      return;
    }
    const path = url.pathname.replace("/assets/", "");
    const file = await readFile(new URL(`../../web/${path}`, import.meta.url)).catch(() => null);
    response.writeHead(file ? 200 : 404, { "content-type": "text/javascript" }).end(file);
  }

  /**
   * @param {Asked} asked
   * @param {URL} url
   * @param {string} id
   */
  #stream({ response, headers }, url, id) {
    const { job, events, output } = /** @type {Held} */ (this.jobs.get(id));
    const asked = /** @type {string | undefined} */ (headers["last-event-id"]) ?? url.searchParams.get("after");
    let cursor = asked && /^(0|[1-9]\d*)$/.test(asked) ? Number(asked) : -1;
    if (job.terminal && cursor === job.seq) {
      response.writeHead(204).end();
      return;
    }
    this.#begin(response);
    let text = `retry: ${this.retryMs}\n`;
    const bad = Boolean(asked) && (cursor < 0 || cursor > job.seq);
    if (bad) text += frame(null, { type: "reset", reason: cursor < 0 ? "invalid" : "ahead" });
    if (!asked || bad) {
      text += frame(output ? null : job.seq, { type: "state", ...job });
      if (output) text += frame(job.seq, { type: "output", data: { offset: 0, text: output } });
      cursor = job.seq;
    } else if (cursor === job.seq) {
      text += frame(null, { type: "ping", seq: cursor });
    }
    const send = () => {
      const held = this.jobs.get(id);
      if (!held) text += frame(null, { type: "end", state: "deleted" });
      for (const event of events.slice(cursor)) text += frame(event.seq, event);
      cursor = events.length;
      const ended = !held || held.job.terminal;
      if (held?.job.terminal) text += frame(null, { type: "end", state: held.job.state });
      if (text && !response.writableEnded) this.write(Buffer.from(text), response);
      text = "";
      if (ended) {
        this.#waiting.delete(send);
        response.end();
      }
    };
    this.#waiting.add(send);
    response.on("close", () => this.#waiting.delete(send));
    send();
  }

  /** @param {http.ServerResponse} response */
  #begin(response) {
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    response.flushHeaders();
  }

  /** Says something to every open stream. @param {Record<string, any>} body @param {number} [retry] */
  say(body, retry) {
    for (const { response, headers } of this.asked) {
      if (headers.accept !== "text/event-stream" || response.closed || response.writableEnded) continue;
      response.write((retry === undefined ? "" : `retry: ${retry}\n`) + frame(null, body));
      if (body.type === "bye") response.end();
    }
  }

  /**
   * @param {Asked} asked
   * @param {URL} url
   * @param {string} id
   */
  #page({ response }, url, id) {
    const after = Number(url.searchParams.get("after") ?? 0);
    const limit = Number(url.searchParams.get("limit") ?? 500);
    this.#park(response, url, (last) => {
      const held = this.jobs.get(id);
      if (!held) return problem(response, 404, "job_not_found");
      const { job, events } = held;
      const facts = { state: job.state, terminal: job.terminal };
      if (after > job.seq) return json(response, 200, { reset: "ahead", job, events: [], next: job.seq, more: false, ...facts });
      const page = events.slice(after, after + limit);
      if (page.length === 0 && !job.terminal && !last) return false;
      const next = after + page.length;
      return json(response, 200, { events: page, next, more: next < job.seq, ...facts });
    });
  }

  /**
   * Answers now, or after the next change that makes a difference, or when the time is up.
   * @param {http.ServerResponse} response
   * @param {URL} url
   * @param {(last: boolean) => boolean} answer
   */
  #park(response, url, answer) {
    const wait = Number(url.searchParams.get("wait") ?? 0);
    if (answer(wait === 0)) return;
    const wake = () => answer(false) && done();
    const timer = setTimeout(() => answer(true) && done(), wait * 1000);
    const done = () => {
      clearTimeout(timer);
      this.#waiting.delete(wake);
    };
    this.#waiting.add(wake);
    response.on("close", done);
  }

  /**
   * @param {Asked} asked
   * @param {string} id
   * @param {string} rest
   */
  #act({ response }, id, rest) {
    if (rest === "/cancel") this.append(id, "cancel_requested", { by: "page" });
    else this.append(id, "requeued", { by: "page" });
    json(response, 202, this.jobs.get(id)?.job);
  }

  /**
   * @param {Asked} asked
   * @param {URL} url
   */
  #list({ response }, url) {
    const jobs = this.#matching(url).reverse();
    const active = url.searchParams.get("active") === "true";
    const found = jobs.filter(({ job }) => !active || !job.terminal).map(({ job }) => job);
    json(response, 200, { jobs: found.slice(0, Number(url.searchParams.get("limit") ?? 50)), next: null });
  }

  /** @param {URL} url */
  #matching({ searchParams }) {
    return [...this.jobs.values()].filter(({ job }) =>
      /** @type {const} */ ([["job", job.id], ["subject", job.subject], ["queue", job.queue], ["kind", job.kind]]).every(([name, value]) =>
        !searchParams.has(name) || searchParams.getAll(name).includes(String(value))));
  }

  /**
   * @param {Asked} asked
   * @param {URL} url
   */
  #feed({ response, headers }, url) {
    const asked = /** @type {string | undefined} */ (headers["last-event-id"]) ?? url.searchParams.get("after");
    const [, at] = /^c(\d+)$/.exec(asked ?? "") ?? [];
    const reset = Boolean(asked) && at === undefined;
    let cursor = at === undefined ? -1 : Number(at);
    /** @type {Map<string, number>} */
    const told = new Map();
    const news = () => {
      const states = this.#matching(url).filter(({ changed }) => changed > cursor).map(({ job }) => job);
      const named = url.searchParams.getAll("job").filter((id) => !this.jobs.has(id));
      const gone = [...new Set([...told.keys(), ...named])].filter((id) => !this.jobs.has(id) && told.get(id) !== -1);
      states.forEach((job) => told.set(job.id, job.seq));
      gone.forEach((id) => told.set(id, -1));
      cursor = this.#changes;
      return { states, gone };
    };
    if (headers.accept !== "text/event-stream") {
      this.#park(response, url, (last) => {
        const { states, gone } = news();
        if (states.length + gone.length === 0 && !last) return false;
        return json(response, 200, { jobs: states, gone, next: `c${cursor}`, ...(reset ? { reset: "invalid" } : {}) });
      });
      return;
    }
    this.#begin(response);
    let text = `retry: ${this.retryMs}\n` + (reset ? frame(null, { type: "reset", reason: "invalid" }) : "");
    const send = () => {
      const { states, gone } = news();
      for (const job of states) text += frame(`c${cursor}`, { type: "state", ...job });
      for (const id of gone) text += frame(`c${cursor}`, { type: "gone", id });
      if (text && !response.writableEnded) this.write(Buffer.from(text), response);
      text = "";
    };
    this.#waiting.add(send);
    response.on("close", () => this.#waiting.delete(send));
    send();
    response.write(frame(null, { type: "ping" }));
  }
}

/**
 * @param {string | number | null} id
 * @param {object} body
 */
export function frame(id, body) {
  return `${id === null ? "" : `id: ${id}\n`}data: ${JSON.stringify(body)}\n\n`;
}

/**
 * @param {http.ServerResponse} response
 * @param {number} status
 * @param {unknown} body
 * @param {http.OutgoingHttpHeaders} [headers]
 */
export function json(response, status, body, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
  return true;
}

/**
 * @param {http.ServerResponse} response
 * @param {number} status
 * @param {string} code
 * @param {http.OutgoingHttpHeaders} [headers]
 */
export function problem(response, status, code, headers = {}) {
  const body = JSON.stringify({ type: `urn:milepost:error:${code}`, title: code, status, code, detail: `it is ${code}` });
  response.writeHead(status, { "content-type": "application/problem+json", ...headers }).end(body);
  return true;
}

/**
 * @param {Asked} asked
 * @param {string} text
 */
function output({ response, headers }, text) {
  const bytes = Buffer.from(text);
  const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(headers.range ?? "") ?? [];
  if (from === undefined) response.writeHead(200, { "content-type": "text/plain; charset=utf-8" }).end(bytes);
  else if (Number(from) >= bytes.length) problem(response, 416, "range_not_satisfiable");
  else response.writeHead(206, { "content-type": "text/plain; charset=utf-8" }).end(bytes.subarray(Number(from), Number(to) + 1));
}
