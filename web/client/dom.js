// @ts-check
/** Elements, made and changed without ever parsing text as HTML. */
import { plain } from "./format.js";

/**
 * Makes an element. Text becomes text nodes: nothing that came from a job can turn into markup.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string | boolean | null>} [attributes] `true` sets an empty one, `false` and `null` none
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null) continue;
    made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/**
 * Sets an element's text if it is another, so that a selection in it, and what a screen reader is saying, survive.
 * @param {Element} target
 * @param {string} text
 */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Sets or, with null, removes an attribute if that changes anything.
 * @param {Element} target
 * @param {string} name
 * @param {string | null} value
 */
export function setAttribute(target, name, value) {
  if (value === null) target.removeAttribute(name);
  else if (target.getAttribute(name) !== value) target.setAttribute(name, value);
}

/**
 * A function that runs `draw` once before the next frame, however often it is called until then.
 * @param {() => void} draw
 */
export function batched(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/**
 * A function that writes text which mostly grows at its end, and follows it unless somebody scrolled up.
 * @param {HTMLElement} target
 * @returns {(text: string) => void}
 */
export function growing(target) {
  let written = "";
  return (text) => {
    if (text === written) return;
    const atEnd = target.scrollHeight - target.scrollTop - target.clientHeight < 30;
    if (written && text.startsWith(written)) target.append(plain(text.slice(written.length)));
    else target.textContent = plain(text);
    written = text;
    if (atEnd) target.scrollTop = target.scrollHeight;
  };
}
