// @ts-check
/**
 * What a `for await` loop reads from: everything that came since the loop began, in order.
 *
 * Bounded by asking whoever fills it to wait, so that a slow loop costs no memory here: the stream is not read on, and the
 * gateway keeps the rest.
 */

const ROOM = 1_000;

/** @template T */
export class Queue {
  /** @type {T[]} */
  #items = [];
  /** @type {((value?: undefined) => void)[]} */
  #readers = [];
  /** @type {(() => void) | null} */
  #drained = null;
  #ended = false;
  /** @type {Error | null} */
  #error = null;

  /** @param {T} item */
  push(item) {
    if (this.#ended) return;
    this.#items.push(item);
    this.#readers.shift()?.();
  }

  /**
   * Nothing comes any more.
   * @param {Error | null} [error]
   */
  end(error = null) {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    for (const reader of this.#readers.splice(0)) reader();
    this.#drained?.();
  }

  /** Resolves when there is room again; null if there is. */
  room() {
    if (this.#items.length < ROOM || this.#ended) return null;
    return new Promise((/** @type {(value?: undefined) => void} */ resolve) => (this.#drained = resolve));
  }

  /** @returns {Promise<IteratorResult<T, undefined>>} */
  async next() {
    while (this.#items.length === 0) {
      if (this.#ended) {
        const error = this.#error;
        this.#error = null;
        if (error) throw error;
        return { done: true, value: undefined };
      }
      await new Promise((/** @type {(value?: undefined) => void} */ resolve) => this.#readers.push(resolve));
    }
    const value = /** @type {T} */ (this.#items.shift());
    if (this.#items.length < ROOM / 2) this.#drained?.();
    return { done: false, value };
  }

  /** What is left is not wanted. */
  drop() {
    this.#items = [];
    this.end();
  }
}
