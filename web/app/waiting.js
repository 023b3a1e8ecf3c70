// @ts-check
/** Why a job waits, in words; asked again while it does. */
import { element, setText } from "../client/dom.js";
import { duration, number } from "../client/format.js";
import { ask, jobPage, jobPath, now, Refusal } from "./gateway.js";

/** @typedef {import("../client/types.js").Job} Job */

const AGAIN_MS = 3_000;
const WAITING = new Set(["scheduled", "queued", "retrying"]);

/**
 * @param {HTMLElement} target
 * @param {string} id
 * @returns {{draw: (job: Job) => void}}
 */
export function waitingNote(target, id) {
  let asked = 0;
  let busy = false;
  let refused = false;
  let state = "";

  async function look() {
    busy = true;
    try {
      const { waiting_for: reason } = await ask(jobPath(id, "?include=waiting"));
      if (WAITING.has(state)) {
        setText(target, reason ? `Why it waits: ${explain(reason)}.` : "");
        if (Array.isArray(reason?.jobs) && reason.jobs.length > 0) {
          const links = reason.jobs.map((/** @type {string} */ other) => element("li", {}, element("a", { class: "mono", href: jobPage(other) }, other)));
          target.append(element("ul", {}, ...links));
        }
        target.hidden = !reason;
      }
    } catch (error) {
      refused = error instanceof Refusal && (error.status === 401 || error.status === 403);
    }
    busy = false;
  }

  return {
    draw(job) {
      if (job.state !== state) asked = 0;
      state = job.state;
      if (!WAITING.has(state)) {
        target.hidden = true;
        return;
      }
      if (busy || refused || Date.now() - asked < AGAIN_MS) return;
      asked = Date.now();
      look();
    },
  };
}

/** @param {Record<string, any>} reason */
function explain(reason) {
  const time = Date.parse(reason.run_at ?? reason.until ?? reason.held_until ?? "");
  const left = Number.isNaN(time) ? "" : ` for ${duration(time - now())} more`;
  switch (reason.reason) {
    case "paused": {
      const { by, reason: why } = reason.paused ?? {};
      return `its queue is paused${by ? ` by ${by}` : ""}${why ? ` (${why})` : ""}`;
    }
    case "run_at":
      return `its time has not come${left}`;
    case "held":
      return `a worker asked to hold the queue back${left}`;
    case "concurrency":
      return `${reason.running} of the queue's ${reason.limit} slots are taken`;
    case "concurrency_key":
      return `${reason.running} of ${reason.limit} slots of ${reason.key} are taken`;
    case "rate_limit":
      return `the rate limit of ${number(reason.limit)} per ${duration(reason.per_ms)}${reason.key ? ` for ${reason.key}` : ""} is used up${left}`;
    case "no_worker":
      return "no worker is free for it";
    case "ahead":
      return `${number(reason.ahead)} ${reason.ahead === 1 ? "job comes" : "jobs come"} first`;
  }
  return String(reason.reason);
}
