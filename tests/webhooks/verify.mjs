// @ts-check
// What a receiver makes of requests, by the library that the standard's authors publish. Reads a JSON array of
// `{secret, headers, body}` from stdin, and prints for each why it is refused, or null.

import { text } from "node:stream/consumers";
import { Webhook } from "standardwebhooks";

/** @type {{secret: string, headers: Record<string, string>, body: string}[]} */
const requests = JSON.parse(await text(process.stdin));
const verdicts = requests.map(({ secret, headers, body }) => {
  try {
    new Webhook(secret).verify(body, headers);
    return null;
  } catch (error) {
    return String(error);
  }
});
console.log(JSON.stringify(verdicts));
