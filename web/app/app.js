// @ts-check
/** The page: its views at `/`, one job live at `/jobs/{id}`. Which view is told by the fragment: no request per step. */
import { setAttribute } from "../client/dom.js";
import { showActivity } from "./activity.js";
import { showDeadLetters } from "./dead-letters.js";
import { base } from "./gateway.js";
import { showJob } from "./job.js";
import { showList } from "./list.js";
import { drawNavigation } from "./navigation.js";
import { showQueue } from "./queue.js";
import { showQueues } from "./queues.js";
import { showWorkers } from "./workers.js";

/** @typedef {(main: HTMLElement, signal: AbortSignal, words: URLSearchParams) => void} View shows itself until told to end */

/** @type {Record<string, View>} */
const VIEWS = {
  jobs: showList,
  queues: showQueues,
  queue: showQueue,
  dead: showDeadLetters,
  workers: showWorkers,
  activity: showActivity,
};

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const path = location.pathname.slice(base.length);
const [, id] = /^\/jobs\/([^/]+)\/?$/.exec(path) ?? [];
let leaving = new AbortController();

document.querySelector(".skip")?.addEventListener("click", (event) => {
  // The fragment says which view: a jump must not replace it.
  event.preventDefault();
  main.focus();
});

if (id === undefined) {
  addEventListener("hashchange", () => {
    show();
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  });
  show();
} else {
  drawNavigation("");
  showJob(main, decoded(id));
}

function show() {
  leaving.abort();
  leaving = new AbortController();
  const words = new URLSearchParams(location.hash.slice(1));
  const name = words.get("view") ?? "jobs";
  const view = Object.hasOwn(VIEWS, name) ? name : "jobs";
  document.title = "Milepost";
  main.replaceChildren();
  setAttribute(main, "data-view", view);
  drawNavigation(view === "queue" ? "queues" : view);
  VIEWS[view](main, leaving.signal, words);
}

/** @param {string} part of a path; a broken escape stands for itself */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
