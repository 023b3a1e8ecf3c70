// @ts-check
/** The head of a job's page: where it stands, how far it is, how it ended, what is known about it. */
import { progressBar } from "../client/bar.js";
import { element, setAttribute, setText } from "../client/dom.js";
import { ending } from "../client/ending.js";
import { amount, duration, elapsed, oneLine, plain, standing } from "../client/format.js";
import { remaining } from "./eta.js";
import { jobLink, now, viewPage } from "./gateway.js";

/** @typedef {import("../client/types.js").Job} Job */

export function jobHead() {
  const bar = progressBar("Progress of this job");
  const title = element("h1", {}, "Job");
  const badge = element("span", { class: "badge large" });
  const subject = element("p", { class: "subject" });
  const far = element("strong", { class: "far" });
  const eta = element("span", { class: "eta" });
  const time = element("span", { class: "time" });
  const message = element("p", { class: "message" });
  const waiting = element("div", { class: "waiting box", "data-tone": "waiting", hidden: true });
  const end = element("div", { class: "ending" });
  const known = element("dl", { class: "facts" });
  const actions = element("div", { class: "actions" });
  /** What parts show, so that they are built again only when that changes and focus and selection in them survive. */
  const shown = new Map();
  /**
   * @param {HTMLElement} target
   * @param {unknown} shows
   * @param {() => HTMLElement[]} build
   */
  function once(target, shows, build) {
    const key = JSON.stringify(shows);
    if (shown.get(target) === key) return;
    shown.set(target, key);
    target.replaceChildren(...build());
  }
  return {
    root: element(
      "section",
      { class: "card head", "aria-label": "State" },
      element("div", { class: "heading" }, title, badge),
      subject,
      bar.root,
      element("div", { class: "words" }, far, eta, time),
      message,
      waiting,
      end,
      known,
      actions,
    ),
    waiting,
    actions,
    /**
     * @param {Job} job
     * @param {[number, number][]} progress of the run that is on
     */
    draw(job, progress) {
      const { label, tone } = standing(job, now());
      const sofar = amount(job);
      const share = job.progress?.percent != null && !job.terminal ? `${sofar.split(" · ")[0]} · ` : "";
      document.title = `${share}${job.terminal ? `${label} · ` : ""}${job.kind} · Milepost`;
      setText(title, job.kind);
      setText(badge, label);
      setAttribute(badge, "data-tone", tone);
      setAttribute(badge, "data-state", job.state);
      setText(subject, job.subject ?? "");
      bar.draw(job, now());
      setText(far, sofar || (job.state === "running" ? "Running" : label));
      const left = job.state === "running" ? remaining(progress, now()) : null;
      setText(eta, left === null || left < 1_000 ? "" : `about ${duration(left)} left`);
      const span = elapsed(job, now());
      setText(time, span ? `${span.label} ${duration(span.ms)}` : "");
      setText(message, plain([job.progress?.phase, job.progress?.message].filter(Boolean).join(": ")));
      once(end, [job.outcome, job.error, job.state], () => ending(job, jobLink(job.id, "/result")));
      once(known, [job.worker, job.attempt, job.started_at, job.finished_at, job.created_at, job.meta], () => facts(job));
    },
  };
}

/**
 * @param {Job} job
 * @returns {HTMLElement[]}
 */
function facts(job) {
  /** @type {[string, string | Node | null][]} */
  const rows = [
    ["Queue", element("a", { href: viewPage("queue", { queue: job.queue }) }, job.queue)],
    ["Worker", job.worker],
    ["Attempt", job.tracked ? null : `${job.attempt} of ${job.max_attempts}`],
    ["Created", when(job.created_at)],
    ["Started", when(job.started_at)],
    ["Finished", when(job.finished_at)],
    ...Object.entries(job.meta ?? {}).map(([name, value]) => /** @type {[string, string]} */ ([name, oneLine(value)])),
  ];
  return rows.flatMap(([name, value]) =>
    value === null ? [] : [element("div", {}, element("dt", {}, name), element("dd", {}, value))],
  );
}

/**
 * An instant, whole and with its zone: the gateway's words without the fraction.
 * @param {string | null} time
 */
function when(time) {
  return time ? time.replace("T", " ").replace(/\.\d+Z$/, " UTC") : null;
}
