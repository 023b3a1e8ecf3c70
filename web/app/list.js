// @ts-check
/** The list of jobs, newest first. Asked again every few seconds while somebody can see it. */
import { progressBar } from "../client/bar.js";
import { element, setAttribute, setText } from "../client/dom.js";
import { ago, amount, plain, standing } from "../client/format.js";
import { announce } from "./announce.js";
import { ask, base, now } from "./gateway.js";

/** @typedef {import("../client/types.js").Job} Job */

const REFRESH_MS = 3_000;
const PAGE = 50;
/** The most the gateway gives at once. */
const PAGE_MAX = 200;
const FILTERS = ["state", "subject", "kind", "queue"];
/** What can be asked for, by the words of the page. */
const STATES = {
  "": "All states",
  "scheduled,queued,retrying": "Waiting",
  running: "Running",
  completed: "Completed",
  failed: "Failed",
  cancelled: "Cancelled",
  expired: "Expired",
};

/** @param {HTMLElement} main */
export function showList(main) {
  const form = filterForm();
  const notice = element("p", { class: "notice", hidden: true });
  const rows = element("ul", { class: "jobs", "aria-label": "Jobs, newest first" });
  const more = element("button", { type: "button", class: "more", hidden: true }, "Show more");
  main.replaceChildren(element("h1", {}, "Jobs"), form, notice, rows, more);

  /** @type {Map<string, ReturnType<typeof jobRow>>} */
  const shown = new Map();
  let wanted = PAGE;
  /** @type {AbortController | null} */
  let asking = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  async function refresh() {
    clearTimeout(timer);
    asking?.abort();
    const { signal } = (asking = new AbortController());
    try {
      const { jobs, more: left } = await load(query(form), wanted, signal);
      draw(jobs);
      more.hidden = !left;
      const filtered = query(form).size > 0;
      notice.hidden = jobs.length > 0;
      setText(notice, filtered ? "No job matches." : "No jobs yet. Post one, and it appears here.");
    } catch (error) {
      if (signal.aborted) return;
      notice.hidden = false;
      setText(notice, `${/** @type {Error} */ (error).message} What is shown may be old.`);
    }
    if (!document.hidden) timer = setTimeout(refresh, REFRESH_MS);
  }

  /** @param {Job[]} jobs */
  function draw(jobs) {
    const kept = new Set(jobs.map((job) => job.id));
    for (const [id, row] of shown) {
      if (kept.has(id)) continue;
      row.root.remove();
      shown.delete(id);
    }
    jobs.forEach((job, index) => {
      let row = shown.get(job.id);
      if (!row) shown.set(job.id, (row = jobRow(job)));
      // Moves only what is not in its place, so that focus stays where it is.
      if (rows.children[index] !== row.root) rows.insertBefore(row.root, rows.children[index] ?? null);
      row.draw(job);
    });
  }

  let typing = /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined);
  form.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      const search = query(form).toString();
      history.replaceState(null, "", search ? `?${search}` : location.pathname);
      wanted = PAGE;
      refresh();
    }, 250);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", async () => {
    wanted += PAGE;
    await refresh();
    announce(`${shown.size} jobs shown`);
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else refresh();
  });
  refresh();
}

/**
 * The newest jobs, as many as wanted.
 * @param {URLSearchParams} filters
 * @param {number} wanted
 * @param {AbortSignal} signal
 * @returns {Promise<{jobs: Job[], more: boolean}>}
 */
async function load(filters, wanted, signal) {
  /** @type {Job[]} */
  const jobs = [];
  /** @type {string | null} */
  let cursor = null;
  do {
    const search = new URLSearchParams(filters);
    search.set("limit", String(Math.min(wanted - jobs.length, PAGE_MAX)));
    if (cursor) search.set("cursor", cursor);
    const page = await ask(`/v1/jobs?${search}`, { signal });
    jobs.push(...page.jobs);
    cursor = page.next;
  } while (cursor && jobs.length < wanted);
  return { jobs, more: cursor !== null };
}

function filterForm() {
  const asked = new URLSearchParams(location.search);
  const select = element("select", { name: "state", "aria-label": "State" });
  for (const [value, label] of Object.entries(STATES)) {
    select.append(element("option", { value, selected: asked.get("state") === value }, label));
  }
  const fields = FILTERS.filter((name) => name !== "state").map((name) =>
    element("input", {
      name,
      type: "search",
      "aria-label": `${name[0].toUpperCase()}${name.slice(1)}`,
      placeholder: `Any ${name}`,
      value: asked.get(name),
      maxlength: "200",
      autocomplete: "off",
      spellcheck: "false",
    }),
  );
  return element("form", { class: "filters", role: "search", "aria-label": "Filter jobs" }, select, ...fields);
}

/** @param {HTMLFormElement} form */
function query(form) {
  const filters = new URLSearchParams();
  const values = new FormData(form);
  for (const name of FILTERS) {
    const value = String(values.get(name) ?? "").trim();
    if (value) filters.set(name, value);
  }
  return filters;
}

/**
 * @param {Job} job
 * @returns {{root: HTMLLIElement, draw: (job: Job) => void}}
 */
function jobRow(job) {
  const badge = element("span", { class: "badge" });
  const link = element("a", { class: "kind", href: `${base}/jobs/${job.id}` }, job.kind);
  const about = element("span", { class: "about" }, job.subject ?? job.id);
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
function lastWord(job) {
  if (job.error && (job.state === "failed" || job.state === "retrying")) {
    return job.error.message || job.error.code || "";
  }
  if (job.outcome?.note) return job.outcome.note;
  return [job.progress?.phase, job.progress?.message].filter(Boolean).join(": ");
}
