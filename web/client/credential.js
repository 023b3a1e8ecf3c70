// @ts-check
/** The credential of one watch: got once, and got anew when the gateway no longer takes it. */

export class Credential {
  #token;
  /** Undefined until it is asked for. @type {string | null | undefined} */
  #current;
  /** Whether the one at hand came after a refusal and has not worked yet: refused as well, no other will do. */
  #renewed = false;

  /** @param {import("./types.js").Token} [token] */
  constructor(token = null) {
    this.#token = token;
  }

  /**
   * What to send; null for none.
   * @returns {Promise<string | null>}
   * @throws whatever the app's function throws
   */
  async get() {
    if (this.#current === undefined) {
      this.#current = (typeof this.#token === "function" ? await this.#token() : this.#token) ?? null;
    }
    return this.#current;
  }

  /** It worked. */
  proven() {
    this.#renewed = false;
  }

  /**
   * The gateway refused it.
   * @returns {boolean} whether it is worth asking the app for another
   */
  refused() {
    if (typeof this.#token !== "function" || this.#renewed) return false;
    this.#renewed = true;
    this.#current = undefined;
    return true;
  }

  /** Its time is up. */
  expired() {
    if (typeof this.#token === "function") this.#current = undefined;
  }
}
