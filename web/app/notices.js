// @ts-check
/** Notices: shown for a moment in the corner, kept for the activity view as long as the tab lives. */
import { element } from "../client/dom.js";
import { standing } from "../client/format.js";
import { announce } from "./announce.js";
import { jobPage, now, openedAt } from "./gateway.js";

/** @typedef {import("../client/types.js").Job} Job */
/** @typedef {import("../client/format.js").Tone} Tone */
/** @typedef {{at: number, text: string, tone: Tone, job: string | null}} Notice */

const KEY = "milepost.notices";
const KEPT = 200;
const SHOWN = 3;
const SHOWN_MS = 6_000;
/** Of jobs that end in droves one in so many milliseconds is shown; the log has all. */
const APART_MS = 1_000;

/** Fires when there is another notice. */
export const noticed = new EventTarget();

/** Jobs that were seen alive here. @type {Set<string>} */
const alive = new Set();
/** Endings that were told, by job and seq; the last few thousand. @type {Set<string>} */
const told = new Set();
const TOLD = 5_000;
let all = read();
/** The newest ending that is still to be shown. @type {(() => void) | null} */
let next = null;
let resting = false;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let writing;

addEventListener("pagehide", write);

/** @returns {readonly Notice[]} the newest first */
export function notices() {
  return all;
}

export function clearNotices() {
  keep([]);
}

/**
 * Tells something that was done here: shown, said, and kept in the activity log.
 * @param {string} text
 * @param {{tone?: Tone, job?: string | null}} [about]
 */
export function notice(text, { tone = "active", job = null } = {}) {
  keep([{ at: now(), text, tone, job }, ...all].slice(0, KEPT));
  toast(text, tone, job);
  announce(text);
}

/**
 * Tells that a job ended, if it did so under the eyes of this page. Not said aloud: on a busy gateway that never ended.
 * @param {Job} job
 * @param {number} time the gateway's, ms
 */
export function tellEnding(job, time) {
  if (!job.terminal) {
    alive.add(job.id);
    return;
  }
  // Of a short job the feed may carry nothing but its end.
  const ended = Date.parse(job.finished_at ?? "");
  const here = alive.delete(job.id) || (openedAt !== null && ended > openedAt);
  const name = `${job.id} ${job.seq}`;
  if (!here || told.has(name)) return;
  told.add(name);
  if (told.size > TOLD) told.delete(/** @type {string} */ (told.values().next().value));
  const { label, tone } = standing(job, time);
  const text = `${label}: ${job.kind}${job.subject ? ` ${job.subject}` : ""}`;
  keep([{ at: time, text, tone, job: job.id }, ...all].slice(0, KEPT));
  next = () => toast(text, tone, job.id);
  if (!resting) showNext();
}

/** Shows the newest ending, and then none for a while. */
function showNext() {
  resting = next !== null;
  next?.();
  next = null;
  if (resting) setTimeout(showNext, APART_MS);
}

/** @param {Notice[]} newer */
function keep(newer) {
  all = newer;
  writing ??= setTimeout(write, 500);
  noticed.dispatchEvent(new Event("change"));
}

function write() {
  clearTimeout(writing);
  writing = undefined;
  try {
    sessionStorage.setItem(KEY, JSON.stringify(all));
  } catch {
    // A browser that stores nothing still shows them.
  }
}

/** @returns {Notice[]} */
function read() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept : [];
  } catch {
    return [];
  }
}

/**
 * @param {string} text
 * @param {Tone} tone
 * @param {string | null} job
 */
function toast(text, tone, job) {
  const corner = document.getElementById("toasts");
  if (!corner || document.hidden) return;
  const made = element("p", { class: "toast", "data-tone": tone }, job ? element("a", { href: jobPage(job) }, text) : text);
  corner.append(made);
  while (corner.children.length > SHOWN) corner.firstElementChild?.remove();
  setTimeout(() => made.remove(), SHOWN_MS);
}
