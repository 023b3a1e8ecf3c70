// @ts-check
/** The jobs that match a filter: pages of the list, kept true by the feed. */
import { ask, jobPath, Refusal } from "./gateway.js";
import { liveFeed } from "./live.js";

/** @typedef {import("../client/types.js").Job} Job */

/** The most the gateway gives at once. */
const PAGE_MAX = 200;
/** Jobs that came in since the list was asked for, which it holds beside those. */
const SPARE = 2_000;
/** How soon it is asked again, if there is no feed to tell. */
const WITHOUT_FEED_MS = 3_000;

/**
 * @param {ReturnType<typeof import("./filters.js").wanted>} wanted
 * @param {AbortSignal} signal ends it
 * @param {{onChange: () => void, onError: (error: Error) => void}} calls
 */
export function findJobs(wanted, signal, { onChange, onError }) {
  /** @type {Map<string, Job>} */
  let jobs = new Map();
  let size = 50;
  /** What is older than this is not shown yet; "" if there is nothing older. */
  let oldest = "";
  let loaded = false;
  /** @type {Job[] | null} */
  let sorted = null;
  /** @type {AbortController | null} */
  let asking = null;

  /** @param {Job} job */
  function put(job) {
    const known = jobs.get(job.id);
    if (known && known.seq >= job.seq) return;
    if (!wanted.fits(job) || job.id < oldest) {
      if (known) remove(job.id);
      return;
    }
    jobs.set(job.id, job);
    // A job that is there already keeps its place.
    if (known && sorted) {
      const place = sorted.indexOf(known);
      if (place >= 0) sorted[place] = job;
    } else sorted = null;
    onChange();
  }

  /** @param {string} id */
  function remove(id) {
    if (!jobs.delete(id)) return;
    sorted = null;
    onChange();
  }

  async function load() {
    asking?.abort();
    asking = new AbortController();
    const asked = AbortSignal.any([signal, asking.signal]);
    try {
      const found = wanted.id === null ? await pages(wanted.list, size, asked) : await one(wanted.id, asked);
      const before = jobs;
      oldest = found.more ? (found.jobs.at(-1)?.id ?? "") : "";
      // Whatever is newer counts, wherever it came from; what neither has is gone.
      jobs = new Map();
      sorted = null;
      for (const job of [...found.jobs, ...feed.jobs]) {
        const known = before.get(job.id);
        put(known && known.seq > job.seq ? known : job);
      }
      loaded = true;
      onChange();
    } catch (error) {
      if (!asked.aborted) onError(/** @type {Error} */ (error));
    }
  }

  const feed = liveFeed(wanted.feed, signal, { onOpen: () => queueMicrotask(load), onState: put, onGone: remove });
  const timer = setInterval(() => {
    if (!document.hidden && (feed.link === "denied" || feed.link === "refused")) load();
  }, WITHOUT_FEED_MS);
  signal.addEventListener("abort", () => clearInterval(timer));

  return {
    /** Newest first. Ids begin with their time. */
    get jobs() {
      sorted ??= [...jobs.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
      // A page that is open for days has seen more than it can hold.
      if (sorted.length > 2 * size + SPARE) {
        for (const { id } of sorted.splice(size + SPARE)) jobs.delete(id);
        oldest = sorted.at(-1)?.id ?? "";
      }
      return sorted;
    },
    get loaded() {
      return loaded;
    },
    get more() {
      return oldest !== "";
    },
    /** Looks further back. */
    async extend() {
      size += size < 200 ? 150 : 1_000;
      await load();
    },
  };
}

/**
 * The newest jobs, as many as wanted.
 * @param {URLSearchParams} filters
 * @param {number} size
 * @param {AbortSignal} signal
 * @returns {Promise<{jobs: Job[], more: boolean}>}
 */
async function pages(filters, size, signal) {
  /** @type {Job[]} */
  const jobs = [];
  /** @type {string | null} */
  let cursor = null;
  do {
    const search = new URLSearchParams(filters);
    search.set("limit", String(Math.min(size - jobs.length, PAGE_MAX)));
    if (cursor) search.set("cursor", cursor);
    const page = await ask(`/v1/jobs?${search}`, { signal });
    jobs.push(...page.jobs);
    cursor = page.next;
  } while (cursor && jobs.length < size);
  return { jobs, more: cursor !== null };
}

/**
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {Promise<{jobs: Job[], more: boolean}>}
 */
async function one(id, signal) {
  try {
    return { jobs: [await ask(jobPath(id), { signal })], more: false };
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) return { jobs: [], more: false };
    throw error;
  }
}
