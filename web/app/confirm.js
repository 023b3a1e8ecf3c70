// @ts-check
/** A button that asks before it does what cannot be taken back. */
import { element, setText } from "../client/dom.js";

/**
 * @typedef {object} Deed
 * @property {string} label of the button
 * @property {string} question
 * @property {string} yes
 * @property {string} no
 * @property {() => Promise<string | void> | string | void} [prepare] runs before the question; its text replaces the question, and an error ends it
 * @property {() => Promise<void>} act an error's message is shown
 * @property {HTMLElement[]} [fields] stand between the question and the answers
 */

/**
 * @param {Deed} deed
 * @returns {{root: HTMLElement, offer: (possible: boolean) => void}}
 */
export function confirmed(deed) {
  const button = element("button", { type: "button" }, deed.label);
  const question = element("span", {}, deed.question);
  const really = element("button", { type: "button", class: "danger" }, deed.yes);
  const keep = element("button", { type: "button" }, deed.no);
  const group = element(
    "span", { class: "confirm", role: "group", "aria-label": deed.question, hidden: true },
    question, ...(deed.fields ?? []), really, keep,
  );
  const refusal = element("span", { class: "refusal", role: "alert" });
  let possible = true;
  let asking = false;
  /** @param {boolean} now */
  function ask(now) {
    asking = now;
    button.hidden = asking || !possible;
    group.hidden = !asking || !possible;
  }
  /** @param {unknown} error */
  const refuse = (error) => setText(refusal, `Not done: ${/** @type {Error} */ (error).message}`);
  button.addEventListener("click", async () => {
    setText(refusal, "");
    try {
      const text = await deed.prepare?.();
      if (text) setText(question, text);
    } catch (error) {
      refuse(error);
      return;
    }
    ask(true);
    keep.focus();
  });
  keep.addEventListener("click", () => {
    ask(false);
    button.focus();
  });
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    ask(false);
    button.focus();
  });
  really.addEventListener("click", async () => {
    ask(false);
    setText(refusal, "");
    await deed.act().catch(refuse);
  });
  return {
    root: element("span", { class: "deed" }, button, group, refusal),
    offer(now) {
      possible = now;
      if (!now) asking = false;
      ask(asking);
    },
  };
}
