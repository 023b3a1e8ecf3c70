// @ts-check
/**
 * One thing watched over whatever transport gets through: one cursor, one attempt at a time, until it has ended, may not
 * be seen, or is closed.
 *
 * The session knows neither jobs nor feeds: its `Source` says where to ask, makes frames of pages, and takes frames. The
 * session owns the cursor: an id counts once its frame was taken. One way: transport → session → source → callbacks.
 */
import { Credential } from "./credential.js";
import { WatchError } from "./error.js";
import { Ladder } from "./ladder.js";
import { enter } from "./slots.js";
import { readStream } from "./transports.js";

/** @typedef {import("./types.js").Environment} Environment */
/** @typedef {import("./types.js").Frame} Frame */
/** @typedef {import("./types.js").Link} Link */
/** @typedef {import("./types.js").Transport} Transport */
/** @typedef {import("./transports.js").Ask} Ask */
/** @typedef {import("./transports.js").Attempt} Attempt */

/**
 * @typedef {"go on" | "again" | "ended" | "gone"} Verdict on a frame: `again`, if what is known cannot be trusted and
 *   everything has to come anew
 *
 * @typedef {{frames: Frame[], more: boolean, retryMs: number | null, cursor?: string}} Page what came after the cursor,
 *   and the cursor after it if the frames do not say
 *
 * @typedef {object} Source what is watched
 * @property {{name: string, count: number}} slots how many streams of its kind there may be in a browser
 * @property {(cursor: string | null) => string} streamUrl
 * @property {(ask: Ask, cursor: string | null, waitS: number) =>
 *   Promise<Page | {refusal: import("./transports.js").Refusal | null}>} poll
 * @property {(frame: Frame) => Verdict} take
 * @property {() => Promise<void> | null} [room] while it is pending, no more frames are wanted
 * @property {() => void} [onHeard] there was a sign of life
 * @property {(link: Link) => void} onLink
 * @property {(error: WatchError) => void} onError
 * @property {() => void} onClosed from here on it calls nobody
 */

/** How long a poll is parked: proxies often cut what is silent for 30 s. */
const WAIT_S = 25;
/** Somebody who looks again is not made to wait; but not every glance is a request. */
const WAKE_SPACING_MS = 1_000;

export class Session {
  /** @type {Link} */
  link = "connecting";
  /** @type {Transport} */
  transport = "stream";
  /** @type {string | null} */
  cursor;

  #source;
  #env;
  #options;
  #credential;
  #ladder;
  /** What is under way. */
  #stop = new AbortController();
  /** Ends the wait before the next attempt. @type {(() => void) | null} */
  #goOn = null;
  #over = false;
  #mute = false;
  #asleep = false;
  /** Whether the attempt was ended from here, and says nothing about its transport. */
  #interrupted = false;
  #startedAt = 0;
  #heardAt = 0;
  /** How it ended. @type {"ended" | "gone" | null} */
  #end = null;
  #unlisten = () => {};

  /**
   * @param {Source} source
   * @param {import("./types.js").ConnectionOptions} options
   * @param {Environment} env
   * @param {string | null} [cursor] what is known already
   */
  constructor(source, options, env, cursor = null) {
    this.#source = source;
    this.#options = options;
    this.#env = env;
    this.#credential = new Credential(options.token);
    this.#ladder = new Ladder(env.random);
    this.cursor = cursor;
  }

