// @ts-check
/**
 * Many jobs on one connection: their states, not their logs. The tabs of one credential share it: one of them, the leader,
 * holds the connection and passes on to the others what comes; when its tab closes, the next goes on from its cursor.
 *
 * A follower's cursor is that of the last frame that it got, so nothing can fall between two leaders; what comes twice is
 * known by its seq. A leader that is not heard of (a frozen tab) loses the office to whoever misses it first.
 */
import { caller } from "./callbacks.js";
import { Election } from "./election.js";
import { environment } from "./environment.js";
import { Queue } from "./queue.js";
import { Session } from "./session.js";
import { shareName } from "./share-name.js";
import { FEEDS } from "./slots.js";
import { askPage, retryAfter } from "./transports.js";

/** @typedef {import("./types.js").Job} Job */
/** @typedef {import("./types.js").Frame} Frame */
/** @typedef {import("./types.js").Link} Link */
/** @typedef {import("./types.js").FeedFilter} FeedFilter */
/** @typedef {import("./types.js").FeedOptions} FeedOptions */
/** @typedef {import("./session.js").Verdict} Verdict */

/**
 * @typedef {{type: "hello", from: string}
 *   | {type: "snapshot", to: string | null, jobs: Job[], cursor: string | null, link: Link}
 *   | {type: "frame", body: Record<string, any>, cursor: string | null}
 *   | {type: "alive", cursor: string | null}
 *   | {type: "link", link: Link}} Message what tabs tell each other: a newcomer asks, the leader tells
 */

/**
 * Watches many jobs: those named, or those that match; without a filter all that the credential may read.
 * @param {FeedFilter} [filter]
 * @param {FeedOptions} [options]
 * @returns {import("./types.js").FeedWatch}
 */
export function watchFeed(filter = {}, options = {}) {
  return new FeedWatcher(filter, options);
}

class FeedWatcher {
  /** @type {Map<string, Job>} */
  #jobs = new Map();
  /** @type {Link} */
  #link = "connecting";
  /** @type {string | null} */
  #cursor = null;
  /** Whether `#jobs` holds everything up to the cursor. */
  #whole = false;
  /** Ids that were asked for by name; null if jobs may still join. @type {Set<string> | null} */
  #wanted;
  #url;
  #query;
  #options;
  #env;
  #calls;
  /** Ours, if we lead. @type {Session | null} */
  #session = null;
  /** @type {import("./types.js").Transport} */
  #transport = "stream";
  /** @type {BroadcastChannel | null} */
  #channel = null;
  /** @type {Election | null} */
  #election = null;
  /** Tells the tabs apart. */
  #tab = "";
  /** @type {unknown} */
  #watchdog;
  /** @type {Set<Queue<Job>>} */
  #queues = new Set();
  /** @type {Error | null} */
  #error = null;
  #over = false;
  #unlisten = () => {};

