// @ts-check
/** The gateway as the page sees it: its address, its clock, its plain JSON answers. */

/** The path under which the gateway is served: empty, or like `/progress`. */
export const base = document.documentElement.dataset.base ?? "";

/** The watch token that the page's address carries where no server logs it, if there is one. */
export const token = new URLSearchParams(location.hash.slice(1)).get("token");

/** How far the gateway's clock is ahead of ours, ms; null until it told us. */
let ahead = /** @type {number | null} */ (null);

/**
 * The gateway's time, ms. All ages and durations on the page are counted in it: our own clock may be minutes off.
 */
export function now() {
  return Date.now() + (ahead ?? 0);
}

/**
 * Learns from a time that the gateway wrote and that has passed there.
 * @param {string | null | undefined} at
 */
export function witness(at) {
  const time = at ? Date.parse(at) : NaN;
  if (time > now()) ahead = time - Date.now();
}

/** What the gateway refused, or that it could not be reached (`status` 0). */
export class Refusal extends Error {
  /**
   * @param {number} status
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.name = "Refusal";
    this.status = status;
  }
}

/**
 * Asks for JSON.
 * @param {string} path below the base path
 * @param {RequestInit} [init]
 * @returns {Promise<any>}
 * @throws {Refusal}
 */
export async function ask(path, init = {}) {
  let response;
  try {
    const headers = new Headers(init.headers);
    headers.set("accept", "application/json");
    if (token !== null) headers.set("authorization", `Bearer ${token}`);
    response = await fetch(base + path, { ...init, headers });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Refusal(0, "The gateway cannot be reached.");
  }
  const date = Date.parse(response.headers.get("date") ?? "");
  // The header has whole seconds, cut off: its middle is the best guess.
  if (date) ahead = date + 500 - Date.now();
  const body = await response.json().catch(() => null);
  if (!response.ok) {
    throw new Refusal(response.status, body?.detail ?? body?.title ?? `The gateway answered ${response.status}.`);
  }
  return body;
}

/**
 * The path of one job's resource.
 * @param {string} id
 * @param {string} [rest]
 */
export function jobPath(id, rest = "") {
  return `/v1/jobs/${encodeURIComponent(id)}${rest}`;
}

/**
 * The address of a job's resource for a link, which can send no header.
 * @param {string} id
 * @param {string} rest
 */
export function jobLink(id, rest) {
  return `${base}${jobPath(id, rest)}${token === null ? "" : `?token=${encodeURIComponent(token)}`}`;
}
