// @ts-check
/** A job's payload: folded, and asked for only when somebody unfolds it. */
import { element, setText } from "../client/dom.js";
import { copyButton } from "./copy.js";
import { ask, jobPath, Refusal } from "./gateway.js";

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
export function payloadFold(id) {
  const text = element("pre", { class: "text", role: "region", tabindex: "0", "aria-label": "Payload" });
  const copy = copyButton("payload", text);
  const tools = element("div", { class: "cardhead", hidden: true }, copy);
  const fold = element("details", { class: "card payload" }, element("summary", {}, "Payload"), tools, text);
  let known = false;
  fold.addEventListener("toggle", async () => {
    if (!fold.open || known) return;
    setText(text, "…");
    try {
      const { payload } = await ask(jobPath(id, "?include=payload"));
      setText(text, JSON.stringify(payload ?? null, null, 2));
      tools.hidden = false;
      known = true;
    } catch (error) {
      const { status, message } = /** @type {Refusal} */ (error);
      setText(text, status === 401 || status === 403 ? "This credential may not see the payload." : message);
    }
  });
  return fold;
}
