// @ts-check
/** One job, watched: its state first, then every event of its log, over whatever transport gets through. */
import { jobAddress, jobUrl } from "./address.js";
import { caller } from "./callbacks.js";
import { environment } from "./environment.js";
import { follow, keepTail, NOTHING } from "./fold.js";
import { Queue } from "./queue.js";
import { Session } from "./session.js";
import { LOGS } from "./slots.js";
import { askBytes, askPage, retryAfter } from "./transports.js";

/** @typedef {import("./types.js").Job} Job */
/** @typedef {import("./types.js").Frame} Frame */
/** @typedef {import("./types.js").Update} Update */
/** @typedef {import("./types.js").WatchOptions} WatchOptions */
/** @typedef {import("./transports.js").Ask} Ask */

const OUTPUT_KEPT = 200_000;
/** As much of the output so far as a stream's opening carries. */
const OUTPUT_OPENING = 1024 * 1024;
const PAGE_LIMIT = 500;

/**
 * Watches one job. The address is that of the job, of its events or of its page.
 * @param {string | URL} url
 * @param {WatchOptions} [options]
 * @returns {import("./types.js").JobWatch}
 */
export function watch(url, options = {}) {
  return new JobWatcher(url, options);
}

class JobWatcher {
  #view = NOTHING;
  #address;
  #options;
  #session;
  #calls;
  /** What the loops over this watch read from. @type {Set<Queue<Update>>} */
  #queues = new Set();
  /** @type {(job: Job | null) => void} */
  #resolve = () => {};
  /** @type {(error: Error) => void} */
  #reject = () => {};
  /** @type {Promise<Job | null>} */
  ended;
  /** @type {Error | null} */
  #error = null;
  #settled = false;

