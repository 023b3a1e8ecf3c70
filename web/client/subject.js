// @ts-check
/**
 * Whatever job a subject has: what a page watches that knows no id, because it was reloaded or never had one. The active
 * job, the newest of them if there are several, else the one that was last; and the next one as soon as there is one.
 *
 * Two connections: the feed of the subject, shared with other tabs, says which job it is; the job's own log has the rest.
 */
import { caller } from "./callbacks.js";
import { environment } from "./environment.js";
import { watchFeed } from "./feed.js";
import { NOTHING } from "./fold.js";
import { Queue } from "./queue.js";
import { askPage } from "./transports.js";
import { watch } from "./watch.js";

/** @typedef {import("./types.js").Job} Job */
/** @typedef {import("./types.js").Update} Update */
/** @typedef {import("./types.js").SubjectOptions} SubjectOptions */

/**
 * @param {string} subject
 * @param {SubjectOptions} [options]
 * @returns {import("./types.js").JobWatch}
 */
export function watchSubject(subject, options = {}) {
  return new SubjectWatcher(subject, options);
}

class SubjectWatcher {
  #subject;
  #options;
  #env;
  #calls;
  #feed;
  /** What the feed may not know any more: jobs that ended long ago. @type {Map<string, Job>} */
  #found = new Map();
  #looked = false;
  #stop = new AbortController();
  /** @type {import("./types.js").JobWatch | null} */
  #watch = null;
  /** The job that is watched. */
  #id = "";
  /** @type {import("./types.js").Link} */
  #shown = "connecting";
  /** @type {Set<Queue<Update>>} */
  #queues = new Set();
  /** @type {() => void} */
  #closed = () => {};
  /** There is always a next job: it ends only when it is closed. @type {Promise<Job | null>} */
  ended = new Promise((resolve) => (this.#closed = () => resolve(null)));

  /**
   * @param {string} subject
   * @param {SubjectOptions} options
   */
  constructor(subject, options) {
    this.#subject = subject;
    this.#options = options;
    this.#env = environment(options.environment);
    this.#calls = caller(this.#env);
    const { onState: _, onEvent: __, ...connection } = options;
    this.#feed = watchFeed(
      { subject },
      {
        ...connection,
        onState: () => this.#choose(),
        onGone: (id) => {
          this.#found.delete(id);
          this.#choose();
        },
        onLink: (link) => this.#onFeedLink(link),
        onError: (error) => this.#fail(error),
      },
    );
    const close = () => this.close();
    options.signal?.addEventListener("abort", close, { signal: this.#stop.signal });
    if (options.signal?.aborted) close();
  }

  get job() {
    return this.#watch?.job ?? null;
  }

  get output() {
    return this.#watch?.output ?? NOTHING.output;
  }

  get link() {
    return this.#shown;
  }

  get transport() {
    return this.#watch?.transport ?? this.#feed.transport;
  }

  close() {
    this.#calls.mute();
    if (this.#stop.signal.aborted) return;
    this.#shown = "closed";
    this.#shut(null);
  }

  /** @param {Error | null} error */
  #shut(error) {
    this.#stop.abort();
    this.#feed.close();
    this.#watch?.close();
    for (const queue of this.#queues) queue.end(error);
    this.#closed();
  }

  /** @returns {AsyncIterator<Update, undefined>} */
  [Symbol.asyncIterator]() {
    /** @type {Queue<Update>} */
    const queue = new Queue();
    if (this.job) queue.push({ job: this.job, output: this.output, event: null });
    if (this.#stop.signal.aborted) queue.end();
    this.#queues.add(queue);
    return {
      next: () => queue.next(),
      return: async () => {
        queue.drop();
        this.close();
        return { done: true, value: undefined };
      },
    };
  }

  /** @param {import("./types.js").Link} link */
  #onFeedLink(link) {
    if (link === "live" && this.#feed.jobs.size === 0) this.#lookBack();
    this.#show();
  }

  /** Asks for the newest job, which ended before the feed's memory begins. */
  async #lookBack() {
    if (this.#looked) return;
    this.#looked = true;
    const { base = "", credentials = "same-origin", token = null } = this.#options;
    try {
      const ask = {
        env: this.#env, signal: this.#stop.signal, credentials,
        token: typeof token === "function" ? await token() : token,
      };
      const answer = await askPage(ask, `${base}/v1/jobs?${new URLSearchParams({ subject: this.#subject, limit: "1" })}`);
      if (this.#stop.signal.aborted) return;
      if ("page" in answer && Array.isArray(answer.page.jobs)) {
        for (const job of answer.page.jobs) this.#found.set(job.id, job);
        this.#choose();
      } else {
        // Next time the feed comes back.
        this.#looked = false;
      }
    } catch (error) {
      this.#looked = false;
      this.#env.report(error);
    }
  }

  /** Watches the job that matters now, if that is another. */
  #choose() {
    if (this.#stop.signal.aborted) return;
    const jobs = [...this.#found.values(), ...this.#feed.jobs.values()];
    const active = jobs.filter((job) => !job.terminal);
    // Ids begin with their time: the greatest is the newest.
    const [chosen] = (active.length > 0 ? active : jobs).sort((a, b) => (a.id < b.id ? 1 : -1));
    const over = this.#watch === null || this.#watch.link === "ended" || this.#watch.link === "gone";
    if (!chosen || (chosen.id === this.#id && !(over && chosen.seq > (this.job?.seq ?? 0)))) return;
    this.#watch?.close();
    this.#id = chosen.id;
    const { base = "", onEnd, onEvent, onSnapshot, onState, onUpdate } = this.#options;
    this.#watch = watch(`${base}/v1/jobs/${chosen.id}`, {
      ...this.#options,
      signal: undefined,
      onSnapshot: (job) => this.#calls.call(onSnapshot, job),
      onState: (job, output) => this.#calls.call(onState, job, output),
      onEvent: (event, job) => this.#calls.call(onEvent, event, job),
      onUpdate: (update) => {
        this.#calls.call(onUpdate, update);
        for (const queue of this.#queues) queue.push(update);
      },
      onEnd: (job) => this.#calls.call(onEnd, job),
      onLink: () => this.#show(),
      onError: (error) => error.status === 404 || this.#fail(error),
    });
    this.#show();
  }

  /** How the job's own connection stands; between two jobs, the feed's. */
  #show() {
    const own = this.#watch?.link;
    const link = own === undefined || own === "ended" || own === "gone" ? this.#feed.link : own;
    if (link === this.#shown || this.#stop.signal.aborted) return;
    this.#shown = link;
    this.#calls.call(this.#options.onLink, link);
  }

  /** @param {import("./types.js").WatchError} error */
  #fail(error) {
    if (this.#stop.signal.aborted) return;
    this.#show();
    this.#calls.call(this.#options.onError, error);
    this.#shut(error);
  }
}
