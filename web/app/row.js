// @ts-check
/** A job in the list. */
import { progressBar } from "../client/bar.js";
import { element, setAttribute, setText } from "../client/dom.js";
import { ago, amount, plain, standing } from "../client/format.js";
import { jobPage, now } from "./gateway.js";

/** @typedef {import("../client/types.js").Job} Job */

/**
 * @param {Job} job
 * @returns {{root: HTMLLIElement, draw: (job: Job) => void}}
 */
export function jobRow(job) {
  const badge = element("span", { class: "badge" });
  const link = element("a", { class: "kind", href: jobPage(job.id) }, job.kind);
  const about = element("span", { class: "about", title: job.id }, `${job.queue} · ${job.subject ?? job.id}`);
  const bar = progressBar(`Progress of ${job.kind}`);
  const far = element("span", { class: "far" });
  const message = element("span", { class: "message" });
  const when = element("time", { class: "when" });
  const root = element(
    "li",
    { class: "row" },
    element("div", { class: "name" }, link, about),
    badge,
    element("div", { class: "progress" }, bar.root, element("div", { class: "words" }, far, message)),
    when,
  );
  return {
    root,
    draw(newer) {
      const { label, tone } = standing(newer, now());
      setText(badge, label);
      setAttribute(badge, "data-tone", tone);
      setAttribute(badge, "data-state", newer.state);
      bar.draw(newer, now());
      setText(far, amount(newer));
      setText(message, plain(lastWord(newer)));
      if (newer.updated_at) {
        setText(when, ago(now() - Date.parse(newer.updated_at)));
        setAttribute(when, "datetime", newer.updated_at);
        setAttribute(when, "title", `Last change ${newer.updated_at}`);
      }
    },
  };
}

/**
 * The one thing worth saying about a job in a list.
 * @param {Job} job
 */
export function lastWord(job) {
  if (job.error && (job.state === "failed" || job.state === "retrying")) {
    return job.error.message || job.error.code || "";
  }
  if (job.outcome?.note) return String(job.outcome.note);
  return [job.progress?.phase, job.progress?.message].filter(Boolean).join(": ");
}
