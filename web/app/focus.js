// @ts-check
/** Focus that survives when a part of the page is built again. */

/**
 * Replaces what is in an element; the link or button that had focus has it again, if there still is one like it.
 * @param {HTMLElement} target
 * @param {Node[]} children
 */
export function refill(target, children) {
  const focused = target.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
  const same = focused && mark(focused);
  target.replaceChildren(...children);
  if (!same) return;
  for (const found of target.querySelectorAll("a, button")) {
    if (mark(found) === same) return /** @type {HTMLElement} */ (found).focus({ preventScroll: true });
  }
}

/** @param {Element} found */
function mark(found) {
  return `${found.tagName} ${found.getAttribute("href") ?? ""} ${found.getAttribute("aria-label") ?? found.textContent}`;
}