  /**
   * @param {FeedFilter} filter
   * @param {FeedOptions} options
   */
  constructor(filter, options) {
    this.#query = feedQuery(filter);
    const named = this.#query.getAll("job");
    this.#wanted = named.length > 0 && [...this.#query].length === named.length ? new Set(named) : null;
    this.#url = `${options.base ?? ""}/v1/events`;
    this.#env = environment(options.environment);
    this.#calls = caller(this.#env);
    this.#tab = `${this.#env.now().toString(36)}-${this.#env.random().toString(36).slice(2)}`;
    this.#options = options;
    const close = () => this.close();
    options.signal?.addEventListener("abort", close);
    const unlisten = this.#env.listen({ wake: (fresh) => fresh && this.#join(), sleep: () => this.#retire() });
    this.#unlisten = () => {
      unlisten();
      options.signal?.removeEventListener("abort", close);
    };
    if (options.signal?.aborted) this.close();
    else this.#begin();
  }

  get jobs() {
    return this.#jobs;
  }

  get link() {
    return this.#link;
  }

  get transport() {
    return this.#session?.transport ?? this.#transport;
  }

  close() {
    this.#calls.mute();
    if (!this.#over) this.#link = "closed";
    this.#shut();
  }

  /** @returns {AsyncIterator<Job, undefined>} */
  [Symbol.asyncIterator]() {
    /** @type {Queue<Job>} */
    const queue = new Queue();
    for (const job of this.#jobs.values()) queue.push(job);
    if (this.#over) queue.end(this.#error);
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

  #shut() {
    if (this.#over) return;
    this.#over = true;
    this.#unlisten();
    this.#retire();
    this.#channel?.close();
    for (const queue of this.#queues) queue.end(this.#error);
  }

  async #begin() {
    const { name, token } = await shareName(this.#address({}), this.#options, this.#env);
    if (this.#over) return;
    this.#options = { ...this.#options, token };
    if (name !== null && this.#env.openChannel && this.#env.locks) {
      this.#channel = this.#env.openChannel(name);
      this.#channel.onmessage = ({ data }) => this.#onMessage(data);
      this.#election = new Election(this.#env.locks, name, {
        elected: () => this.#lead(),
        deposed: () => {
          this.#retire();
          this.#join();
        },
      });
    }
    this.#join();
  }

  /** Follows, and waits to lead; alone, leads. */
  #join() {
    if (this.#over || this.#session) return;
    if (!this.#election) {
      this.#lead();
      return;
    }
    this.#election.stand();
    this.#post({ type: "hello", from: this.#tab });
    this.#listenFor();
  }

  /** Neither leads nor follows. */
  #retire() {
    this.#env.clearTimeout(this.#watchdog);
    const session = this.#session;
    this.#session = null;
    this.#transport = session?.transport ?? this.#transport;
    session?.close();
    this.#election?.leave();
  }

  #lead() {
    if (this.#over) return;
    this.#env.clearTimeout(this.#watchdog);
    const session = new Session(
      {
        slots: FEEDS,
        streamUrl: (cursor) => this.#address({ unnamed: "1", after: cursor }),
        poll: (ask, cursor, waitS) => this.#page(ask, cursor, waitS),
        take: (frame) => this.#relay(frame),
        room: () => this.#room(),
        onHeard: () => this.#post({ type: "alive", cursor: session.cursor }),
        onLink: (link) => this.#onLeadersLink(link),
        onError: (error) => this.#fail(error),
        onClosed() {},
      },
      // The signal is ours to hear, and so is the sleep of the page.
      { ...this.#options, signal: undefined },
      { ...this.#env, listen: (listener) => this.#env.listen({ wake: listener.wake, sleep() {} }) },
      this.#whole ? this.#cursor : null,
    );
    this.#session = session;
    this.#whole = true;
    this.#post({ type: "snapshot", to: null, jobs: [...this.#jobs.values()], cursor: session.cursor, link: this.#link });
    session.open();
  }

  /** @param {Message} message */
  #post(message) {
    if (!this.#over) this.#channel?.postMessage(message);
  }

  /** @param {Message} message */
  #onMessage(message) {
    if (this.#over) return;
    if (this.#session) {
      if (message.type !== "hello") return;
      const jobs = [...this.#jobs.values()];
      this.#post({ type: "snapshot", to: message.from, jobs, cursor: this.#session.cursor, link: this.#link });
      return;
    }
    if (message.type === "hello" || (message.type === "snapshot" && message.to !== null && message.to !== this.#tab)) return;
    this.#listenFor();
    if (message.type === "snapshot") {
      this.#whole = true;
      for (const job of message.jobs) this.#take({ ...job, type: "state" });
    }
    if (message.type === "frame") this.#take(message.body);
    // Without all that was before it a cursor would be a hole.
    if (message.type !== "link" && this.#whole) this.#cursor = message.cursor;
    if (message.type === "snapshot" || message.type === "link") this.#onLink(message.link);
    if (this.#isComplete()) this.#finish("ended");
  }

  /** Minds whether the leader is heard of. Drawn, so that not all miss it at once. */
  #listenFor() {
    this.#env.clearTimeout(this.#watchdog);
    const ms = (2.5 + this.#env.random()) * (this.#options.pingMs ?? 15_000);
    this.#watchdog = this.#env.setTimeout(() => this.#election?.seize(), ms);
  }

  /**
   * A frame of our own connection, for all.
   * @param {Frame} frame
   * @returns {Verdict}
   */
  #relay({ id, body }) {
    const cursor = body.type === "reset" ? null : (id ?? this.#session?.cursor ?? null);
    this.#cursor = cursor;
    if (body.type !== "bye") this.#post({ type: "frame", body, cursor });
    this.#take(body);
    return this.#isComplete() ? "ended" : "go on";
  }

  /** @param {Record<string, any>} body */
  #take(body) {
    const { onGone, onReset, onState, onTruncated } = this.#options;
    if (body.type === "state") {
      const { type: _, ...state } = body;
      const job = /** @type {Job} */ (state);
      if ((this.#jobs.get(job.id)?.seq ?? -1) >= job.seq) return;
      this.#jobs.set(job.id, job);
      this.#wanted?.delete(job.id);
      this.#calls.call(onState, job);
      for (const queue of this.#queues) queue.push(job);
    } else if (body.type === "gone") {
      this.#jobs.delete(body.id);
      this.#wanted?.delete(body.id);
      this.#calls.call(onGone, body.id);
    } else if (body.type === "reset") {
      this.#jobs.clear();
      this.#calls.call(onReset);
    } else if (body.type === "ping" && body.truncated) {
      this.#calls.call(onTruncated);
    }
  }

  /** Whether every job that was asked for by name has ended, or is not there. */
  #isComplete() {
    return this.#wanted?.size === 0 && [...this.#jobs.values()].every((job) => job.terminal);
  }

  #room() {
    const full = [...this.#queues].flatMap((queue) => queue.room() ?? []);
    return full.length > 0 ? Promise.all(full).then(() => {}) : null;
  }

  /** @param {Link} link */
  #onLeadersLink(link) {
    if (link === "ended" || link === "gone" || link === "denied" || link === "refused") {
      // Another tab's credential may do; it finds out by itself.
      queueMicrotask(() => this.#finish(link));
      return;
    }
    this.#post({ type: "link", link });
    this.#onLink(link);
  }

  /** @param {Link} link */
  #onLink(link) {
    if (link === this.#link || this.#over) return;
    this.#link = link;
    this.#calls.call(this.#options.onLink, link);
  }

  /** @param {Link} link */
  #finish(link) {
    if (this.#over) return;
    this.#onLink(link);
    if (this.#error) this.#calls.call(this.#options.onError, /** @type {any} */ (this.#error));
    this.#shut();
  }

  /** @param {import("./error.js").WatchError} error */
  #fail(error) {
    this.#error = error;
  }

  /**
   * Where to ask.
   * @param {Record<string, string | null>} parameters
   */
  #address(parameters) {
    const query = new URLSearchParams(this.#query);
    for (const [name, value] of Object.entries(parameters)) {
      if (value !== null) query.set(name, value);
    }
    return [...query].length > 0 ? `${this.#url}?${query}` : this.#url;
  }

  /**
   * @param {import("./transports.js").Ask} ask
   * @param {string | null} cursor
   * @param {number} waitS
   * @returns {ReturnType<import("./session.js").Source["poll"]>}
   */
  async #page(ask, cursor, waitS) {
    const wait = waitS > 0 && cursor !== null ? String(waitS) : null;
    const answer = await askPage(ask, this.#address({ wait, after: cursor }), waitS);
    if ("refusal" in answer) return answer;
    const { jobs, gone = [], next, reset, truncated } = answer.page;
    if (!Array.isArray(jobs) || typeof next !== "string") return { refusal: null };
    const bodies = [
      ...(reset ? [{ type: "reset", reason: reset }] : []),
      ...jobs.map((/** @type {Job} */ job) => ({ ...job, type: "state" })),
      ...gone.map((/** @type {string} */ id) => ({ type: "gone", id })),
      ...(truncated ? [{ type: "ping", truncated }] : []),
    ];
    const frames = bodies.map((body) => ({ id: null, body }));
    return { frames, more: cursor === null, retryMs: retryAfter(answer.response), cursor: next };
  }
}

/**
 * The filter in one form, whatever the order in which it was given.
 * @param {FeedFilter} filter
 */
function feedQuery({ jobs = [], subject = [], queue = [], kind = [] }) {
  const names = Object.entries({ job: jobs, kind, queue, subject });
  return new URLSearchParams(names.flatMap(([name, values]) =>
    [...new Set([values].flat())].sort().map((value) => [name, value]),
  ));
}
