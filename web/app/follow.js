// @ts-check
/**
 * One job, followed live over a bare `EventSource` until it has ended.
 *
 * The browser reconnects by itself with the last id it saw. Two things it does not do: come back after an answer
 * other than 200 (a proxy's 502 closes it for good), and notice a connection that died silently. Both are done here,
 * with the cursor in `?after=`, spread by full jitter, and never after a 404 or the end of the job.
 */
import { follow, keepTail, NOTHING } from "../client/fold.js";
import { ask, base, jobPath, Refusal, witness } from "./gateway.js";

/** @typedef {import("../client/fold.js").View} View */
/** @typedef {"connecting" | "live" | "reconnecting" | "stale" | "ended" | "gone"} Link */

/** Pings come after 15 s of silence at most two seconds late: twice that, and the connection is not alive. */
const SILENCE_MS = 35_000;
const BACKOFF_MS = 1_000;
const BACKOFF_MAX_MS = 30_000;
/** A connection that lived this long was a good one: the next trouble starts with short waits again. */
const STABLE_MS = 10_000;
/** Characters of output kept in memory. */
const OUTPUT_KEPT = 200_000;

export class Follower {
  /** @type {View} */
  view = NOTHING;
  /** @type {Link} */
  link = "connecting";

  #id;
  #onChange;
  #onState;
  #onEvent;
  /** @type {EventSource | null} */
  #source = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #retry;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #watchdog;
  #failures = 0;
  #openedAt = 0;
  /** Whether the gateway has said that it will end this connection, and nothing is wrong. */
  #rotating = false;
  #heardAt = 0;

  /**
   * @param {string} id
   * @param {object} callbacks none is called after `close()`
   * @param {() => void} callbacks.onChange `view` or `link` changed
   * @param {(job: import("../client/fold.js").Job) => void} callbacks.onState a whole document came: what was before
   *   it did not pass through `onEvent`
   * @param {(event: import("../client/fold.js").LogEvent) => void} callbacks.onEvent an event of the log, once, in order
   */
  constructor(id, { onChange, onState, onEvent }) {
    this.#id = id;
    this.#onChange = onChange;
    this.#onState = onState;
    this.#onEvent = onEvent;
  }

  /** Opens the connection; with what is known already, from there on. */
  open() {
    this.close();
    const after = this.view.job ? `&after=${this.view.job.seq}` : "";
    const source = new EventSource(`${base}${jobPath(this.#id, "/events")}?unnamed=1${after}`);
    this.#source = source;
    source.onopen = () => {
      this.#openedAt = Date.now();
    };
    source.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    source.onerror = () => this.#lost(source);
    this.#heard();
  }

  /** Closes what is open; nothing happens afterwards until `open()`. */
  close() {
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.#retry);
    clearTimeout(this.#watchdog);
  }

  /** @param {Record<string, any>} frame */
  #receive(frame) {
    this.#heard();
    this.#rotating = frame.type === "bye" && frame.reason === "rotate";
    witness(frame.at ?? (frame.type === "state" ? frame.updated_at : null));
    const before = this.view;
    try {
      const { job, output } = follow(before, frame);
      this.view = { job, output: keepTail(output, OUTPUT_KEPT) };
    } catch (error) {
      // A hole in the log: what we have cannot be trusted, a fresh state can.
      console.error(error);
      this.view = NOTHING;
      this.#again("reconnecting");
      return;
    }
    if (Date.now() - this.#openedAt > STABLE_MS) this.#failures = 0;
    const { job } = this.view;
    if (job && frame.type === "state") this.#onState(job);
    else if (job && job.seq !== before.job?.seq) this.#onEvent(/** @type {import("../client/fold.js").LogEvent} */ (frame));
    // Only `end` ends it: in a replay a terminal event may be followed by a redrive.
    if (frame.type === "end") this.#finish(frame.state === "deleted" ? "gone" : "ended");
    else if (frame.type !== "bye") this.#show("live");
  }

  /** @param {EventSource} source */
  async #lost(source) {
    if (source !== this.#source) return;
    // The browser tries again by itself, and after a rotation there is nothing to say about it.
    if (!this.#rotating) this.#show("reconnecting");
    this.#rotating = false;
    if (source.readyState !== EventSource.CLOSED) return;
    try {
      const job = await ask(jobPath(this.#id));
      if (source !== this.#source) return;
      if (job.terminal && job.seq === this.view.job?.seq) {
        this.#finish("ended");
        return;
      }
    } catch (error) {
      if (source !== this.#source) return;
      if (error instanceof Refusal && [401, 403, 404].includes(error.status)) {
        this.#finish("gone");
        return;
      }
    }
    this.#again("reconnecting");
  }

  /**
   * Opens again after a while.
   * @param {Link} link what to show until then
   */
  #again(link) {
    const most = Math.min(BACKOFF_MS * 2 ** this.#failures, BACKOFF_MAX_MS);
    this.#failures += 1;
    this.close();
    this.#retry = setTimeout(() => this.open(), Math.random() * most);
    this.#show(link);
  }

  /** @param {"ended" | "gone"} link */
  #finish(link) {
    this.close();
    this.#show(link);
  }

  #heard() {
    this.#heardAt = Date.now();
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => this.#silent(), SILENCE_MS);
  }

  #silent() {
    // After the machine slept the timer comes first and the frames that waited come after it: hear them.
    if (Date.now() - this.#heardAt > SILENCE_MS + 5_000) this.#heard();
    else this.#again("stale");
  }

  /** @param {Link} link */
  #show(link) {
    // Stale until something is heard: the tries in between change nothing about that.
    if (link !== "reconnecting" || this.link !== "stale") this.link = link;
    this.#onChange();
  }
}
