// @ts-check
/** Fake Web Locks, as Node lacks them: exclusive locks with their queue, `ifAvailable`, `steal` and `signal`. */

/** @typedef {{resolve: () => void, reject: (error: Error) => void}} Holder */

export class FakeLocks {
  /** @type {Map<string, Holder>} */
  #held = new Map();
  /** @type {Map<string, (() => void)[]>} */
  #queues = new Map();

  /** The names that are held. */
  get names() {
    return [...this.#held.keys()].sort();
  }

  /** @returns {LockManager} */
  get manager() {
    return /** @type {any} */ ({ request: this.request.bind(this) });
  }

  /**
   * @param {string} name
   * @param {LockOptions} options
   * @param {(lock: object | null) => unknown} callback
   */
  async request(name, { ifAvailable = false, steal = false, signal }, callback) {
    const aborted = () => new DOMException("aborted", "AbortError");
    if (signal?.aborted) throw aborted();
    if (steal) {
      this.#held.get(name)?.reject(aborted());
      this.#held.delete(name);
    } else if (this.#held.has(name)) {
      if (ifAvailable) return callback(null);
      const queue = this.#queues.get(name) ?? this.#queues.set(name, []).get(name) ?? [];
      await new Promise((/** @type {(value?: undefined) => void} */ resolve, reject) => {
        queue.push(resolve);
        signal?.addEventListener("abort", () => {
          if (!queue.includes(resolve)) return;
          queue.splice(queue.indexOf(resolve), 1);
          reject(aborted());
        });
      });
    }
    return new Promise((resolve, reject) => {
      /** @type {Holder} */
      const holder = { resolve: () => {}, reject };
      this.#held.set(name, holder);
      Promise.resolve(callback({ name, mode: "exclusive" })).then((value) => {
        if (this.#held.get(name) === holder) {
          this.#held.delete(name);
          this.#queues.get(name)?.shift()?.();
        }
        resolve(value);
      }, reject);
    });
  }
}
