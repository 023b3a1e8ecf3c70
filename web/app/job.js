// @ts-check
/** One job, live: where it stands, how far it is, what it says, how it ended. */
import { progressBar } from "../client/bar.js";
import { batched, element, setAttribute, setText } from "../client/dom.js";
import { ending } from "../client/ending.js";
import { amount, duration, elapsed, oneLine, plain, standing } from "../client/format.js";
import { watch } from "../client/milepost.js";
import { LINK, speaker } from "../client/speaker.js";
import { announce } from "./announce.js";
import { ask, base, jobLink, jobPath, now, Refusal, token, witness } from "./gateway.js";
import { eventList, logList, outputBox } from "./record.js";

/** @typedef {import("../client/types.js").Job} Job */
/** @typedef {import("../client/types.js").LogEvent} LogEvent */

/** How much of the log before the page was opened is shown. */
const HISTORY = 200;

/**
 * @param {HTMLElement} main
 * @param {string} id
 */
export function showJob(main, id) {
  const page = skeleton(main, id);
  const log = logList(page.log);
  const events = eventList(page.events);
  const output = outputBox(page.output);
  const draw = batched(() => {
    const { job, link } = watched;
    drawLink(page.link, link);
    if (link === "gone") drawMissing(main, id);
    else if (job) {
      drawJob(page, job);
      output.draw(watched.output, job);
      log.draw();
      events.draw();
    }
  });

  /** Live events that came while the ones before them were still being fetched; null when nothing is. */
  let waiting = /** @type {LogEvent[] | null} */ (null);
  /** @param {LogEvent} event */
  const record = (event) => {
    log.add(event);
    events.add(event);
  };
  const speak = speaker(announce, now);

  const watched = watch(base + jobPath(id), {
    token,
    async onSnapshot(job) {
      witness(job.updated_at);
      const gathered = (waiting = /** @type {LogEvent[]} */ ([]));
      const after = Math.max(0, job.seq - HISTORY);
      const earlier = await ask(jobPath(id, `/events?after=${after}&limit=${HISTORY}`)).catch(() => null);
      if (waiting !== gathered) return; // A later document asked again.
      waiting = null;
      log.clear();
      events.clear();
      const before = /** @type {LogEvent[]} */ (earlier?.events ?? []).filter((event) => event.seq <= job.seq);
      [...before, ...gathered].forEach(record);
      draw();
    },
    onEvent(event) {
      witness(event.at);
      if (waiting) waiting.push(event);
      else record(event);
    },
    onState(job) {
      speak(job, watched.link);
      draw();
    },
    onLink(link) {
      speak(watched.job, link);
      draw();
    },
  });

  page.cancel.addEventListener("click", () => {
    page.cancel.hidden = true;
    page.confirm.hidden = false;
    page.keep.focus();
  });
  page.keep.addEventListener("click", () => {
    page.confirm.hidden = true;
    draw();
    requestAnimationFrame(() => page.cancel.focus());
  });
  page.really.addEventListener("click", async () => {
    page.confirm.hidden = true;
    setText(page.refusal, "");
    try {
      const body = JSON.stringify({ reason: "cancelled on the page" });
      await ask(jobPath(id, "/cancel"), { method: "POST", headers: { "content-type": "application/json" }, body });
      announce("Cancel requested");
    } catch (error) {
      setText(page.refusal, `Not cancelled: ${/** @type {Refusal} */ (error).message}`);
    }
    draw();
  });

  // The clock of the page; nobody sees it tick in a hidden tab.
  setInterval(() => document.hidden || draw(), 1000);
}

/**
 * @param {HTMLElement} main
 * @param {string} id
 */
