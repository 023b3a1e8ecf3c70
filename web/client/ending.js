// @ts-check
/** How a job came out, as elements: its outcome and what it made, or why it failed. */
import { element } from "./dom.js";
import { oneLine, plain, safeLink, standing } from "./format.js";

/** @typedef {import("./types.js").Job} Job */

/**
 * How the job ended, or why it is tried again.
 * @param {Job} job
 * @param {string} resultUrl where its result is, if it has one
 * @returns {HTMLElement[]}
 */
export function ending(job, resultUrl) {
  const parts = [];
  if (job.outcome) parts.push(outcome(job, job.outcome, resultUrl));
  if (job.error) {
    const { code, message, details } = job.error;
    const tone = job.state === "failed" ? "bad" : "warning";
    const box = element(
      "div",
      { class: "box", part: "error", "data-tone": tone },
      element("p", {}, element("strong", {}, code || "error"), message ? ` ${plain(message)}` : ""),
    );
    if (details !== undefined && details !== null) box.append(element("pre", {}, JSON.stringify(details, null, 2)));
    box.append(element("p", { class: "mono" }, `Job ${job.id}`));
    parts.push(box);
  }
  if (job.state === "expired") {
    parts.push(element("div", { class: "box", part: "error", "data-tone": "bad" }, element("p", {}, "It was not started in time.")));
  }
  return parts;
}

/**
 * @param {Job} job
 * @param {import("./types.js").Outcome} result
 * @param {string} resultUrl
 */
function outcome(job, result, resultUrl) {
  const bad = result.ok === false;
  const box = element("div", { class: "box", part: "outcome", "data-tone": standing(job, 0).tone });
  const lead = bad ? "It ran to its end, but reported that this was no success." : "";
  const words = [result.note ? plain(String(result.note)) : "", lead].filter(Boolean).join(" · ");
  const status = result.status && result.status !== "ok" ? String(result.status) : bad ? "not ok" : "ok";
  box.append(element("p", {}, element("strong", {}, status), words ? ` ${words}` : ""));
  const measures = Object.entries(result.metrics ?? {});
  if (result.items != null) measures.unshift(["items", result.items]);
  if (measures.length > 0) {
    const list = measures.map(([name, value]) => element("li", {}, `${name} `, element("b", {}, oneLine(value, 60))));
    box.append(element("ul", { class: "measures" }, ...list));
  }
  const links = (Array.isArray(result.artifacts) ? result.artifacts : []).map(artifact);
  if (result.result_url) {
    links.push(element("li", {}, element("a", { href: resultUrl }, "Result data")));
  }
  if (links.length > 0) box.append(element("ul", { class: "artifacts" }, ...links));
  return box;
}

/** @param {{label?: string, url?: string}} made */
function artifact({ label, url }) {
  const href = safeLink(url);
  const name = String(label ?? url ?? "artifact");
  // Not a web address: shown, not offered.
  return element("li", {}, href ? element("a", { href, rel: "noopener noreferrer", target: "_blank" }, name) : name);
}
