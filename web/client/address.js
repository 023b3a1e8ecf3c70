// @ts-check
/** Where things are: what an app names, taken apart into the gateway's address, the job and its credential. */

/**
 * @typedef {object} Address
 * @property {string} base the gateway's address with its base path, without a slash at the end; empty for this origin
 * @property {string} id
 * @property {string | null} token the credential that the address carried
 */

/**
 * The address of a job, of its events, or of its page: whichever of its `urls` an app has at hand.
 * @param {string | URL} url
 * @returns {Address}
 * @throws {TypeError} if it is none of them
 */
export function jobAddress(url) {
  const [, path, query, fragment] = /** @type {RegExpExecArray} */ (/^([^?#]*)(?:\?([^#]*))?(?:#(.*))?$/s.exec(String(url)));
  const [, base, id] = /^(.*?)(?:\/v1)?\/jobs\/([^/]+)(?:\/events)?\/?$/.exec(path) ?? [];
  if (id === undefined) throw new TypeError(`not the address of a job: ${url}`);
  // The page's address carries it in the fragment, which no server logs.
  const token = new URLSearchParams(fragment).get("token") ?? new URLSearchParams(query).get("token");
  return { base, id, token };
}

/**
 * The address of one resource of a job.
 * @param {Address} address
 * @param {string} [rest]
 */
export function jobUrl({ base, id }, rest = "") {
  return `${base}/v1/jobs/${id}${rest}`;
}
