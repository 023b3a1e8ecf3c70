// @ts-check
/** The gateway as the page sees it: its address, its clock, its plain JSON answers. */

/** The path under which the gateway is served: empty, or like `/progress`. */
export const base = document.documentElement.dataset.base ?? "";

/** How long an answer may take. */
const PATIENCE_MS = 20_000;

/** The watch token that the page's address carries where no server logs it, if there is one. */
export const token = new URLSearchParams(location.hash.slice(1)).get("token");

/**
 * The fragment of a page's address: which view, and the credential, neither of which a server needs to see.
 * @param {Record<string, string>} [words]
 */
function fragment(words = {}) {
  const all = new URLSearchParams(token === null ? words : { ...words, token });
  return all.size > 0 ? `#${all}` : "";
}

/**
 * The address of a job's page.
 * @param {string} id
 */
export function jobPage(id) {
  return `${base}/jobs/${encodeURIComponent(id)}${fragment()}`;
}

/**
 * The address of a view of the first page.
 * @param {string} view
 * @param {Record<string, string>} [words]
 */
export function viewPage(view, words = {}) {
  return `${base}/${fragment(view === "jobs" ? words : { view, ...words })}`;
}

/** How far the gateway's clock is ahead of ours, ms; null until it told us. */
let ahead = /** @type {number | null} */ (null);

/** When the page was opened, by the gateway's clock, ms; null until its first answer. @type {number | null} */
export let openedAt = null;

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
    // A request that hangs must not keep its view from asking again.
    const signals = [AbortSignal.timeout(PATIENCE_MS), ...(init.signal ? [init.signal] : [])];
    response = await fetch(base + path, { ...init, headers, signal: AbortSignal.any(signals) });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Refusal(0, "The gateway cannot be reached.");
  }
  const date = Date.parse(response.headers.get("date") ?? "");
  // The header has whole seconds, cut off: its middle is the best guess.
  if (date) ahead = date + 500 - Date.now();
  openedAt ??= date || null;
  const body = await response.json().catch(() => null);
  if (!response.ok) {
    throw new Refusal(response.status, body?.detail ?? body?.title ?? `The gateway answered ${response.status}.`);
  }
  return body;
}

/**
 * Asks for a change.
 * @param {"POST" | "PATCH" | "DELETE"} method
 * @param {string} path below the base path
 * @param {unknown} [body]
 * @param {Record<string, string>} [headers]
 * @returns {Promise<any>}
 * @throws {Refusal}
 */
export function send(method, path, body, headers = {}) {
  if (body === undefined) return ask(path, { method, headers });
  return ask(path, { method, headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body) });
}

/**
 * The path of one queue's resource.
 * @param {string} name
 * @param {string} [rest]
 */
export function queuePath(name, rest = "") {
  return `/v1/queues/${encodeURIComponent(name)}${rest}`;
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
