// @ts-check
/** What stops a watch for good. */
export class WatchError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {string} [code]
   */
  constructor(status, message, code) {
    super(message);
    this.name = "WatchError";
    this.status = status;
    this.code = code;
  }
}
