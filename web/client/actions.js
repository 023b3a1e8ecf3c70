// @ts-check
/** What a watcher may do to a job, if its credential allows: ask it to stop, and put it back after it ended. */
import { jobAddress, jobUrl } from "./address.js";
import { environment } from "./environment.js";
import { WatchError } from "./error.js";
import { refusal } from "./transports.js";

/** @typedef {import("./types.js").Job} Job */
/** @typedef {import("./types.js").ActionOptions} ActionOptions */

/**
 * Asks a job to stop: at once if it waits, else through whoever runs it.
 * @param {string | URL} url
 * @param {ActionOptions & {reason?: string, graceMs?: number}} [options]
 * @returns {Promise<Job>}
 * @throws {WatchError} status 0: the gateway could not be reached
 */
export function cancelJob(url, { reason, graceMs, ...options } = {}) {
  return post(url, "/cancel", options, { reason, grace_ms: graceMs }, {});
}

/**
 * Puts a job back that failed, was cancelled or expired. Repeated with the same key it is done once.
 * @param {string | URL} url
 * @param {ActionOptions & {idempotencyKey?: string}} [options]
 * @returns {Promise<Job>}
 * @throws {WatchError} status 0: the gateway could not be reached
 */
export function retryJob(url, { idempotencyKey = mintKey(), ...options } = {}) {
  return post(url, "/retry", options, undefined, { "idempotency-key": idempotencyKey });
}

/** A key for one intention, however often it is sent. */
export function mintKey() {
  // `randomUUID` is there on secure origins only.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * @param {string | URL} url
 * @param {string} rest
 * @param {ActionOptions} options
 * @param {unknown} body
 * @param {Record<string, string>} headers
 * @returns {Promise<Job>}
 */
async function post(url, rest, { token, credentials = "same-origin", environment: changes }, body, headers) {
  const address = jobAddress(url);
  const credential = token === undefined ? address.token : typeof token === "function" ? await token() : token;
  /** @type {Response} */
  let response;
  try {
    response = await environment(changes).fetch(jobUrl(address, rest), {
      method: "POST",
      credentials,
      headers: {
        accept: "application/json", "content-type": "application/json", ...headers,
        ...(credential ? { authorization: `Bearer ${credential}` } : {}),
      },
      body: JSON.stringify(body ?? {}),
    });
  } catch {
    throw new WatchError(0, "the gateway cannot be reached");
  }
  if (response.ok) return response.json();
  const { status, message, code } = await refusal(response);
  throw new WatchError(status, message, code);
}
