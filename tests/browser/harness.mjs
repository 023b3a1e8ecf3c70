// @ts-check
/**
 * What the browser tests stand on: a real gateway started from its binary on either store, a real Chromium, and a
 * recorder between the two. Everything started here is ended here, by its own process id.
 */
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { access, mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

const root = fileURLToPath(new URL("../..", import.meta.url));
/** What is tested. */
export const binary = path.resolve(root, process.env.MILEPOST_BIN ?? "target/debug/milepost");
const run = promisify(execFile);

/** Both stores: what is promised is promised on each. */
export const STORES = /** @type {const} */ (["sqlite", "postgres"]);
/** @typedef {typeof STORES[number]} Store */

/** @type {Set<import("node:child_process").ChildProcess>} */
const children = new Set();
process.on("exit", () => children.forEach((child) => child.kill("SIGKILL")));

/**
 * Tries until it holds.
 * @template T
 * @param {() => T | Promise<T>} probe passes when it neither throws nor answers false
 * @param {number} [deadlineMs]
 * @returns {Promise<T>}
 */
export async function eventually(probe, deadlineMs = 10_000) {
  const end = Date.now() + deadlineMs;
  for (;;) {
    try {
      const value = await probe();
      if (value !== false) return value;
      if (Date.now() > end) throw new Error(`not within ${deadlineMs} ms: ${probe}`);
    } catch (error) {
      if (Date.now() > end) throw error;
    }
    await sleep(20);
  }
}

/** A database of its own in the throw-away cluster. */
async function freshDatabase() {
  const admin = process.env.MILEPOST_TEST_POSTGRES;
  if (!admin) throw new Error("MILEPOST_TEST_POSTGRES is not set: run `tests/run.sh browser`, which starts a Postgres");
  const name = `browser_${process.pid}_${Math.random().toString(36).slice(2, 10)}`;
  const sql = (/** @type {string} */ statement) => run("psql", [admin, "-qXv", "ON_ERROR_STOP=1", "-c", statement]);
  await sql(`create database ${name}`);
  const url = new URL(admin);
  url.pathname = `/${name}`;
  return { url: url.href, drop: () => sql(`drop database if exists ${name} with (force)`) };
}

/** A gateway process. It keeps its port and its data over restarts. */
export class Gateway {
  /** @type {import("node:child_process").ChildProcess | null} */
  #process = null;
  #directory = "";
  /** @type {Awaited<ReturnType<typeof freshDatabase>> | null} */
  #database = null;
  #flags;
  #port = 0;
  /** Its address with the base path, without a slash at the end. */
  url = "";

  /** @param {string[]} flags */
  constructor(flags) {
    this.#flags = flags;
  }

  /**
   * @param {Store} store
   * @param {string[]} [flags]
   */
  static async start(store, flags = []) {
    const gateway = new Gateway(flags);
    await access(binary).catch(() => {
      throw new Error(`there is no ${binary}: run \`cargo build\`, or name one in MILEPOST_BIN`);
    });
    gateway.#directory = await mkdtemp(path.join(tmpdir(), "milepost-browser-"));
    if (store === "postgres") gateway.#database = await freshDatabase();
    await gateway.start();
    return gateway;
  }

  async start() {
    const { DATABASE_URL: _, ...env } = process.env;
    if (this.#database) env.DATABASE_URL = this.#database.url;
    const child = spawn(
      binary,
      ["serve", "--listen", `127.0.0.1:${this.#port}`, "--data-dir", this.#directory, ...this.#flags],
      { env, stdio: ["ignore", "pipe", "pipe"] },
    );
    children.add(child);
    this.#process = child;
    let complaints = "";
    child.stderr.setEncoding("utf8").on("data", (text) => (complaints = (complaints + text).slice(-4000)));
    const gone = once(child, "exit").then(([code, signal]) => {
      children.delete(child);
      throw new Error(`the gateway ended (${code ?? signal}) before it was ready\n${complaints}`);
    });
    gone.catch(() => {});
    const [line] = await Promise.race([once(createInterface(child.stdout), "line"), gone]);
    const [, url] = /^milepost ready at (http:\/\/\S+?)\/?$/.exec(line) ?? [];
    if (!url) throw new Error(`not a ready line: ${line}`);
    this.#port = Number(new URL(url).port);
    const flag = this.#flags.indexOf("--base-path");
    this.url = `http://127.0.0.1:${this.#port}${flag < 0 ? "" : this.#flags[flag + 1]}`;
  }

  /**
   * Ends the process and waits until it is gone.
   * @param {NodeJS.Signals} [signal]
   */
  async kill(signal = "SIGTERM") {
    const child = this.#process;
    this.#process = null;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, "exit");
    child.kill(signal);
    const timer = setTimeout(() => child.kill("SIGKILL"), 15_000);
    await gone;
    clearTimeout(timer);
  }

  /** Ends it for good and removes what it stored. */
  async stop() {
    await this.kill("SIGKILL");
    await this.#database?.drop();
    await rm(this.#directory, { recursive: true, force: true });
  }

  /**
   * @param {string} method
   * @param {string} route below the base path
   * @param {unknown} [body]
   * @returns {Promise<any>} the parsed answer; an error status throws
   */
  async call(method, route, body) {
    const response = await fetch(this.url + route, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${route}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  }

  /**
   * Enqueues a tracked job and answers its id.
   * @param {Record<string, unknown>} [spec]
   * @returns {Promise<string>}
   */
  async track(spec = {}) {
    const { job } = await this.call("POST", "/v1/jobs", { kind: "summarize", tracked: true, ...spec });
    return job.id;
  }

  /**
   * Appends to a job's log.
   * @param {string} id
   * @param {...{type: string, data?: Record<string, unknown>}} events
   * @returns {Promise<number>} the seq of the last one
   */
  async append(id, ...events) {
    return (await this.call("POST", `/v1/jobs/${id}/events`, events)).seq;
  }
}

/**
 * @typedef {{method: string, path: string, lastEventId: string | undefined, authorization: string | undefined,
 *   status: number | null, at: number}} Seen
 */

/**
 * A plain proxy in front of a gateway that writes down what passes. While the gateway is down it drops connections,
 * as a closed port would; with `refuse` set it answers that status, as a load balancer would; with `hold` it takes
 * what comes and passes nothing on, either way.
 */
export class Recorder {
  /** @type {Seen[]} */
  seen = [];
  /** @type {number | null} */
  refuse = null;
  hold = false;
  /** Whether event streams are kept back, as by a proxy that gathers an answer before it passes it on. */
  holdStreams = false;
  /** Pages that the recorder answers with instead of passing them on, by their path. @type {Record<string, string>} */
  pages = {};
  /** Requests under way, by their path. @type {string[]} */
  open = [];
  url = "";
  #server;

  /** @param {Gateway} gateway */
  constructor(gateway) {
    this.#server = http.createServer((request, response) => {
      /** @type {Seen} */
      const entry = {
        method: request.method ?? "",
        path: request.url ?? "",
        lastEventId: /** @type {string | undefined} */ (request.headers["last-event-id"]),
        authorization: request.headers.authorization,
        status: null,
        at: Date.now(),
      };
      this.seen.push(entry);
      this.open.push(entry.path);
      response.on("close", () => this.open.splice(this.open.indexOf(entry.path), 1));
      if (this.hold) return;
      const page = this.pages[entry.path];
      if (page !== undefined) {
        response.writeHead(200, { "content-type": "text/html; charset=utf-8" }).end(page);
        return;
      }
      if (this.refuse !== null) {
        entry.status = this.refuse;
        response.writeHead(this.refuse).end();
        return;
      }
      const { hostname, port } = new URL(gateway.url);
      const { method, url: path, headers } = request;
      const forward = http.request({ hostname, port, method, path, headers, agent: false }, (answer) => {
        entry.status = answer.statusCode ?? null;
        if (this.holdStreams && answer.headers["content-type"] === "text/event-stream") return;
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        response.flushHeaders();
        answer.on("data", (chunk) => this.hold || response.write(chunk));
        answer.on("end", () => this.hold || response.end());
        answer.on("error", () => response.destroy());
        answer.on("aborted", () => response.destroy());
      });
      forward.on("error", () => response.destroy());
      response.on("close", () => forward.destroy());
      request.pipe(forward);
    });
  }

  /** @param {Gateway} gateway */
  static async before(gateway) {
    const recorder = new Recorder(gateway);
    recorder.#server.listen(0, "127.0.0.1");
    await once(recorder.#server, "listening");
    const { port } = /** @type {import("node:net").AddressInfo} */ (recorder.#server.address());
    recorder.url = `http://127.0.0.1:${port}${new URL(gateway.url).pathname.replace(/\/$/, "")}`;
    return recorder;
  }

  /** The stream requests so far. */
  get streams() {
    return this.seen.filter(({ path }) => /\/events\?(.*&)?(unnamed=1|after=\d+)/.test(path) && !path.includes("limit="));
  }

  /** Cuts every open connection. */
  cut() {
    this.#server.closeAllConnections();
  }

  async stop() {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

/**
 * Debian's Chromium, headless, talking to nobody but this machine.
 * @param {string[]} [flags]
 * @param {string[]} [without] flags that it is not to be given
 */
export async function launchChromium(flags = [], without = []) {
  return chromium.launch({
    executablePath: process.env.MILEPOST_CHROMIUM ?? "/usr/bin/chromium",
    ignoreDefaultArgs: without,
    args: [
      ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
      "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", ...flags,
    ],
  });
}

/**
 * A web server of somebody else.
 * @param {(request: http.IncomingMessage, response: http.ServerResponse) => void} answer
 */
export async function otherSite(answer) {
  const server = http.createServer(answer);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  return {
    url: `http://127.0.0.1:${port}`,
    stop() {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** Pages of one browser for the tests of one file, each in a context of its own. */
export class Tabs {
  /** @type {import("playwright-core").Browser | null} */
  #browser = null;
  /** @type {import("playwright-core").BrowserContext[]} */
  #contexts = [];

  async launch() {
    this.#browser = await launchChromium();
  }

  /**
   * Opens a page that fails the test if a script on it throws.
   * @param {import("playwright-core").BrowserContextOptions} [options]
   */
  async open(options) {
    if (!this.#browser) throw new Error("the browser was not launched");
    const context = await this.#browser.newContext(options);
    this.#contexts.push(context);
    context.setDefaultTimeout(10_000);
    const page = await context.newPage();
    page.on("pageerror", (error) => {
      throw error;
    });
    return page;
  }

  async closeAll() {
    for (const context of this.#contexts.splice(0)) await context.close();
  }

  async quit() {
    await this.#browser?.close();
  }
}

/**
 * Waits until what can be seen under a selector has the text.
 * @param {import("playwright-core").Page} page
 * @param {string} selector
 * @param {string | RegExp} text
 * @param {number} [deadlineMs]
 */
export async function shows(page, selector, text, deadlineMs) {
  await eventually(async () => {
    const found = (await page.locator(selector).filter({ visible: true }).allInnerTexts()).join("\n");
    if (typeof text === "string") assert.ok(found.includes(text), `${selector}: ${JSON.stringify(found)} lacks ${text}`);
    else assert.match(found, text, selector);
  }, deadlineMs);
}
