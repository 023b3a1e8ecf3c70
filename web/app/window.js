// @ts-check
/**
 * A long list of which only what is near the eye is in the page. All rows are of one height; what is above and below is
 * padding. When rows come in above what somebody reads, the page is scrolled along.
 */
import { setAttribute } from "../client/dom.js";

/** Lists up to so long are in the page whole: find-in-page and screen readers have all of them. */
const WHOLE = 100;
/** Rows kept ready on either side. */
const AHEAD = 30;
/** The window moves in steps, not with every pixel. */
const STEP = 10;

/**
 * @template {{id: string}} T
 * @param {HTMLElement} list
 * @param {(item: T) => {root: HTMLElement, draw: (item: T) => void}} make
 * @param {AbortSignal} signal
 */
export function windowed(list, make, signal) {
  /** @type {readonly T[]} */
  let items = [];
  /** @type {Map<string, ReturnType<typeof make>>} */
  let shown = new Map();
  let height = 0;
  let moving = false;

  function range() {
    if (items.length <= WHOLE || height === 0) return { from: 0, to: Math.min(items.length, WHOLE) };
    const above = -list.getBoundingClientRect().top / height;
    const from = Math.floor((above - AHEAD) / STEP) * STEP;
    const to = Math.ceil((above + innerHeight / height + AHEAD) / STEP) * STEP;
    const last = Math.max(0, Math.min(items.length, to));
    return { from: Math.max(0, Math.min(from, last)), to: last };
  }

  /** @param {boolean} fresh whether rows that stay are drawn again */
  function draw(fresh) {
    const { from, to } = range();
    /** @type {typeof shown} */
    const next = new Map();
    for (let index = from; index < to; index += 1) {
      const item = items[index];
      const known = shown.get(item.id);
      const row = known ?? make(item);
      next.set(item.id, row);
      if (!known || fresh) {
        row.draw(item);
        setAttribute(row.root, "aria-posinset", String(index + 1));
        setAttribute(row.root, "aria-setsize", String(items.length));
      }
    }
    for (const [id, row] of shown) if (!next.has(id)) row.root.remove();
    let place = list.firstElementChild;
    for (const { root } of next.values()) {
      // Moves only what is not in its place, so that focus stays where it is.
      if (root === place) place = place.nextElementSibling;
      else list.insertBefore(root, place);
    }
    shown = next;
    list.style.paddingTop = `${from * height}px`;
    list.style.paddingBottom = `${(items.length - to) * height}px`;
  }

  function measure() {
    const first = /** @type {HTMLElement | null} */ (list.firstElementChild);
    height = first?.getBoundingClientRect().height ?? height;
  }

  function onScroll() {
    if (moving || items.length <= WHOLE) return;
    moving = true;
    requestAnimationFrame(() => {
      moving = false;
      if (!signal.aborted) draw(false);
    });
  }

  addEventListener("scroll", onScroll, { signal, passive: true });
  addEventListener("resize", () => {
    measure();
    draw(false);
  }, { signal });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = [...shown].find(([, { root }]) => root.contains(document.activeElement));
    if (!step || !row) return;
    const index = items.findIndex(({ id }) => id === row[0]) + step;
    const target = items[index] && shown.get(items[index].id);
    if (!target) return;
    event.preventDefault();
    target.root.querySelector("a")?.focus();
  });

  return {
    /** @param {readonly T[]} newer */
    draw(newer) {
      const top = list.getBoundingClientRect().top;
      // The row at the upper edge of the window, if the list begins above it.
      const reading = height > 0 && top < 0 ? items[Math.floor(-top / height)] : undefined;
      const before = reading ? items.indexOf(reading) : -1;
      items = newer;
      const moved = reading ? newer.findIndex(({ id }) => id === reading.id) - before : 0;
      if (height === 0 && newer.length > 0) {
        draw(true);
        measure();
      }
      draw(true);
      if (before >= 0 && moved > 0) {
        scrollBy({ top: moved * height, behavior: "instant" });
        draw(false);
      }
    },
  };
}
