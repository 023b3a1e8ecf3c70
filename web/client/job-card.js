// @ts-check
/** What the element shows: a card made once, and drawn from a job and how things stand with the gateway. */
import { progressBar } from "./bar.js";
import { element, growing, setAttribute, setText } from "./dom.js";
import { ending } from "./ending.js";
import { amount, plain, standing } from "./format.js";
import { LINK } from "./speaker.js";

/** @typedef {import("./types.js").Job} Job */
/** @typedef {import("./types.js").Link} Link */

/**
 * @typedef {object} Shown
 * @property {Job | null} job
 * @property {string} output
 * @property {Link} link
 * @property {string} resultUrl
 * @property {boolean} cancellable whether to offer it
 * @property {boolean} retryable
 * @property {boolean} busy something was asked and is not answered yet
 * @property {string} refusal why something was not done
 */

/** Worth a word; while all is well there is nothing to say about a connection. */
const TROUBLES = new Set(["reconnecting", "stale", "gone", "denied", "refused"]);

export class JobCard {
  root;
  cancel = element("button", { type: "button", part: "button cancel", hidden: true }, "Cancel");
  retry = element("button", { type: "button", part: "button retry", hidden: true }, "Try again");
  really = element("button", { type: "button", part: "button confirm", class: "danger" }, "Yes, cancel it");
  keep = element("button", { type: "button", part: "button keep" }, "Let it run");
  confirm = element("span", { class: "confirm", role: "group", "aria-label": "Cancel this job?", hidden: true });
  /** The one live region. */
  announcer = element("p", { class: "visually-hidden", role: "status", "aria-live": "polite" });

  #title = element("span", { class: "title", part: "title" });
  #badge = element("span", { class: "badge", part: "state" });
  #bar = progressBar("Progress");
  #far = element("span", { part: "amount" });
  #message = element("span", { class: "message", part: "message" });
  #output = element("pre", { class: "output", part: "output", role: "log", "aria-live": "off", "aria-label": "Output", tabindex: "0", hidden: true });
  #ending = element("div", { part: "result" });
  #notice = element("p", { class: "notice", part: "notice", hidden: true });
  #write = growing(this.#output);
  /** What `#ending` shows: it is built again only when that changes, so that focus and selection in it survive. */
  #shownEnding = "";

  constructor() {
    this.confirm.append("Cancel this job? ", this.really, this.keep);
    this.root = element(
      "section",
      { class: "card", part: "card", "aria-label": "Job", tabindex: "-1" },
      element("div", { class: "head", part: "header" }, this.#title, this.#badge),
      this.#bar.root,
      element("div", { class: "words", part: "words" }, this.#far, this.#message),
      this.#output,
      this.#ending,
      this.#notice,
      element("div", { class: "actions", part: "actions" }, this.cancel, this.confirm, this.retry),
    );
  }

  /**
   * @param {Shown} shown
   * @param {number} now the gateway's time, ms
   */
  draw({ job, output, link, resultUrl, cancellable, retryable, busy, refusal }, now) {
    const trouble = refusal || (TROUBLES.has(link) ? LINK[link] : "");
    this.#notice.hidden = trouble === "";
    setText(this.#notice, trouble);
    setAttribute(this.#notice, "data-tone", refusal || link === "stale" || link === "denied" ? "bad" : "warning");
    setAttribute(this.root, "aria-busy", job || trouble ? null : "true");
    this.cancel.hidden = !cancellable || !this.confirm.hidden;
    if (!cancellable) this.confirm.hidden = true;
    this.retry.hidden = !retryable;
    for (const button of [this.cancel, this.really, this.retry]) button.disabled = busy;
    this.#badge.hidden = job === null;
    if (!job) {
      setText(this.#title, trouble ? "Job" : "Connecting…");
      return;
    }
    const { label, tone } = standing(job, now);
    setAttribute(this.root, "data-tone", tone);
    setAttribute(this.root, "aria-label", `Job ${job.kind}`);
    setText(this.#title, job.kind);
    setText(this.#badge, label);
    setAttribute(this.#badge, "data-tone", tone);
    this.#bar.draw(job, now);
    setText(this.#far, amount(job));
    setText(this.#message, plain([job.progress?.phase, job.progress?.message].filter(Boolean).join(": ")));
    this.#output.hidden = job.output.bytes === 0;
    this.#write(output);
    const key = JSON.stringify([job.outcome, job.error, job.state]);
    if (key === this.#shownEnding) return;
    this.#shownEnding = key;
    this.#ending.replaceChildren(...ending(job, resultUrl));
  }
}
