// @ts-check
/**
 * The wire format of an event stream (WHATWG HTML 9.2.6), as it comes: in pieces, cut anywhere.
 *
 * A frame counts once its blank line has come. What a cut leaves unfinished is dropped with the parser; the cursor still
 * stands before it, so the gateway sends it again, whole.
 */

/**
 * @typedef {object} RawFrame
 * @property {string} event `message` if the frame has no name
 * @property {string} data
 * @property {string | null} id null if the frame has none
 * @property {number | null} retry ms
 */

export class SseParser {
  #decoder = new TextDecoder();
  /** The line that is not yet whole. */
  #rest = "";
  /** Whether the last piece ended in a CR: an LF right after it belongs to it. */
  #skipLf = false;
  #event = "";
  /** @type {string[] | null} */
  #data = null;
  /** @type {string | null} */
  #id = null;
  /** @type {number | null} */
  #retry = null;

  /**
   * Takes a piece and gives the frames that it made whole.
   * @param {Uint8Array} bytes
   * @returns {RawFrame[]}
   */
  push(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    if (this.#skipLf && text[0] === "\n") text = text.slice(1);
    this.#skipLf = text.endsWith("\r");
    const lines = (this.#rest + text).split(/\r\n|\r|\n/);
    this.#rest = /** @type {string} */ (lines.pop());
    return lines.flatMap((line) => this.#take(line) ?? []);
  }

  /**
   * @param {string} line
   * @returns {RawFrame | null}
   */
  #take(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") (this.#data ??= []).push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    else if (name === "retry" && /^\d+$/.test(value)) this.#retry = Number(value);
    return null;
  }

  /** @returns {RawFrame | null} */
  #dispatch() {
    const frame = { event: this.#event || "message", id: this.#id, retry: this.#retry };
    const data = this.#data;
    this.#event = "";
    this.#data = this.#id = this.#retry = null;
    return data === null ? null : { ...frame, data: data.join("\n") };
  }
}
