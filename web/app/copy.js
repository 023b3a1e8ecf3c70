// @ts-check
/** A button that puts text into the clipboard. */
import { element } from "../client/dom.js";
import { announce } from "./announce.js";

/**
 * @param {string} what
 * @param {HTMLElement} source
 */
export function copyButton(what, source) {
  const button = element("button", { type: "button", class: "small", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.innerText);
      announce(`Copied ${what}`);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1_500);
    } catch {
      // No clipboard on a plain http origin: the text is marked, and the keys do the rest.
      getSelection()?.selectAllChildren(source);
      announce(`Marked ${what}: copy it with the keyboard`);
    }
  });
  return button;
}
