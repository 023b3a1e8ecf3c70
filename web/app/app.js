// @ts-check
/** The first page: the list of jobs at `/`, one job live at `/jobs/{id}`. */
import { base } from "./gateway.js";
import { showJob } from "./job.js";
import { showList } from "./list.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const path = location.pathname.slice(base.length);
const [, id] = /^\/jobs\/([^/]+)\/?$/.exec(path) ?? [];

if (id === undefined) showList(main);
else showJob(main, decoded(id));

/** @param {string} part of a path; a broken escape stands for itself */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
