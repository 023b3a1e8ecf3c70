// @ts-check
/** All queues: how much waits and for how long, what runs, how much gets done. */
import { element, setAttribute, setText } from "../client/dom.js";
import { duration, number } from "../client/format.js";
import { sparkline } from "./chart.js";
import { confirmed } from "./confirm.js";
import { ask, now, queuePath, send, viewPage } from "./gateway.js";
import { past, remember } from "./history.js";
import { liveFeed, regularly } from "./live.js";
import { notice } from "./notices.js";

/** @typedef {{p50: number | null, p95: number | null}} Percentiles */
/**
 * @typedef {object} Queue
 * @property {string} name
 * @property {{by: string, reason: string | null, at: string} | null} paused
 * @property {number | null} concurrency
 * @property {number | null} concurrency_per_key
 * @property {{limit: number, per_ms: number, burst: number, per_key: boolean} | null} rate_limit
 * @property {string | null} held_until
 * @property {{scheduled: number, queued: number, running: number, retrying: number, failed: number}} counts
 * @property {string | null} oldest_queued_at
 * @property {Percentiles} wait_ms
 * @property {Percentiles} run_ms
 * @property {number} finished_per_min
 */

/** @type {import("./app.js").View} */
export function showQueues(main, signal) {
  document.title = "Queues · Milepost";
  const message = element("p", { class: "notice", hidden: true });
  const list = element("ul", { class: "queues", "aria-label": "Queues by name" });
  main.replaceChildren(element("h1", {}, "Queues"), message, list);
  /** @type {Map<string, ReturnType<typeof queueCard>>} */
  const cards = new Map();

  const looking = regularly(signal, 3_000, async () => {
    try {
      const { queues } = /** @type {{queues: Queue[]}} */ (await ask("/v1/queues", { signal }));
      remember(queues, now());
      for (const queue of queues) {
        let card = cards.get(queue.name);
        if (!card) {
          card = queueCard(queue.name, () => looking.now());
          cards.set(queue.name, card);
          list.append(card.root);
        }
        card.draw(queue);
      }
      message.hidden = queues.length > 0;
      setText(message, "No queues yet. The first job makes one.");
    } catch (error) {
      if (signal.aborted) return;
      message.hidden = false;
      setText(message, `${/** @type {Error} */ (error).message} What is shown may be old.`);
    }
  });
  liveFeed({}, signal, { onState: looking.soon, onGone: looking.soon });
}

/**
 * @param {string} name
 * @param {() => void} changed
 */
function queueCard(name, changed) {
  const badge = element("span", { class: "badge" });
  const figures = queueFigures();
  const sparks = element("div", { class: "sparks" });
  const switches = queueSwitch(name, changed);
  const root = element(
    "li", { class: "card queue" },
    element(
      "div", { class: "heading" },
      element("h2", {}, element("a", { href: viewPage("queue", { queue: name }) }, name)), badge,
    ),
    figures.root, sparks, switches.root,
  );
  return {
    root,
    /** @param {Queue} queue */
    draw(queue) {
      drawBadge(badge, queue);
      figures.draw(queue);
      switches.draw(queue);
      sparks.replaceChildren(
        ...[["depth", "Depth"], ["running", "Running"], ["perMin", "Throughput"]].map(([value, label]) =>
          element("figure", {}, sparkline(past(name, /** @type {"depth"} */ (value)), `${label} of ${name} since this page was opened`), element("figcaption", {}, label)),
        ),
      );
    },
  };
}

/**
 * @param {HTMLElement} badge
 * @param {Queue} queue
 */
export function drawBadge(badge, queue) {
  const held = queue.held_until !== null && Date.parse(queue.held_until) > now();
  setText(badge, queue.paused ? "Paused" : held ? "Held" : queue.counts.running > 0 ? "Working" : "Open");
  setAttribute(badge, "data-tone", queue.paused || held ? "warning" : queue.counts.running > 0 ? "active" : "ended");
  setAttribute(badge, "title", queue.paused ? [`by ${queue.paused.by}`, queue.paused.reason].filter(Boolean).join(": ") : null);
}

/** How a queue stands, in numbers. */
export function queueFigures() {
  const root = element("dl", { class: "facts figures" });
  /** @type {Map<string, HTMLElement>} */
  const shown = new Map();
  /**
   * @param {string} name
   * @param {string} text
   * @param {string | null} [href]
   */
  function figure(name, text, href = null) {
    let value = shown.get(name);
    if (!value) {
      value = href ? element("a", { href }) : element("span");
      shown.set(name, value);
      root.append(element("div", { "data-figure": name }, element("dt", {}, name), element("dd", {}, value)));
    }
    setText(value, text);
  }
  return {
    root,
    /** @param {Queue} queue */
    draw({ name, counts, oldest_queued_at: oldest, wait_ms: wait, run_ms: run, finished_per_min: perMin }) {
      figure("Waiting", number(counts.queued));
      figure("Oldest waits", oldest ? duration(now() - Date.parse(oldest)) : "–");
      figure("Running", number(counts.running));
      figure("Scheduled", number(counts.scheduled));
      figure("Retrying", number(counts.retrying));
      figure("Dead letters", number(counts.failed), viewPage("dead", { queue: name }));
      figure("Finished per min", number(perMin));
      figure("Wait, half / 95 %", both(wait));
      figure("Run, half / 95 %", both(run));
    },
  };
}

/** @param {Percentiles} of */
function both({ p50, p95 }) {
  return p50 === null || p95 === null ? "–" : `${brief(p50)} / ${brief(p95)}`;
}

/** @param {number} ms */
export function brief(ms) {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  return ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms);
}

/**
 * Pause and resume.
 * @param {string} name
 * @param {() => void} changed
 */
export function queueSwitch(name, changed) {
  const reason = element("input", { type: "text", "aria-label": `Reason to pause ${name}`, placeholder: "Reason", maxlength: "200" });
  const pause = confirmed({
    label: `Pause`, question: `Pause ${name}? Nothing of it is handed out until it is resumed. `,
    yes: "Yes, pause it", no: "Leave it open", fields: [reason],
    async act() {
      await send("POST", queuePath(name, "/pause"), reason.value.trim() ? { reason: reason.value.trim() } : {});
      notice(`Queue ${name} paused`, { tone: "warning" });
      changed();
    },
  });
  const resume = element("button", { type: "button", hidden: true }, "Resume");
  const refusal = element("span", { class: "refusal", role: "alert" });
  resume.addEventListener("click", async () => {
    setText(refusal, "");
    try {
      await send("POST", queuePath(name, "/resume"));
      notice(`Queue ${name} resumed`, { tone: "good" });
      changed();
    } catch (error) {
      setText(refusal, `Not resumed: ${/** @type {Error} */ (error).message}`);
    }
  });
  return {
    root: element("div", { class: "actions" }, pause.root, resume, refusal),
    /** @param {Queue} queue */
    draw(queue) {
      pause.offer(queue.paused === null);
      resume.hidden = queue.paused === null;
    },
  };
}
