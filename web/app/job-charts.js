// @ts-check
/** Pictures of one job: its progress over time, and its runs and waits one below the other. */
import { element, setText } from "../client/dom.js";
import { duration } from "../client/format.js";
import { picture, svg, timeChart } from "./chart.js";

/** @typedef {import("./runs.js").Runs} Runs */

/** More runs than this have their picture without the first ones. */
const LANES = 20;

/** @param {HTMLElement} section */
export function jobCharts(section) {
  const progress = element("figure", { hidden: true });
  const attempts = element("figure", { hidden: true });
  section.append(element("div", { class: "cardhead" }, element("h2", {}, "Course")), element("div", { class: "charts" }, progress, attempts));
  let drawn = "";
  return {
    /**
     * @param {Runs} life
     * @param {number} now ms
     */
    draw(life, now) {
      const run = life.runs.at(-1);
      const open = run?.to === null || life.waits.at(-1)?.to === null;
      // Once nothing is under way there is nothing to draw again; before, the right edge is the present.
      const key = JSON.stringify([life.runs.length, life.waits.length, run?.end, run?.progress.length, open ? Math.floor(now / 1000) : 0]);
      if (key === drawn) return;
      drawn = key;
      section.hidden = life.waits.length === 0 && life.runs.length === 0;
      progress.hidden = !run || run.progress.length < 2;
      if (run && !progress.hidden) progress.replaceChildren(caption("Progress of the last run"), progressChart(run, now));
      attempts.hidden = section.hidden;
      attempts.replaceChildren(caption(life.runs.length === 0 ? "Waiting" : "Runs and waits"), gantt(life, now));
    },
  };
}

/** @param {string} text */
function caption(text) {
  return element("figcaption", {}, text);
}

/**
 * @param {import("./runs.js").Run} run
 * @param {number} now
 */
function progressChart(run, now) {
  const end = run.to ?? now;
  const last = run.progress.at(-1)?.[1] ?? 0;
  return timeChart({
    name: `Progress over ${duration(end - run.from)}: ${Math.floor(last)} %`,
    series: [{ label: "percent", tone: run.tone, points: [[run.from, 0], ...run.progress, [end, last]] }],
    from: run.from,
    to: end,
    most: 100,
    format: (value) => `${value} %`,
    span: (ms) => (run.to === null ? `${duration(ms)} ago` : `took ${duration(ms)}`),
  });
}

/**
 * @param {Runs} life
 * @param {number} now
 */
function gantt({ runs, waits }, now) {
  const lanes = runs.slice(-LANES);
  const begin = Math.min(...[...waits, ...runs].map(({ from }) => from));
  const end = Math.max(begin + 1, ...[...waits, ...runs].map(({ to }) => to ?? now));
  const [width, left, lane] = [480, 56, 22];
  const height = (lanes.length + 1) * lane + 22;
  const x = (/** @type {number} */ at) => left + (Math.max(0, at - begin) / (end - begin)) * (width - left - 6);
  const drawn = picture(width, height, `${runs.length} runs over ${duration(end - begin)}`);
  /**
   * @param {number} row
   * @param {{from: number, to: number | null}} span
   * @param {string} tone
   * @param {string} words
   */
  const bar = (row, { from, to }, tone, words) =>
    svg(
      "rect",
      { class: "span", "data-tone": tone, x: x(from), y: row * lane + 5, width: Math.max(2, x(to ?? now) - x(from)), height: lane - 9, rx: 3 },
      svg("title", {}, words),
    );
  drawn.append(svg("text", { x: 0, y: lane - 7 }, "waits"));
  for (const wait of waits) {
    drawn.append(bar(0, wait, "waiting", `${wait.reason}: ${duration((wait.to ?? now) - wait.from)}`));
  }
  lanes.forEach((run, index) => {
    const words = `attempt ${run.attempt}${run.worker ? ` on ${run.worker}` : ""}: ${run.end}, ${duration((run.to ?? now) - run.from)}`;
    drawn.append(svg("text", { x: 0, y: (index + 2) * lane - 7 }, run.run === null ? `try ${run.attempt}` : `run ${run.run}`), bar(index + 1, run, run.tone, words));
  });
  drawn.append(
    svg("text", { x: left, y: height - 5 }, "0 s"),
    svg("text", { x: width - 6, y: height - 5, "text-anchor": "end" }, duration(end - begin)),
  );
  return drawn;
}

/**
 * The same as a table: who had the lease, when, and how it went.
 * @param {HTMLElement} section
 */
export function runTable(section) {
  const body = element("tbody");
  const note = element("p", { class: "soft" });
  const heads = ["Run", "Attempt", "Worker", "Started", "Lease held", "How it went"].map((name) => element("th", { scope: "col" }, name));
  section.append(
    element("div", { class: "cardhead" }, element("h2", {}, "Attempts and leases")),
    element("div", { class: "scroll" }, element("table", { class: "table runs" }, element("thead", {}, element("tr", {}, ...heads)), body)),
    note,
  );
  return {
    /**
     * @param {Runs} life
     * @param {number} now
     * @param {boolean} whole whether all of the log was read
     */
    draw({ runs, cancels }, now, whole) {
      section.hidden = runs.length === 0;
      runs.forEach((run, index) => {
        const row = body.children[index] ?? body.appendChild(element("tr", {}, ...heads.map((_, column) => element(column === 0 ? "th" : "td", column === 0 ? { scope: "row" } : {}))));
        const how = `${run.end}${run.why ? `: ${run.why}` : ""}`;
        const started = new Date(run.from).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
        const cells = [String(run.run ?? ""), String(run.attempt), run.worker ?? "", started, duration((run.to ?? now) - run.from), how];
        cells.forEach((text, column) => setText(row.children[column], text));
        row.children[5].setAttribute("data-tone", run.tone);
      });
      while (body.children.length > runs.length) body.lastElementChild?.remove();
      const asked = cancels.length > 0 ? `Cancel requested${cancels.at(-1)?.by ? ` by ${cancels.at(-1)?.by}` : ""}. ` : "";
      setText(note, `${asked}${whole ? "" : "The log is long: what was between its beginning and its end is not shown here."}`);
    },
  };
}
