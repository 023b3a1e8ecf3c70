// @ts-check
/**
 * Which transport is next, and when: a stream; long-polls where something in the middle holds streams back; plain polls
 * where those are cut too. And up again: streams are tried now and then, and at once when an outage that explains the
 * failures is over.
 *
 * Pure: outcomes in, the next step out; the clock and chance are parameters. It knows no network.
 */

/** @typedef {import("./types.js").Transport} Transport */

/**
 * @typedef {object} Outcome how an attempt went
 * @property {boolean} heard something came that only a working transport brings
 * @property {number} [livedMs] how long the connection lived
 * @property {boolean} [planned] the gateway said that it would end it
 * @property {boolean} [held] nothing at all came of it in time, not even a refusal
 * @property {boolean} [more] a poll: there is more to fetch already
 * @property {boolean} [empty] a poll: it brought nothing new
 * @property {number | null} [retryMs] when the other side wants to be asked again
 *
 * @typedef {{transport: Transport, delayMs: number}} Step
 */

const BASE_MS = 1_000;
const CAP_MS = 30_000;
/** A connection that lived this long was a good one: the next trouble starts with short waits again. */
const STABLE_MS = 10_000;
/** What a connection that brought something, but died young, can raise the waits to: 2^2 times the base. */
const YOUNG_FAILURES = 2;
/** Misses in a row after which a transport does not work here. */
const MISSES = 2;
const POLL_MS = 2_000;
/** Long-polls begin at least this far apart: what comes in a flood is fetched by handfuls. */
const SPACING_MS = 250;
const EARLY_MS = 1_000;
const PROBE_MS = 30_000;
const PROBE_MAX_MS = 600_000;

export class Ladder {
  /** @type {Transport} */
  transport = "stream";
  /** Where to go back to when a probe fails. @type {Transport | null} */
  #fallback = null;
  /** Misses in a row of this transport. */
  #misses = 0;
  /** Failures in a row of any. */
  #failures = 0;
  /** Whether the fallback failed as well: then it is the gateway that is away, and streams may not be to blame. */
  #outage = false;
  #probeMs = PROBE_MS;
  #probeAt = 0;
  #random;

  /** @param {() => number} random */
  constructor(random) {
    this.#random = random;
  }

  /**
   * The step after an attempt.
   * @param {Transport} tried lower than `transport` if there was no room for more connections
   * @param {Outcome} outcome
   * @param {number} now ms
   * @returns {Step}
   */
  after(tried, outcome, now) {
    const delayMs = tried === "stream" ? this.#afterStream(outcome, now) : this.#afterPoll(tried, outcome, now);
    return { transport: this.transport, delayMs };
  }

  /**
   * @param {Outcome} outcome
   * @param {number} now
   */
  #afterStream({ heard, livedMs = 0, planned = false, held = false, retryMs = null }, now) {
    if (heard) {
      this.#fallback = null;
      this.#misses = 0;
      this.#outage = false;
      this.#probeMs = PROBE_MS;
      if (planned || livedMs >= STABLE_MS) this.#failures = 0;
      else this.#failures = Math.min(this.#failures, YOUNG_FAILURES);
      // The gateway spreads those whom it sends away; those whom an accident cut off spread themselves.
      return planned ? (retryMs ?? this.#draw()) : this.#draw(0, retryMs ?? 0);
    }
    this.#misses += 1;
    const delayMs = held ? 0 : this.#draw(retryMs ?? 0);
    if (!held && !this.#fallback && this.#misses < MISSES) return delayMs;
    this.transport = this.#fallback ?? "long-poll";
    this.#fallback = this.transport;
    this.#misses = 0;
    this.#probeAt = now + this.#probeMs;
    this.#probeMs = Math.min(2 * this.#probeMs, PROBE_MAX_MS);
    return delayMs;
  }

  /**
   * @param {Transport} tried
   * @param {Outcome} outcome
   * @param {number} now
   */
  #afterPoll(tried, { heard, livedMs = 0, more = false, empty = false, retryMs = null }, now) {
    if (!heard) {
      const delayMs = this.#draw(retryMs ?? 0);
      if (this.transport === "stream") return delayMs;
      this.#outage = true;
      this.#misses += 1;
      if (tried === "long-poll" && this.transport === "long-poll" && this.#misses >= MISSES) {
        this.transport = this.#fallback = "poll";
        this.#misses = 0;
      }
      return delayMs;
    }
    this.#misses = 0;
    this.#failures = 0;
    if (this.transport !== "stream" && (this.#outage || now >= this.#probeAt)) {
      // After an outage both are innocent again.
      if (this.#outage) this.#fallback = "long-poll";
      this.#outage = false;
      this.transport = "stream";
      return 0;
    }
    if (more) return 0;
    // Answered at once, with nothing new: whoever did so does not know how to wait.
    if (tried === "long-poll" && !(empty && livedMs < EARLY_MS)) return Math.max(0, SPACING_MS - livedMs);
    return (retryMs ?? POLL_MS) + this.#random() * SPACING_MS;
  }

  /**
   * A wait of full jitter, out of a span that grows with the failures.
   * @param {number} [leastMs] what was asked for: the jitter comes on top
   * @param {number} [spanMs] the least span
   */
  #draw(leastMs = 0, spanMs = 0) {
    const most = Math.min(Math.max(BASE_MS * 2 ** this.#failures, spanMs), CAP_MS);
    this.#failures += 1;
    return leastMs + this.#random() * most;
  }
}
