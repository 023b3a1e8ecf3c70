// @ts-check
/**
 * The two ways of asking: an event stream, and a page of JSON. Each function is one attempt, and tells how it went; when
 * the next one is due, and which, is the ladder's business.
 *
 * The stream is read through `fetch`, not through `EventSource`, which can neither send an `Authorization` header nor see
 * a status, a `Retry-After` or a byte that is not part of a frame: it takes a 429 or a proxy's 502 for the end of
 * everything, and knows a credential that ran out from a gateway that is down as little as a dead connection from a quiet
 * job. The price is this file. A bare `EventSource` on the same URL works too, as the README shows; it just knows less.
 */
import { SseParser } from "./sse.js";

/** @typedef {import("./types.js").Frame} Frame */
/** @typedef {import("./types.js").Environment} Environment */
/** @typedef {import("./ladder.js").Outcome} Outcome */

/**
 * @typedef {object} Ask what an attempt is made with
 * @property {Environment} env
 * @property {AbortSignal} signal ends it from outside: then whatever it answers is void
 * @property {string | null} token
 * @property {RequestCredentials} credentials
 *
 * @typedef {object} Refusal an answer that is none of what was asked for
 * @property {number} status
 * @property {string} message
 * @property {string | undefined} code the problem's, if it was one
 * @property {number | null} retryMs
 *
 * @typedef {Outcome & {refusal?: Refusal, silent?: boolean, reason?: string}} Attempt how it went: `silent` if the
 *   watchdog ended it, `reason` as in the gateway's `bye`, or `complete` for a 204
 */

/** From opening to the first frame: longer, and a box in the middle holds it back. */
const FIRST_FRAME_MS = 5_000;
/** What a request may take beyond the time that it asked to be held. */
const ANSWER_MS = 15_000;

/** An attempt's own end: a timer that each sign of life winds up again. */
class Deadline {
  #env;
  #stop = new AbortController();
  /** @type {unknown} */
  #timer;
  #due = 0;
  #ms = 0;
  expired = false;

  /**
   * @param {Environment} env
   * @param {AbortSignal} outer
   */
  constructor(env, outer) {
    this.#env = env;
    this.signal = this.#stop.signal;
    const stop = () => this.#stop.abort();
    outer.addEventListener("abort", stop, { signal: this.signal });
    if (outer.aborted) stop();
  }

  /** @param {number} ms */
  wind(ms) {
    this.rest();
    this.#ms = ms;
    this.#due = this.#env.now() + ms;
    this.#timer = this.#env.setTimeout(() => this.#fire(), ms);
  }

  #fire() {
    // After the machine slept the timer comes first and the bytes that waited come after it: hear them.
    if (this.#env.now() - this.#due > 5_000) {
      this.wind(this.#ms);
      return;
    }
    this.expired = true;
    this.#stop.abort();
  }

  rest() {
    this.#env.clearTimeout(this.#timer);
  }

  /** Ends what is still under way. */
  end() {
    this.rest();
    this.#stop.abort();
  }
}

/**
 * Reads a stream until it ends, one way or the other.
 * @param {Ask} ask
 * @param {string} url
 * @param {object} reader
 * @param {number} reader.silenceMs
 * @param {(frame: Frame) => "go on" | "stop" | Promise<"go on" | "stop">} reader.take while its promise is pending
 *   nothing more is read
 * @returns {Promise<Attempt>}
 */
export async function readStream(ask, url, { silenceMs, take }) {
  const { env, signal } = ask;
  const deadline = new Deadline(env, signal);
  const opened = env.now();
  /** @type {Attempt} */
  const attempt = { heard: false };
  const told = () => ({ ...attempt, livedMs: env.now() - opened });
  deadline.wind(FIRST_FRAME_MS);
  try {
    const response = await env.fetch(url, init(ask, "text/event-stream", deadline.signal));
    if (response.status === 204) return { ...told(), heard: true, reason: "complete" };
    if (response.status !== 200 || !isOfType(response, "text/event-stream") || !response.body) {
      return { ...told(), refusal: await refusal(response) };
    }
    const parser = new SseParser();
    const body = response.body.getReader();
    for (;;) {
      const { done, value } = await body.read();
      if (done) return told();
      if (attempt.heard) deadline.wind(silenceMs);
      for (const raw of parser.push(value)) {
        const frame = parsed(raw);
        if (raw.retry !== null) attempt.retryMs = raw.retry;
        if (!frame) continue;
        if (frame.body.type === "bye") {
          attempt.planned = true;
          attempt.reason = String(frame.body.reason);
        } else {
          attempt.heard = true;
          deadline.rest();
        }
        if ((await take(frame)) === "stop" || signal.aborted) return told();
      }
      if (attempt.heard) deadline.wind(silenceMs);
    }
  } catch {
    // The network's errors have no names that could be relied on: it is gone.
    return deadline.expired ? { ...told(), ...(attempt.heard ? { silent: true } : { held: true }) } : told();
  } finally {
    deadline.end();
  }
}

