// @ts-check
/**
 * Who shares a connection: the tabs that ask for the same, with the same rights. Two watch tokens minted for two tabs
 * differ in their time and number only; what they allow says whether they are one.
 */

/** @typedef {import("./types.js").Token} Token */

/** What differs from one token to the next, whatever it allows. */
const PASSING = new Set(["exp", "iat", "nbf", "jti"]);

/**
 * @param {string} url
 * @param {import("./types.js").FeedOptions} options
 * @param {import("./types.js").Environment} env
 * @returns {Promise<{name: string | null, token: Token}>} the name of what is shared, null for nothing; and the
 *   credential, of which the first one got is used
 */
export async function shareName(url, { share = true, token = null }, env) {
  if (share === false || !env.locks || !env.openChannel) return { name: null, token };
  if (typeof share === "string") return { name: await digest([url, "named", share]), token };
  if (typeof token !== "function") return { name: await digest([url, "token", rights(token)]), token };
  try {
    const first = { token: await token(), taken: false };
    const name = await digest([url, "token", rights(first.token)]);
    const again = () => {
      if (first.taken) return token();
      first.taken = true;
      return first.token;
    };
    return { name, token: again };
  } catch (error) {
    // Without a credential for now: on its own, and it asks again.
    env.report(error);
    return { name: null, token };
  }
}

/** @param {string | null} token */
function rights(token) {
  try {
    const [, claims] = /^[\w-]+\.([\w-]+)\.[\w-]*$/.exec(token ?? "") ?? [];
    const bytes = Uint8Array.from(atob(claims.replaceAll("-", "+").replaceAll("_", "/")), (char) => char.charCodeAt(0));
    const facts = Object.entries(JSON.parse(new TextDecoder().decode(bytes)));
    return facts.filter(([name]) => !PASSING.has(name)).sort(([a], [b]) => (a < b ? -1 : 1));
  } catch {
    return token;
  }
}

/**
 * No name tells a credential.
 * @param {unknown} value
 * @returns {Promise<string | null>}
 */
async function digest(value) {
  const { subtle } = globalThis.crypto ?? {};
  if (!subtle) return null;
  const hash = new Uint8Array(await subtle.digest("SHA-256", new TextEncoder().encode(JSON.stringify(value))));
  return `milepost:feed:${Array.from(hash.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