function skeleton(main, id) {
  const bar = progressBar("Progress of this job");
  const page = {
    link: /** @type {HTMLElement} */ (document.getElementById("link")),
    title: element("h1", {}, "Job"),
    badge: element("span", { class: "badge large" }),
    subject: element("p", { class: "subject" }),
    bar,
    far: element("strong", { class: "far" }),
    time: element("span", { class: "time" }),
    message: element("p", { class: "message" }),
    ending: element("div", { class: "ending" }),
    facts: element("dl", { class: "facts" }),
    output: element("section", { class: "card", hidden: true }),
    log: element("section", { class: "card", hidden: true }),
    events: element("section", { class: "card", hidden: true }),
    cancel: element("button", { type: "button", hidden: true }, "Cancel job"),
    confirm: element("span", { class: "confirm", role: "group", "aria-label": "Cancel this job?", hidden: true }),
    really: element("button", { type: "button", class: "danger" }, "Yes, cancel it"),
    keep: element("button", { type: "button" }, "Let it run"),
    refusal: element("span", { class: "refusal", role: "alert" }),
    /** What `ending` and `facts` show, so that they are built again only when that changes. */
    endingKey: "",
    factsKey: "",
  };
  page.confirm.append("Cancel this job? ", page.really, page.keep);
  main.replaceChildren(
    element("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, element("a", { href: `${base}/` }, "Jobs"), ` / ${id}`),
    element(
      "section",
      { class: "card head", "aria-label": "State" },
      element("div", { class: "heading" }, page.title, page.badge),
      page.subject,
      bar.root,
      element("div", { class: "words" }, page.far, page.time),
      page.message,
      page.ending,
      page.facts,
      element("div", { class: "actions" }, page.cancel, page.confirm, page.refusal),
    ),
    page.output,
    element("div", { class: "records" }, page.log, page.events),
  );
  page.link.hidden = false;
  return page;
}

/**
 * @param {HTMLElement} target
 * @param {import("../client/types.js").Link} link
 */
function drawLink(target, link) {
  setText(target, LINK[link]);
  setAttribute(target, "data-link", link);
}

/**
 * @param {HTMLElement} main
 * @param {string} id
 */
function drawMissing(main, id) {
  document.title = "No such job · Milepost";
  if (main.querySelector(".missing")) return;
  main.replaceChildren(
    element(
      "section",
      { class: "card missing" },
      element("h1", {}, "No such job"),
      element("p", {}, "There is no job with this id here. It may have been deleted, or its time was up."),
      element("p", { class: "mono" }, id),
      element("p", {}, element("a", { href: `${base}/` }, "All jobs")),
    ),
  );
}

/**
 * @param {ReturnType<typeof skeleton>} page
 * @param {Job} job
 */
function drawJob(page, job) {
  const { label, tone } = standing(job, now());
  const far = amount(job);
  const share = job.progress?.percent != null && !job.terminal ? `${far.split(" · ")[0]} · ` : "";
  document.title = `${share}${job.terminal ? `${label} · ` : ""}${job.kind} · Milepost`;
  setText(page.title, job.kind);
  setText(page.badge, label);
  setAttribute(page.badge, "data-tone", tone);
  setText(page.subject, job.subject ?? "");
  page.bar.draw(job, now());
  setText(page.far, far || (job.state === "running" ? "Running" : label));
  const span = elapsed(job, now());
  setText(page.time, span ? `${span.label} ${duration(span.ms)}` : "");
  setText(page.message, plain([job.progress?.phase, job.progress?.message].filter(Boolean).join(": ")));
  drawOnce(page, "endingKey", [job.outcome, job.error, job.state], () => page.ending.replaceChildren(...ending(job, jobLink(job.id, "/result"))));
  drawOnce(page, "factsKey", [job.worker, job.attempt, job.started_at, job.finished_at, job.created_at, job.meta], () =>
    page.facts.replaceChildren(...facts(job)),
  );
  const cancellable = !job.terminal && !job.cancel_requested;
  page.cancel.hidden = !cancellable || !page.confirm.hidden;
  if (!cancellable) page.confirm.hidden = true;
}

/**
 * Builds a part again only if what it shows is another, so that focus and selection in it survive.
 * @param {ReturnType<typeof skeleton>} page
 * @param {"endingKey" | "factsKey"} name
 * @param {unknown} shows
 * @param {() => void} build
 */
function drawOnce(page, name, shows, build) {
  const key = JSON.stringify(shows);
  if (page[name] === key) return;
  page[name] = key;
  build();
}

/**
 * @param {Job} job
 * @returns {HTMLElement[]}
 */
function facts(job) {
  /** @type {[string, string | null][]} */
  const rows = [
    ["Queue", job.queue],
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