/**
 * Asks for a page of JSON.
 * @param {Ask} ask
 * @param {string} url
 * @param {number} [waitS] how long the gateway may hold it
 * @returns {Promise<{page: any, response: Response} | {refusal: Refusal | null}>} null: no answer
 */
export async function askPage(ask, url, waitS = 0) {
  const deadline = new Deadline(ask.env, ask.signal);
  deadline.wind(waitS * 1000 + ANSWER_MS);
  try {
    const response = await ask.env.fetch(url, init(ask, "application/json", deadline.signal));
    if (response.status !== 200) return { refusal: await refusal(response) };
    // Whatever it is, if it is no JSON it is not from the gateway.
    const page = isOfType(response, "application/json") ? await response.json() : null;
    if (page === null || typeof page !== "object") return { refusal: await refusal(response) };
    return { page, response };
  } catch {
    return { refusal: null };
  } finally {
    deadline.end();
  }
}

/**
 * Asks for text: a range of a job's output.
 * @param {Ask} ask
 * @param {string} url
 * @param {{from: number, to: number}} bytes
 * @returns {Promise<Uint8Array | null>}
 */
export async function askBytes(ask, url, { from, to }) {
  const deadline = new Deadline(ask.env, ask.signal);
  deadline.wind(ANSWER_MS);
  try {
    const { headers, ...rest } = init(ask, "text/plain", deadline.signal);
    const response = await ask.env.fetch(url, { ...rest, headers: { ...headers, range: `bytes=${from}-${to - 1}` } });
    // A newer run has said less so far. Its beginning comes with the log.
    if (response.status === 416) return new Uint8Array();
    if (response.status !== 206 && response.status !== 200) return null;
    const bytes = new Uint8Array(await response.arrayBuffer());
    return response.status === 206 ? bytes : bytes.slice(from, to);
  } catch {
    return null;
  } finally {
    deadline.end();
  }
}

/**
 * @param {Ask} ask
 * @param {string} accept
 * @param {AbortSignal} signal
 */
function init({ token, credentials }, accept, signal) {
  return {
    /** @type {Record<string, string>} */
    headers: { accept, ...(token === null ? {} : { authorization: `Bearer ${token}` }) },
    cache: /** @type {const} */ ("no-store"),
    credentials,
    signal,
  };
}

/**
 * @param {Response} response
 * @param {string} type
 */
function isOfType(response, type) {
  return (response.headers.get("content-type") ?? "").split(";")[0].trim().toLowerCase() === type;
}

/**
 * @param {Response} response
 * @returns {Promise<Refusal>}
 */
export async function refusal(response) {
  const problem = isOfType(response, "application/problem+json") ? await response.json().catch(() => null) : null;
  // A page of somebody else's; what is left of it is not worth the connection.
  if (!response.bodyUsed) await response.body?.cancel().catch(() => {});
  return {
    status: response.status,
    message: String(problem?.detail ?? problem?.title ?? `the gateway answered ${response.status}`),
    code: typeof problem?.code === "string" ? problem.code : undefined,
    retryMs: retryAfter(response),
  };
}

/**
 * What `Retry-After` says, if it is a number; a date would need a clock that is right.
 * @param {Response} response
 */
export function retryAfter(response) {
  const seconds = response.headers.get("retry-after");
  return seconds !== null && /^\d{1,6}$/.test(seconds) ? Number(seconds) * 1000 : null;
}

/**
 * @param {import("./sse.js").RawFrame} raw
 * @returns {Frame | null}
 */
function parsed({ event, data, id }) {
  try {
    const body = JSON.parse(data);
    if (typeof body !== "object" || body === null) return null;
    return { id, body: body.type === undefined ? { type: event, ...body } : body };
  } catch {
    return null;
  }
}
