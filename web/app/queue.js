// @ts-check
/** One queue: its numbers, its charts, its limits, what an operator may do to it. */
import { element, setText } from "../client/dom.js";
import { duration, number } from "../client/format.js";
import { timeChart } from "./chart.js";
import { confirmed } from "./confirm.js";
import { ask, base, now, queuePath, send, viewPage } from "./gateway.js";
import { past, remember } from "./history.js";
import { limitsForm } from "./limits.js";
import { liveFeed, regularly } from "./live.js";
import { notice } from "./notices.js";
import { brief, drawBadge, queueFigures, queueSwitch } from "./queues.js";

/** @typedef {import("./queues.js").Queue} Queue */

/** @type {import("./app.js").View} */
export function showQueue(main, signal, words) {
  const name = words.get("queue") ?? "default";
  document.title = `Queue ${name} · Milepost`;
  const badge = element("span", { class: "badge" });
  const paused = element("p", { class: "box", "data-tone": "warning", hidden: true });
  const message = element("p", { class: "notice", hidden: true });
  const figures = queueFigures();
  const switches = queueSwitch(name, () => looking.now());
  const charts = element("div", { class: "charts" });
  const limits = limitsForm(name, () => looking.now());
  const purge = confirmed({
    label: "Purge…", question: "", yes: "Yes, cancel them", no: "Leave them",
    async prepare() {
      const { count } = await send("POST", queuePath(name, "/purge"), { dry_run: true });
      return `Cancel ${number(count)} waiting ${count === 1 ? "job" : "jobs"} of ${name}? What runs goes on. `;
    },
    async act() {
      const { count } = await send("POST", queuePath(name, "/purge"), {});
      notice(`${number(count)} ${count === 1 ? "job" : "jobs"} of ${name} cancelled`, { tone: "warning" });
      looking.now();
    },
  });
  switches.root.append(purge.root);
  const jobs = `${base}/?${new URLSearchParams({ queue: name })}${viewPage("jobs").slice(base.length + 1)}`;
  main.replaceChildren(
    element("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, element("a", { href: viewPage("queues") }, "Queues"), ` / ${name}`),
    message,
    element(
      "section", { class: "card queue", "aria-label": "State" },
      element("div", { class: "heading" }, element("h1", {}, name), badge),
      paused, figures.root,
      element("p", { class: "links" }, element("a", { href: jobs }, "Its jobs"), " · ", element("a", { href: viewPage("dead", { queue: name }) }, "Its dead letters")),
      switches.root,
    ),
    element("section", { class: "card" }, element("div", { class: "cardhead" }, element("h2", {}, "Since this page was opened")), charts),
    limits.root,
  );

  const looking = regularly(signal, 3_000, async () => {
    try {
      const queue = /** @type {Queue} */ (await ask(queuePath(name), { signal }));
      remember([queue], now());
      message.hidden = true;
      drawBadge(badge, queue);
      figures.draw(queue);
      switches.draw(queue);
      limits.draw(queue);
      paused.hidden = queue.paused === null;
      if (queue.paused) {
        const { by, reason, at } = queue.paused;
        setText(paused, `Paused by ${by} ${duration(now() - Date.parse(at))} ago${reason ? `: ${reason}` : ""}`);
      }
      charts.replaceChildren(...queueCharts(name));
    } catch (error) {
      if (signal.aborted) return;
      message.hidden = false;
      setText(message, `${/** @type {Error} */ (error).message} What is shown may be old.`);
    }
  });
  liveFeed({ queue: name }, signal, { onState: looking.soon, onGone: looking.soon });
}

/** @param {string} name */
function queueCharts(name) {
  const to = now();
  const from = past(name, "depth")[0]?.[0] ?? to;
  /** @param {Omit<Parameters<typeof timeChart>[0], "from" | "to" | "span">} shown */
  const chart = (shown) => timeChart({ ...shown, from, to, span: (ms) => `${duration(ms)} ago` });
  return [
    figure("Waiting and running", chart({
      name: "Waiting and running jobs over time", format: number,
      series: [
        { label: "waiting", tone: "warning", points: past(name, "depth") },
        { label: "running", tone: "active", points: past(name, "running") },
      ],
    }), ["waiting", "running"]),
    figure("Finished per minute", chart({
      name: "Jobs finished per minute over time", format: number,
      series: [{ label: "finished", tone: "good", points: past(name, "perMin") }],
    }), ["finished"]),
    figure("How long jobs waited", chart({
      name: "Waiting time over time", format: brief,
      series: [
        { label: "half wait at most", tone: "active", points: past(name, "waitP50") },
        { label: "95 % wait at most", tone: "warning", points: past(name, "waitP95") },
      ],
    }), ["half wait at most", "95 % wait at most"]),
    figure("How long runs took", chart({
      name: "Run time over time", format: brief,
      series: [
        { label: "half take at most", tone: "active", points: past(name, "runP50") },
        { label: "95 % take at most", tone: "warning", points: past(name, "runP95") },
      ],
    }), ["half take at most", "95 % take at most"]),
  ];
}

/**
 * @param {string} title
 * @param {SVGElement} drawn
 * @param {string[]} labels in the order of its series
 */
function figure(title, drawn, labels) {
  const tones = [...drawn.querySelectorAll(".line")].map((path) => path.getAttribute("data-tone"));
  const legend = labels.map((label, index) => element("span", { class: "key", "data-tone": tones[index] }, label));
  return element("figure", {}, element("figcaption", {}, `${title} `, ...legend), drawn);
}
