// @ts-check
/** A progress bar that says what it knows and no more. */
import { element, setAttribute } from "./dom.js";
import { amount, standing } from "./format.js";

/** @typedef {import("./types.js").Job} Job */

/**
 * @param {string} label
 * @returns {{root: HTMLElement, draw: (job: Job, now: number) => void}} `now` is the gateway's time, ms
 */
export function progressBar(label) {
  const fill = element("div", { class: "fill", part: "fill" });
  const root = element(
    "div",
    { class: "bar", part: "bar", role: "progressbar", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" },
    fill,
  );
  return {
    root,
    draw(job, now) {
      const share = job.progress?.percent ?? null;
      // Without a value a progressbar is indeterminate, for the eye only while something moves.
      setAttribute(root, "aria-valuenow", share === null ? null : String(Math.floor(share)));
      setAttribute(root, "aria-valuetext", amount(job) || standing(job, now).label);
      setAttribute(root, "data-tone", standing(job, now).tone);
      root.classList.toggle("indeterminate", share === null && job.state === "running");
      fill.style.setProperty("--share", String((share ?? 0) / 100));
    },
  };
}