  /**
   * @param {string | URL} url
   * @param {WatchOptions} options
   */
  constructor(url, options) {
    this.#address = jobAddress(url);
    this.#options = options;
    const env = environment(options.environment);
    this.#calls = caller(env);
    this.ended = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    // Who does not ask is not told twice.
    this.ended.catch(() => {});
    const token = options.token === undefined ? this.#address.token : options.token;
    this.#session = new Session(
      {
        slots: LOGS,
        streamUrl: (cursor) => jobUrl(this.#address, `/events?unnamed=1${cursor === null ? "" : `&after=${cursor}`}`),
        poll: (ask, cursor, waitS) => (cursor === null ? this.#opening(ask) : this.#page(ask, cursor, waitS)),
        take: (frame) => this.#take(frame),
        room: () => this.#room(),
        onLink: (link) => this.#onLink(link),
        onError: (error) => this.#fail(error),
        onClosed: () => this.#onClosed(),
      },
      { ...options, token },
      env,
    );
    this.#session.open();
  }

  get job() {
    return this.#view.job;
  }

  get output() {
    return this.#view.output;
  }

  get link() {
    return this.#session.link;
  }

  get transport() {
    return this.#session.transport;
  }

  close() {
    this.#session.close();
    this.#onClosed();
  }

  /** @returns {AsyncIterator<Update, undefined>} */
  [Symbol.asyncIterator]() {
    /** @type {Queue<Update>} */
    const queue = new Queue();
    // A loop that begins late begins with where things stand.
    if (this.job) queue.push({ job: this.job, output: this.output, event: null });
    if (this.#settled) queue.end(this.#error);
    this.#queues.add(queue);
    return {
      next: () => queue.next(),
      // Who leaves the loop is done with the watch.
      return: async () => {
        queue.drop();
        this.close();
        return { done: true, value: undefined };
      },
    };
  }

  /**
   * @param {Frame} frame
   * @returns {import("./session.js").Verdict}
   */
  #take({ body }) {
    const before = this.#view;
    try {
      const { job, output } = follow(before, body);
      this.#view = job === before.job && output === before.output
        ? before
        : { job, output: keepTail(output, this.#options.outputLimit ?? OUTPUT_KEPT) };
    } catch {
      // A hole in the log: what we have cannot be trusted, a fresh state can.
      this.#view = NOTHING;
      return "again";
    }
    if (body.type === "end") return body.state === "deleted" ? "gone" : "ended";
    const { job, output } = this.#view;
    if (job && this.#view !== before) this.#changed(job, output, body, before.job);
    return "go on";
  }

  /**
   * @param {Job} job
   * @param {import("./types.js").Output} output
   * @param {Record<string, any>} body
   * @param {Job | null} before
   */
  #changed(job, output, body, before) {
    const { onEvent, onSnapshot, onState, onUpdate } = this.#options;
    // An opening's output has no seq: it is part of the document.
    const event = body.type === "state" || job === before ? null : /** @type {import("./types.js").LogEvent} */ (body);
    if (body.type === "state") this.#calls.call(onSnapshot, job);
    this.#calls.call(onState, job, output);
    if (event) this.#calls.call(onEvent, event, job);
    this.#calls.call(onUpdate, { job, output, event });
    for (const queue of this.#queues) queue.push({ job, output, event });
  }

  #room() {
    const full = [...this.#queues].flatMap((queue) => queue.room() ?? []);
    return full.length > 0 ? Promise.all(full).then(() => {}) : null;
  }

  /** @param {import("./types.js").Link} link */
  #onLink(link) {
    this.#calls.call(this.#options.onLink, link);
    if (link === "ended" && this.job) {
      this.#calls.call(this.#options.onEnd, this.job);
      this.#settle(this.job);
    } else if (link === "gone") {
      // With an error it is told by that.
      queueMicrotask(() => this.#settle(null));
    }
  }

  #onClosed() {
    this.#calls.mute();
    this.#settle(null);
  }

  /** @param {import("./error.js").WatchError} error */
  #fail(error) {
    this.#calls.call(this.#options.onError, error);
    this.#error = error;
    this.#settle(null);
  }

  /** @param {Job | null} job */
  #settle(job) {
    if (this.#settled) return;
    this.#settled = true;
    if (this.#error) this.#reject(this.#error);
    else this.#resolve(job);
    for (const queue of this.#queues) queue.end(this.#error);
  }

  /**
   * What a stream opens with, by plain requests: the document, and the output that belongs to it.
   * @param {Ask} ask
   * @returns {ReturnType<import("./session.js").Source["poll"]>}
   */
  async #opening(ask) {
    const answer = await askPage(ask, jobUrl(this.#address));
    if ("refusal" in answer) return answer;
    const frames = typeof answer.page.seq === "number" ? await this.#document(ask, answer.page) : null;
    return frames ? { frames, more: true, retryMs: null } : { refusal: null };
  }

  /**
   * @param {Ask} ask
   * @param {Job} job
   * @returns {Promise<Frame[] | null>} null if its output could not be had
   */
  async #document(ask, job) {
    const id = String(job.seq);
    const bytes = job.output?.bytes ?? 0;
    /** @type {Frame} */
    const state = { id: bytes > 0 ? null : id, body: { ...job, type: "state" } };
    const ending = job.terminal ? [{ id: null, body: { type: "end", state: job.state } }] : [];
    if (bytes === 0) return [state, ...ending];
    const from = Math.max(0, bytes - OUTPUT_OPENING);
    const read = await askBytes(ask, jobUrl(this.#address, "/output"), { from, to: bytes });
    if (read === null) return null;
    // Not from the middle of a character on.
    const start = from === 0 ? 0 : Math.max(0, read.findIndex((byte) => (byte & 0xc0) !== 0x80));
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(read.subarray(start));
    return [state, { id, body: { type: "output", data: { offset: from + start, text } } }, ...ending];
  }

  /**
   * @param {Ask} ask
   * @param {string} cursor
   * @param {number} waitS
   * @returns {ReturnType<import("./session.js").Source["poll"]>}
   */
  async #page(ask, cursor, waitS) {
    const wait = waitS > 0 ? `&wait=${waitS}` : "";
    const url = jobUrl(this.#address, `/events?after=${cursor}&limit=${PAGE_LIMIT}${wait}`);
    const answer = await askPage(ask, url, waitS);
    if ("refusal" in answer) return answer;
    const { page, response } = answer;
    if (!Array.isArray(page.events)) return { refusal: null };
    if (page.reset) {
      const document = await this.#document(ask, page.job);
      if (document === null) return { refusal: null };
      return { frames: [{ id: null, body: { type: "reset", reason: page.reset } }, ...document], more: true, retryMs: null };
    }
    /** @type {Frame[]} */
    const frames = page.events.map((/** @type {any} */ event) => ({ id: String(event.seq), body: event }));
    if (page.terminal && !page.more) frames.push({ id: null, body: { type: "end", state: page.state } });
    return { frames, more: Boolean(page.more), retryMs: retryAfter(response) };
  }
}
