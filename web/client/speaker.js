// @ts-check
/** What is said aloud about a job: what changed, and only what matters. Never a flood. */
import { standing } from "./format.js";

/** @typedef {import("./types.js").Job} Job */
/** @typedef {import("./types.js").Link} Link */

/** How things stand with the gateway, in words. @type {Record<Link, string>} */
export const LINK = {
  connecting: "Connecting…",
  live: "Live",
  reconnecting: "Reconnecting…",
  stale: "No word from the gateway: what is shown may be old",
  ended: "Ended",
  gone: "Not found",
  denied: "Not allowed: sign in again",
  refused: "The gateway refuses this page's requests",
  closed: "Closed",
};

/**
 * @param {(text: string) => void} say
 * @param {() => number} now the gateway's time, ms
 */
export function speaker(say, now) {
  let state = "";
  let half = false;
  /** @type {Link} */
  let link = "connecting";
  /**
   * @param {Job | null} job
   * @param {Link} newer
   */
  return (job, newer) => {
    if (newer !== link && (newer === "reconnecting" || newer === "stale" || (newer === "live" && link !== "connecting"))) {
      say(newer === "live" ? "Connected again" : LINK[newer]);
    }
    link = newer;
    if (!job) return;
    const { label } = standing(job, now());
    const share = job.progress?.percent ?? 0;
    if (label !== state) say(job.error && job.terminal ? `${label}: ${job.error.code ?? "error"}` : label);
    else if (share >= 50 && !half && !job.terminal) say("Half-way");
    state = label;
    half = share >= 50;
  };
}
