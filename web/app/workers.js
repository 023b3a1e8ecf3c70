// @ts-check
/** Who works on what, and who asked for work of late. */
import { element, setText } from "../client/dom.js";
import { ago, duration } from "../client/format.js";
import { refill } from "./focus.js";
import { ask, jobPage, now } from "./gateway.js";
import { liveFeed, regularly } from "./live.js";

/**
 * @typedef {{id: string, run: number, expires_at: string | null, cancel_requested: boolean}} Held
 * @typedef {{worker: string, seen_at: string | null, jobs: Held[]}} Worker
 */

/** @type {import("./app.js").View} */
export function showWorkers(main, signal) {
  document.title = "Workers · Milepost";
  const notice = element("p", { class: "notice", hidden: true });
  const body = element("tbody");
  const table = element(
    "table", { class: "table", hidden: true },
    element("caption", { class: "visually-hidden" }, "Workers by name"),
    element("thead", {}, element("tr", {}, ...["Worker", "Last seen", "Works on"].map((name) => element("th", { scope: "col" }, name)))),
    body,
  );
  main.replaceChildren(element("h1", {}, "Workers"), notice, element("div", { class: "scroll" }, table));

  const looking = regularly(signal, 3_000, async () => {
    try {
      const { workers } = await ask("/v1/workers", { signal });
      refill(body, /** @type {Worker[]} */ (workers).map(row));
      table.hidden = workers.length === 0;
      notice.hidden = workers.length > 0;
      setText(notice, "No worker holds a job or has asked for one within the last minute.");
    } catch (error) {
      if (signal.aborted) return;
      notice.hidden = false;
      setText(notice, `${/** @type {Error} */ (error).message} What is shown may be old.`);
    }
  });
  liveFeed({}, signal, { onState: looking.soon });
}

/** @param {Worker} worker */
function row({ worker, seen_at, jobs }) {
  const held = jobs.map((job) =>
    element(
      "li", {},
      element("a", { class: "mono", href: jobPage(job.id) }, job.id), ` run ${job.run}`,
      job.expires_at ? `, lease runs out in ${duration(Date.parse(job.expires_at) - now())}` : "",
      job.cancel_requested ? element("span", { class: "badge", "data-tone": "warning" }, "Cancelling") : "",
    ),
  );
  return element(
    "tr", {},
    element("th", { scope: "row" }, worker),
    element("td", {}, seen_at ? ago(now() - Date.parse(seen_at)) : ""),
    element("td", {}, held.length > 0 ? element("ul", {}, ...held) : element("span", { class: "soft" }, "idle")),
  );
}
