// @ts-check
/** The one live region of the page. */

/** @type {ReturnType<typeof setTimeout> | undefined} */
let speaking;

/**
 * Says one thing through the page's only live region. Of several in quick succession the last is said.
 * @param {string} text
 */
export function announce(text) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const region = document.getElementById("announcer");
    if (region) region.textContent = text;
  }, 300);
}