  open() {
    const { signal } = this.#options;
    if (signal?.aborted) {
      this.close();
      return;
    }
    const unlisten = this.#env.listen({ wake: (fresh) => this.#wake(fresh), sleep: () => this.#sleep() });
    const close = () => this.close();
    signal?.addEventListener("abort", close);
    this.#unlisten = () => {
      unlisten();
      signal?.removeEventListener("abort", close);
    };
    this.#run();
  }

  /** Stops at once; nothing is called and nothing asked afterwards. */
  close() {
    this.#mute = true;
    if (this.#over) return;
    this.#shut();
    this.link = "closed";
    this.#source.onClosed();
  }

  #shut() {
    this.#over = true;
    this.#unlisten();
    this.#stop.abort();
    this.#goOn?.();
  }

  async #run() {
    while (!this.#over) {
      if (this.#asleep) {
        await this.#pause(Infinity);
        continue;
      }
      this.#interrupted = false;
      const { tried, attempt } = await this.#attempt();
      if (this.#over || this.#finished(attempt)) return;
      if (this.#interrupted) {
        await this.#pause(0);
        continue;
      }
      const { refusal } = attempt;
      if (refusal?.status === 401) continue;
      this.#tell(attempt);
      const outcome = refusal ? { ...attempt, retryMs: refusal.retryMs } : attempt;
      await this.#pause(this.#ladder.after(tried, outcome, this.#env.now()).delayMs);
    }
  }

  /** @returns {Promise<{tried: Transport, attempt: Attempt}>} */
  async #attempt() {
    const { signal } = (this.#stop = new AbortController());
    this.#startedAt = this.#env.now();
    const { transport: tried, leave } = await enter(this.#env.locks, this.#ladder.transport, this.#source.slots);
    // At once: whoever comes after us finds the room that we leave.
    signal.addEventListener("abort", leave);
    /** @type {Attempt} */
    let attempt = { heard: false };
    try {
      if (signal.aborted) return { tried, attempt };
      const token = await this.#credential.get();
      if (signal.aborted) return { tried, attempt };
      this.transport = tried;
      const ask = { env: this.#env, signal, token, credentials: this.#options.credentials ?? "same-origin" };
      attempt = tried === "stream" ? await this.#stream(ask) : await this.#poll(ask, tried);
    } catch (error) {
      // The app could not give us a credential, for now.
      this.#env.report(error);
    } finally {
      leave();
    }
    return { tried, attempt };
  }

  /** @param {Ask} ask */
  #stream(ask) {
    return readStream(ask, this.#source.streamUrl(this.cursor), {
      silenceMs: 2.5 * (this.#options.pingMs ?? 15_000),
      take: (frame) => this.#take(frame, ask.signal),
    });
  }

  /**
   * @param {Ask} ask
   * @param {Transport} tried
   * @returns {Promise<Attempt>}
   */
  async #poll(ask, tried) {
    const began = this.#env.now();
    const answer = await this.#source.poll(ask, this.cursor, tried === "long-poll" ? WAIT_S : 0);
    if (ask.signal.aborted) return { heard: false };
    if ("refusal" in answer) return { heard: false, refusal: answer.refusal ?? undefined };
    const livedMs = this.#env.now() - began;
    if (answer.frames.length === 0) this.#hear();
    for (const frame of answer.frames) {
      if ((await this.#take(frame, ask.signal)) === "stop") break;
    }
    const { more, retryMs, cursor } = answer;
    if (cursor !== undefined && !ask.signal.aborted && !this.#end) this.cursor = cursor;
    return { heard: true, livedMs, more, empty: answer.frames.length === 0, retryMs };
  }

  /**
   * @param {Frame} frame
   * @param {AbortSignal} signal
   * @returns {Promise<"go on" | "stop">}
   */
  async #take(frame, signal) {
    if (signal.aborted) return "stop";
    const verdict = this.#judge(frame);
    // A callback may have closed it.
    if (signal.aborted) return "stop";
    if (verdict === "again") {
      this.cursor = null;
      return "stop";
    }
    if (frame.body.type === "reset") this.cursor = null;
    else if (frame.id !== null) this.cursor = frame.id;
    if (verdict !== "go on") {
      this.#end = verdict;
      return "stop";
    }
    if (frame.body.type !== "bye") this.#hear();
    await this.#source.room?.();
    return signal.aborted ? "stop" : "go on";
  }

  /**
   * @param {Frame} frame
   * @returns {Verdict}
   */
  #judge(frame) {
    try {
      return this.#source.take(frame);
    } catch (error) {
      // Not what the contract says, or our own fault: not to be taken for a cut connection in silence.
      this.#env.report(error);
      return "again";
    }
  }

  #hear() {
    this.#heardAt = this.#env.now();
    this.#credential.proven();
    this.#source.onHeard?.();
    this.#show("live");
  }

  /**
   * Whether there is nothing more to do.
   * @param {Attempt} attempt
   */
  #finished({ reason, refusal }) {
    if (reason === "complete") this.#end = "ended";
    if (reason === "token_expired") this.#credential.expired();
    if (this.#end) this.#finish(this.#end);
    else if (refusal) this.#refused(refusal);
    return this.#over;
  }

  /** @param {import("./transports.js").Refusal} refusal */
  #refused({ status, message, code }) {
    const error = new WatchError(status, message, code);
    if (status === 404 || status === 410) this.#finish("gone", error);
    else if (status === 403 || (status === 401 && !this.#credential.refused())) this.#finish("denied", error);
    // The gateway itself says that the request is wrong; any other refusal passes.
    else if ((status === 400 || status === 422) && code !== undefined) this.#finish("refused", error);
  }

  /**
   * @param {Link} link
   * @param {WatchError} [error]
   */
  #finish(link, error) {
    this.#shut();
    this.link = link;
    this.#source.onLink(link);
    if (error && !this.#mute) this.#source.onError(error);
  }

  /**
   * Tells what an attempt's end means for who watches.
   * @param {Attempt} attempt
   */
  #tell({ heard, held, silent, reason }) {
    // A rotation is nothing to speak of; nor is the pause between two polls, nor the way down to the first of them.
    if (heard && (reason === "rotate" || reason === "token_expired" || this.transport !== "stream")) return;
    if (held && this.link === "connecting") return;
    this.#show(silent ? "stale" : "reconnecting");
  }

  /** @param {Link} link */
  #show(link) {
    // Stale until something is heard: the tries in between change nothing about that.
    if (this.#over || link === this.link || (link === "reconnecting" && this.link === "stale")) return;
    this.link = link;
    this.#source.onLink(link);
  }

  /** @param {number} ms */
  async #pause(ms) {
    // A timer even for nothing: no chain of answers can keep a page from its own work.
    await new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
      const timer = ms < Infinity && !this.#over ? this.#env.setTimeout(resolve, ms) : null;
      this.#goOn = () => {
        this.#env.clearTimeout(timer);
        resolve();
      };
      if (this.#over) resolve();
    });
    this.#goOn = null;
  }

  /** @param {boolean} fresh */
  #wake(fresh) {
    this.#asleep = false;
    const since = this.#env.now() - this.#startedAt;
    const goOn = this.#goOn;
    if (goOn) {
      if (fresh || since >= WAKE_SPACING_MS) goOn();
      else this.#env.setTimeout(() => this.#goOn === goOn && goOn(), WAKE_SPACING_MS - since);
      return;
    }
    const silence = Math.min(since, this.#env.now() - this.#heardAt);
    // By now a ping was due: what was open before the machine slept is not alive.
    if (fresh || (this.transport === "stream" && silence > 1.25 * (this.#options.pingMs ?? 15_000))) this.#interrupt();
  }

  #sleep() {
    this.#asleep = true;
    this.#interrupt();
    this.#goOn?.();
  }

  #interrupt() {
    this.#interrupted = true;
    this.#stop.abort();
  }
}
