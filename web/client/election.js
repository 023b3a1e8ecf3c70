// @ts-check
/**
 * Which of several tabs does what only one should: a Web Lock that goes with its tab, and to the next in the queue.
 */

export class Election {
  #locks;
  #name;
  #elected;
  #deposed;
  /** The wait for the office, and the term in it. Counted, so that the past has no say. */
  #round = 0;
  /** Withdraws from the queue. */
  #withdraw = new AbortController();
  /** Ends the term. @type {(value?: undefined) => void} */
  #resign = () => {};

  /**
   * @param {LockManager} locks
   * @param {string} name
   * @param {object} callbacks
   * @param {() => void} callbacks.elected
   * @param {() => void} callbacks.deposed somebody took the office from us
   */
  constructor(locks, name, { elected, deposed }) {
    this.#locks = locks;
    this.#name = name;
    this.#elected = elected;
    this.#deposed = deposed;
  }

  /** Queues for the office. */
  stand() {
    this.leave();
    this.#request({ signal: this.#withdraw.signal });
  }

  /** Takes the office from whoever holds it and is not heard of. */
  seize() {
    this.leave();
    this.#request({ steal: true });
  }

  /** Leaves the office, or the queue. */
  leave() {
    this.#round += 1;
    this.#withdraw.abort();
    this.#withdraw = new AbortController();
    this.#resign();
    this.#resign = () => {};
  }

  /** @param {LockOptions} options */
  #request(options) {
    const round = this.#round;
    const current = () => round === this.#round;
    let held = false;
    this.#locks
      .request(this.#name, options, () => {
        if (!current()) return undefined;
        held = true;
        return new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
          this.#resign = resolve;
          this.#elected();
        });
      })
      .catch(() => {
        if (!current()) return;
        if (held) this.#deposed();
        // Where locks are forbidden everybody is alone.
        else this.#elected();
      });
  }
}
