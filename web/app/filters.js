// @ts-check
/** Which jobs the list shows: a form whose values are the page's query, so that a filter can be kept and passed on. */
import { element } from "../client/dom.js";
import { now } from "./gateway.js";

/** @typedef {import("../client/types.js").Job} Job */

const FILTERS = ["state", "subject", "kind", "queue", "finished"];
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
/** What can be asked for, by the words of the page. */
const STATES = {
  "": "All states",
  "scheduled,queued,retrying": "Waiting",
  running: "Running",
  completed: "Completed",
  failed: "Failed",
  cancelled: "Cancelled",
  expired: "Expired",
};
const TIMES = { "": "Any time", today: "Finished today" };

export function filterForm() {
  const asked = new URLSearchParams(location.search);
  const fields = [["subject", "Subject or id"], ["kind", "Kind"], ["queue", "Queue"]].map(([name, label]) =>
    element("input", {
      name,
      type: "search",
      "aria-label": label,
      placeholder: `Any ${label.toLowerCase()}`,
      value: asked.get(name),
      maxlength: "200",
      autocomplete: "off",
      spellcheck: "false",
    }),
  );
  return element(
    "form", { class: "filters", role: "search", "aria-label": "Filter jobs" },
    choice("state", "State", STATES, asked), ...fields, choice("finished", "When", TIMES, asked),
  );
}

/**
 * @param {string} name
 * @param {string} label
 * @param {Record<string, string>} options
 * @param {URLSearchParams} asked
 */
function choice(name, label, options, asked) {
  const select = element("select", { name, "aria-label": label });
  for (const [value, words] of Object.entries(options)) {
    select.append(element("option", { value, selected: asked.get(name) === value }, words));
  }
  return select;
}

/**
 * What is asked for, as the page's query has it.
 * @param {HTMLFormElement} form
 */
export function asked(form) {
  const filters = new URLSearchParams();
  const values = new FormData(form);
  for (const name of FILTERS) {
    const value = String(values.get(name) ?? "").trim();
    if (value) filters.set(name, value);
  }
  return filters;
}

/**
 * The same for the gateway: the query of its list, the filter of its feed, and what neither does.
 * @param {URLSearchParams} filters
 */
export function wanted(filters) {
  const list = new URLSearchParams(filters);
  list.delete("finished");
  const since = filters.get("finished") === "today" ? startOfToday() : null;
  if (since !== null) list.set("finished_after", new Date(since).toISOString());
  const subject = filters.get("subject") ?? "";
  const id = ID.test(subject) ? subject.toLowerCase() : null;
  const states = filters.get("state")?.split(",") ?? null;
  /** @type {import("../client/types.js").FeedFilter} */
  const feed = id !== null ? { jobs: id } : {};
  for (const name of /** @type {const} */ (["subject", "kind", "queue"])) {
    const value = filters.get(name);
    if (value && id === null) feed[name] = value;
  }
  return {
    id,
    list,
    feed,
    /** @param {Job} job */
    fits(job) {
      if (states && !states.includes(job.state)) return false;
      return since === null || (job.finished_at !== null && Date.parse(job.finished_at) >= since);
    },
  };
}

/** Midnight where the viewer is, by the gateway's clock, ms. */
export function startOfToday() {
  return new Date(now()).setHours(0, 0, 0, 0);
}
