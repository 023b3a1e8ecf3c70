// @ts-check
/** The links to the views, and the mark that says how things stand with the gateway. */
import { element, setAttribute, setText } from "../client/dom.js";
import { LINK } from "../client/speaker.js";
import { viewPage } from "./gateway.js";

/** @typedef {import("../client/types.js").Link} Link */

const NAMES = { jobs: "Jobs", queues: "Queues", dead: "Dead letters", workers: "Workers", activity: "Activity" };

/** @param {string} current */
export function drawNavigation(current) {
  const links = Object.entries(NAMES).map(([view, name]) =>
    element("a", { href: viewPage(view), "aria-current": view === current ? "page" : null }, name),
  );
  document.getElementById("views")?.replaceChildren(...links);
}

/**
 * @param {Link} link
 */
export function drawLink(link) {
  const mark = /** @type {HTMLElement} */ (document.getElementById("link"));
  mark.hidden = false;
  setText(mark, LINK[link]);
  setAttribute(mark, "data-link", link);
}
