// @ts-check
/** The list of jobs, newest first, live. */
import { batched, element, setText } from "../client/dom.js";
import { number } from "../client/format.js";
import { announce } from "./announce.js";
import { asked, filterForm, wanted } from "./filters.js";
import { findJobs } from "./found.js";
import { jobRow } from "./row.js";
import { windowed } from "./window.js";

/** @type {import("./app.js").View} */
export function showList(main, signal) {
  document.title = "Jobs · Milepost";
  const form = filterForm();
  const count = element("span", { class: "size" });
  const notice = element("p", { class: "notice", hidden: true });
  const rows = element("ul", { class: "jobs long", "aria-label": "Jobs, newest first" });
  const more = element("button", { type: "button", class: "more", hidden: true }, "Show more");
  main.replaceChildren(element("div", { class: "cardhead" }, element("h1", {}, "Jobs"), count), form, notice, rows, more);
  const list = windowed(rows, jobRow, signal);

  /** What is asked for now. @type {{jobs: ReturnType<typeof findJobs>, stop: AbortController}} */
  let search;
  let trouble = "";
  const draw = batched(() => {
    if (signal.aborted) return;
    const { jobs, loaded, more: left } = search.jobs;
    list.draw(jobs);
    more.hidden = !left;
    setText(count, loaded ? `${number(jobs.length)}${left ? " newest" : ""}` : "");
    const none = asked(form).size > 0 ? "No job matches." : "No jobs yet. Post one, and it appears here.";
    const words = trouble || (loaded && jobs.length === 0 ? none : "");
    notice.hidden = words === "";
    setText(notice, words);
  });

  function begin() {
    search?.stop.abort();
    const stop = new AbortController();
    trouble = "";
    const jobs = findJobs(wanted(asked(form)), AbortSignal.any([signal, stop.signal]), {
      onChange() {
        trouble = "";
        draw();
      },
      onError(error) {
        trouble = `${error.message} What is shown may be old.`;
        draw();
      },
    });
    search = { jobs, stop };
  }

  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let typing;
  form.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      if (signal.aborted) return;
      const query = asked(form).toString();
      history.replaceState(null, "", `${query ? `?${query}` : location.pathname}${location.hash}`);
      begin();
    }, 250);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", async () => {
    more.disabled = true;
    await search.jobs.extend();
    more.disabled = false;
    announce(`${search.jobs.jobs.length} jobs shown`);
  });
  // Ages grow while nothing happens.
  const clock = setInterval(() => document.hidden || draw(), 1_000);
  signal.addEventListener("abort", () => clearInterval(clock));
  begin();
}
