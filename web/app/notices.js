// @ts-check
/** Notices: shown for a moment in the corner, kept for the activity view as long as the tab lives. */
import { element } from "../client/dom.js";
import { standing } from "../client/format.js";
import { announce } from "./announce.js";
import { jobPage, now } from "./gateway.js";

/** @typedef {import("../client/types.js").Job} Job */
/** @typedef {import("../client/format.js").Tone} Tone */
/** @typedef {{at: number, text: string, tone: Tone, job: string | null}} Notice */

const KEY = "milepost.notices";
const KEPT = 200;
const SHOWN = 3;
const SHOWN_MS = 6_000;

/** Fires when there is another notice. */
export const noticed = new EventTarget();

/** @type {Map<string, boolean>} */
const ended = new Map();

/** @returns {Notice[]} the newest first */
export function notices() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept : [];
  } catch {
    return [];
  }
}

export function clearNotices() {
  keep([]);
}

/**
 * Tells something, here and in the activity log.
 * @param {string} text
 * @param {{tone?: Tone, job?: string | null}} [about]
 */
export function notice(text, { tone = "active", job = null } = {}) {
  keep([{ at: now(), text, tone, job }, ...notices()].slice(0, KEPT));
  toast(text, tone, job);
  announce(text);
}

/**
 * Tells that a job ended, if it was seen alive here before.
 * @param {Job} job
 * @param {number} time the gateway's, ms
 */
export function tellEnding(job, time) {
  const before = ended.get(job.id);
  ended.set(job.id, job.terminal);
  if (!job.terminal || before !== false) return;
  const { label, tone } = standing(job, time);
  notice(`${label}: ${job.kind}${job.subject ? ` ${job.subject}` : ""}`, { tone, job: job.id });
}

/** @param {Notice[]} all */
function keep(all) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(all));
  } catch {
    // A browser that stores nothing still shows them.
  }
  noticed.dispatchEvent(new Event("change"));
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
