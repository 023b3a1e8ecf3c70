// @ts-check
/** Jobs that failed for good: why, and back into their queue, one or all of a kind. */
import { element, setText } from "../client/dom.js";
import { ago, number, oneLine, plain } from "../client/format.js";
import { mintKey } from "../client/milepost.js";
import { confirmed } from "./confirm.js";
import { refill } from "./focus.js";
import { ask, jobPage, jobPath, now, queuePath, send, viewPage } from "./gateway.js";
import { liveFeed, regularly } from "./live.js";
import { notice } from "./notices.js";

/** @typedef {import("../client/types.js").Job} Job */
/** @typedef {import("./queues.js").Queue} Queue */

const SHOWN = 200;

/** @type {import("./app.js").View} */
export function showDeadLetters(main, signal, words) {
  document.title = "Dead letters · Milepost";
  const queue = element("select", { name: "queue", "aria-label": "Queue" }, element("option", { value: "" }, "All queues"));
  const code = element("select", { name: "code", "aria-label": "Error" }, element("option", { value: "" }, "All errors"));
  const limit = element("input", { type: "number", min: "1", "aria-label": "At most so many", placeholder: "At most" });
  const dry = element("button", { type: "button" }, "Dry run");
  const said = element("p", { class: "soft" });
  const message = element("p", { class: "notice", hidden: true });
  const body = element("tbody");
  const heads = ["Job", "Error", "Attempts", "Failed", ""].map((head) => element("th", { scope: "col" }, head || element("span", { class: "visually-hidden" }, "Actions")));
  const table = element("table", { class: "table dead" }, element("thead", {}, element("tr", {}, ...heads)), body);
  /** @type {Queue[]} */
  let queues = [];
  let wanted = words.get("queue") ?? "";

  /** The queues that are meant: what is redriven is redriven queue by queue. */
  const meant = () => (queue.value ? [queue.value] : queues.filter(({ counts }) => counts.failed > 0).map(({ name }) => name));
  /** @param {boolean} dryRun */
  async function redriveAll(dryRun) {
    let left = limit.value === "" ? Infinity : Number(limit.value);
    let count = 0;
    for (const name of meant()) {
      if (left <= 0) break;
      const selection = { dry_run: dryRun, ...(code.value && { error_code: code.value }), ...(left < Infinity && { limit: left }) };
      const done = (await send("POST", queuePath(name, "/redrive"), selection)).count;
      count += done;
      left -= done;
    }
    return count;
  }
  const redrive = confirmed({
    label: "Redrive…", question: "", yes: "Yes, put them back", no: "Leave them",
    async prepare() {
      const count = await redriveAll(true);
      if (count === 0) throw new Error("there is no job to put back");
      return `Put ${jobs(count)} back into ${queue.value || "their queues"}? `;
    },
    async act() {
      const count = await redriveAll(false);
      notice(`${jobs(count)} put back`, { tone: "good" });
      looking.now();
    },
  });
  dry.addEventListener("click", async () => {
    try {
      setText(said, `${jobs(await redriveAll(true))} would be put back.`);
    } catch (error) {
      setText(said, /** @type {Error} */ (error).message);
    }
  });
  main.replaceChildren(
    element("h1", {}, "Dead letters"),
    element("div", { class: "filters bulk" }, queue, code, limit, element("div", { class: "actions" }, dry, redrive.root)),
    said, message, element("div", { class: "scroll" }, table),
  );
  queue.addEventListener("change", () => {
    wanted = queue.value;
    history.replaceState(null, "", viewPage("dead", queue.value ? { queue: queue.value } : {}));
    looking.now();
  });
  code.addEventListener("change", () => looking.now());

  const looking = regularly(signal, 5_000, async () => {
    try {
      ({ queues } = await ask("/v1/queues", { signal }));
      const names = queues.filter(({ name, counts }) => counts.failed > 0 || name === wanted).map(({ name }) => name);
      fill(queue, names, wanted);
      const search = new URLSearchParams({ state: "failed", limit: String(SHOWN) });
      if (queue.value) search.set("queue", queue.value);
      const everything = /** @type {{jobs: Job[], next: string | null}} */ (await ask(`/v1/jobs?${search}`, { signal }));
      const codes = [...new Set(everything.jobs.map(({ error }) => error?.code ?? "").filter(Boolean))].sort();
      fill(code, code.value && !codes.includes(code.value) ? [...codes, code.value] : codes, code.value);
      if (code.value) search.set("error_code", code.value);
      const found = code.value ? await ask(`/v1/jobs?${search}`, { signal }) : everything;
      refill(body, /** @type {Job[]} */ (found.jobs).map((job) => row(job, () => looking.now())));
      table.hidden = found.jobs.length === 0;
      const words = found.jobs.length === 0 ? "No dead letters." : found.next ? `The newest ${SHOWN} are shown; a redrive takes the others, too.` : "";
      message.hidden = words === "";
      setText(message, words);
    } catch (error) {
      if (signal.aborted) return;
      message.hidden = false;
      setText(message, `${/** @type {Error} */ (error).message} What is shown may be old.`);
    }
  });
  liveFeed({}, signal, { onState: (job) => (job.state === "failed" || job.state === "queued") && looking.soon(), onGone: looking.soon });
}

/** @param {number} count */
function jobs(count) {
  return `${number(count)} ${count === 1 ? "job" : "jobs"}`;
}

/**
 * @param {HTMLSelectElement} select its first option stays
 * @param {string[]} values
 * @param {string} chosen
 */
function fill(select, values, chosen) {
  const known = [...select.options].slice(1).map(({ value }) => value);
  if (JSON.stringify(known) !== JSON.stringify(values)) {
    while (select.options.length > 1) select.remove(1);
    select.append(...values.map((value) => element("option", { value }, value)));
  }
  if (select.value !== chosen) select.value = chosen;
}

/**
 * @param {Job} job
 * @param {() => void} changed
 */
function row(job, changed) {
  const again = element("button", { type: "button", class: "small", "aria-label": `Retry ${job.kind} ${job.subject ?? job.id}` }, "Retry");
  again.hidden = job.tracked;
  again.addEventListener("click", async () => {
    again.disabled = true;
    try {
      await send("POST", jobPath(job.id, "/retry"), undefined, { "idempotency-key": mintKey() });
      notice(`${job.kind} ${job.subject ?? ""} put back`, { tone: "good", job: job.id });
    } catch (error) {
      notice(`Not retried: ${/** @type {Error} */ (error).message}`, { tone: "bad", job: job.id });
    }
    changed();
  });
  const finished = job.finished_at ?? "";
  return element(
    "tr", {},
    element("th", { scope: "row" }, element("a", { href: jobPage(job.id) }, job.kind), element("span", { class: "about", title: job.id }, `${job.queue} · ${job.subject ?? job.id}`)),
    element("td", { class: "why" }, element("strong", { "data-tone": "bad" }, job.error?.code ?? "error"), ` ${oneLine(plain(job.error?.message ?? ""), 200)}`),
    element("td", {}, job.tracked ? "tracked" : `${job.attempt} of ${job.max_attempts}`),
    element("td", {}, element("time", { datetime: finished, title: finished }, ago(now() - Date.parse(finished)))),
    element("td", {}, again),
  );
}
