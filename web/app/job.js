// @ts-check
/** One job, live: where it stands, how far it is, what it says, how it ended. */
import { batched, element } from "../client/dom.js";
import { watch } from "../client/milepost.js";
import { speaker } from "../client/speaker.js";
import { announce } from "./announce.js";
import { ask, base, jobPath, now, token, viewPage, witness } from "./gateway.js";
import { drawNoJob, jobActions } from "./job-actions.js";
import { jobCharts, runTable } from "./job-charts.js";
import { jobHead } from "./job-head.js";
import { drawLink } from "./navigation.js";
import { tellEnding } from "./notices.js";
import { payloadFold } from "./payload.js";
import { eventList, logList, outputBox } from "./record.js";
import { Runs } from "./runs.js";
import { waitingNote } from "./waiting.js";

/** @typedef {import("../client/types.js").Job} Job */
/** @typedef {import("../client/types.js").LogEvent} LogEvent */

/** How much of the log before the page was opened is shown. */
const HISTORY = 200;
/** Of what is before that, so much is read for the attempts: pages, and events in each. */
const PAGES = 10;
const PAGE = 1_000;

/**
 * @param {HTMLElement} main
 * @param {string} id
 */
export function showJob(main, id) {
  const head = jobHead();
  const sections = ["output", "log", "events", "course", "runs"].map(() => element("section", { class: "card", hidden: true }));
  const [outputCard, logCard, eventsCard, courseCard, runsCard] = sections;
  main.replaceChildren(
    element("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, element("a", { href: viewPage("jobs") }, "Jobs"), ` / ${id}`),
    head.root,
    outputCard,
    element("div", { class: "records" }, logCard, eventsCard),
    courseCard,
    runsCard,
    payloadFold(id),
  );
  const output = outputBox(outputCard);
  const log = logList(logCard);
  const events = eventList(eventsCard);
  const charts = jobCharts(courseCard);
  const table = runTable(runsCard);
  const waiting = waitingNote(head.waiting, id);
  const speak = speaker(announce, now);

  let life = new Runs();
  /** Whether all of the log is in `life`. */
  let whole = true;
  let deleted = false;
  let watched = open();
  const actions = jobActions(head.actions, id, {
    retried() {
      watched.close();
      watched = open();
    },
    deleted() {
      deleted = true;
      watched.close();
      drawNoJob(main, "Job deleted", "This job and its log are gone.", id);
    },
  });

  function drawNow() {
    const { job, link } = watched;
    if (deleted) return;
    drawLink(link);
    if (link === "gone") {
      drawNoJob(main, "No such job", "There is no job with this id here. It may have been deleted, or its time was up.", id);
    } else if (job) {
      const run = life.runs.at(-1);
      head.draw(job, run?.to === null ? run.progress : []);
      actions.draw(job);
      waiting.draw(job);
      output.draw(watched.output, job);
      log.draw();
      events.draw();
      charts.draw(life, now());
      table.draw(life, now(), whole);
    }
  }

  function open() {
    const draw = batched(drawNow);
    /** Live events that came while the ones before them were still being fetched; null when nothing is. */
    let gathered = /** @type {LogEvent[] | null} */ (null);
    /** What was recorded while the log's beginning was still being fetched. */
    let kept = /** @type {LogEvent[] | null} */ (null);
    /** @param {LogEvent} event */
    const record = (event) => {
      log.add(event);
      events.add(event);
      life.add(event);
      kept?.push(event);
    };
    return watch(base + jobPath(id), {
      token,
      async onSnapshot(job) {
        witness(job.updated_at);
        const mine = (gathered = /** @type {LogEvent[]} */ ([]));
        const begin = Math.max(0, job.seq - HISTORY);
        const recent = await page(begin, HISTORY).catch(() => []);
        if (gathered !== mine) return; // A later document asked again.
        gathered = null;
        log.clear();
        events.clear();
        life = new Runs();
        whole = begin === 0;
        const late = (kept = whole ? null : /** @type {LogEvent[]} */ ([]));
        for (const event of recent) if (event.seq <= job.seq) record(event);
        mine.forEach(record);
        draw();
        if (late === null) return;
        const earlier = await readBefore(begin).catch(() => []);
        if (kept !== late) return;
        kept = null;
        life = new Runs();
        whole = (earlier.at(-1)?.seq ?? 0) >= begin;
        for (const event of [...earlier, ...late]) life.add(event);
        draw();
      },
      onEvent(event) {
        witness(event.at);
        if (gathered) gathered.push(event);
        else record(event);
      },
      onState(job) {
        tellEnding(job, now());
        speak(job, watched.link);
        draw();
      },
      onLink(link) {
        speak(watched.job, link);
        draw();
      },
    });
  }

  /**
   * @param {number} after
   * @param {number} limit
   * @returns {Promise<LogEvent[]>}
   */
  async function page(after, limit) {
    return (await ask(jobPath(id, `/events?after=${after}&limit=${limit}`))).events ?? [];
  }

  /**
   * The log's beginning, up to an event.
   * @param {number} seq
   */
  async function readBefore(seq) {
    /** @type {LogEvent[]} */
    const read = [];
    for (let asked = 0; asked < PAGES; asked += 1) {
      const after = read.at(-1)?.seq ?? 0;
      if (after >= seq) break;
      const events = await page(after, Math.min(PAGE, seq - after));
      if (events.length === 0) break;
      read.push(...events);
    }
    return read;
  }

  // The clock of the page; nobody sees it tick in a hidden tab.
  setInterval(() => document.hidden || drawNow(), 1000);
}
