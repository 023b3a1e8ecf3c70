// @ts-check
/** What a job has said: its output, its log lines, its events. Bounded in the page, however much there is. */
import { element, growing, setText } from "../client/dom.js";
import { bytes, fields, oneLine, plain } from "../client/format.js";
import { copyButton } from "./copy.js";
import { jobLink } from "./gateway.js";

/** @typedef {import("../client/types.js").Job} Job */
/** @typedef {import("../client/types.js").Output} Output */
/** @typedef {import("../client/types.js").LogEvent} LogEvent */

const ROWS = 300;
/** Types that come in floods: neighbours share a row. */
const FLOODS = new Set(["progress", "output"]);

/**
 * The output of the run, followed to its end unless somebody scrolled up.
 * @param {HTMLElement} section
 */
export function outputBox(section) {
  const size = element("span", { class: "size" });
  const whole = element("a", { class: "whole" }, "Whole output");
  // Not live for screen readers: every token would be read out.
  const text = element("pre", { class: "output", role: "log", "aria-live": "off", "aria-label": "Output", tabindex: "0" });
  const write = growing(text);
  const following = followButton("output", () => {
    write(latest);
    text.scrollTop = text.scrollHeight;
  });
  section.append(
    element("div", { class: "cardhead" }, element("h2", {}, "Output"), size, whole, following.button, copyButton("output", text)),
    text,
  );
  let latest = "";
  return {
    /**
     * @param {Output} output
     * @param {Job} job
     */
    draw(output, job) {
      section.hidden = job.output.bytes === 0;
      whole.href = jobLink(job.id, "/output");
      const from = output.offset > 0 ? `the end of ` : "";
      setText(size, `${from}${bytes(job.output.bytes)}`);
      latest = output.text;
      if (!following.paused) write(latest);
    },
  };
}

/**
 * Pauses what grows, so that it can be read; going on shows what came meanwhile.
 * @param {string} what
 * @param {() => void} goOn
 */
function followButton(what, goOn) {
  const button = element("button", { type: "button", class: "small", "aria-pressed": "false", "aria-label": `Pause ${what}` }, "Pause");
  const state = { button, paused: false };
  button.addEventListener("click", () => {
    state.paused = !state.paused;
    setText(button, state.paused ? "Follow" : "Pause");
    button.setAttribute("aria-pressed", String(state.paused));
    if (!state.paused) goOn();
  });
  return state;
}

/**
 * The job's log lines.
 * @param {HTMLElement} section
 */
export function logList(section) {
  const rows = boundedRows(section, "Log");
  return {
    ...rows,
    /** @param {LogEvent} event */
    add(event) {
      if (event.type !== "log") return;
      const { level = "info", message = "", fields: more } = event.data ?? {};
      const said = element("span", { class: "said" }, plain(String(message)));
      if (more) said.append(" ", element("span", { class: "fields" }, plain(fields(more))));
      rows.push(
        element(
          "li",
          { "data-level": String(level) },
          moment(event.at),
          element("span", { class: "level" }, String(level)),
          said,
        ),
      );
    },
  };
}

/**
 * The events of the job's log, whatever their type.
 * @param {HTMLElement} section
 */
export function eventList(section) {
  const rows = boundedRows(section, "Events");
  /** The row that takes more of its kind. */
  let last = { type: "", first: 0, row: element("li") };
  return {
    ...rows,
    /** @param {LogEvent} event */
    add(event) {
      const first = event.from_seq ?? event.seq;
      const merges = FLOODS.has(event.type) && last.type === event.type;
      const from = merges ? last.first : first;
      const seqs = from === event.seq ? `${event.seq}` : `${from}–${event.seq}`;
      const summary = event.type === "output" ? (event.data?.text ?? "") : fields(event.data);
      const row = element(
        "li",
        {},
        moment(event.at),
        element("span", { class: "seq" }, seqs),
        element("span", { class: "type" }, event.type),
        element("span", { class: "said" }, oneLine(plain(summary))),
      );
      if (merges) rows.replace(last.row, row);
      else rows.push(row);
      last = { type: event.type, first: from, row };
    },
    clear() {
      rows.clear();
      last = { type: "", first: 0, row: element("li") };
    },
  };
}

/**
 * Rows that reach the page with the next frame, the last few hundred of them.
 * @param {HTMLElement} section
 * @param {string} title
 */
function boundedRows(section, title) {
  const list = element("ol", { "aria-label": title, tabindex: "0" });
  const following = followButton(title.toLowerCase(), () => {
    draw();
    list.scrollTop = list.scrollHeight;
  });
  section.append(
    element("div", { class: "cardhead" }, element("h2", {}, title), following.button, copyButton(title.toLowerCase(), list)),
    list,
  );
  /** @type {HTMLLIElement[]} */
  let pending = [];
  function draw() {
    if (pending.length === 0 || following.paused) return;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 30;
    list.append(...pending);
    pending = [];
    while (list.children.length > ROWS) list.firstElementChild?.remove();
    section.hidden = false;
    if (atEnd) list.scrollTop = list.scrollHeight;
  }
  return {
    /** @param {HTMLLIElement} row */
    push(row) {
      pending.push(row);
      // A hidden tab draws nothing: what would be cut off at once is not kept for it.
      if (pending.length > 2 * ROWS) pending = pending.slice(-ROWS);
    },
    /**
     * @param {HTMLLIElement} old
     * @param {HTMLLIElement} row
     */
    replace(old, row) {
      const index = pending.lastIndexOf(old);
      if (index >= 0) pending[index] = row;
      else if (old.isConnected) old.replaceWith(row);
      else pending.push(row);
    },
    clear() {
      pending = [];
      list.replaceChildren();
    },
    draw,
  };
}

/** @param {string} at */
function moment(at) {
  return element("time", { datetime: at, title: at }, at.slice(11, 19));
}
