// @ts-check
/** The parser of event streams against the frames that the gateway's own tests read, whole and in every two pieces. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { SseParser } from "../../web/client/sse.js";

/** @type {{name: string, raw: string, frames: {event: string, data: string, id: string | null, retry: number | null}[]}[]} */
const golden = JSON.parse(readFileSync(new URL("../wire/frames.json", import.meta.url), "utf8"));

/** @param {...Uint8Array} pieces */
function parse(...pieces) {
  const parser = new SseParser();
  return pieces.flatMap((piece) => parser.push(piece)).map(({ event, data, id, retry }) => ({ event, data, id, retry }));
}

test("there are golden frames", () => assert.ok(golden.length > 0));

for (const { name, raw, frames } of golden) {
  for (const [kind, text] of [["LF", raw], ["CRLF", raw.replaceAll("\n", "\r\n")], ["CR", raw.replaceAll("\n", "\r")]]) {
    test(`${name} (${kind}), cut after each byte`, () => {
      const bytes = new TextEncoder().encode(text);
      for (let cut = 0; cut <= bytes.length; cut += 1) {
        assert.deepEqual(parse(bytes.subarray(0, cut), bytes.subarray(cut)), frames, `cut after ${cut}`);
      }
      assert.deepEqual(parse(...Array.from(bytes, (byte) => Uint8Array.of(byte))), frames);
    });
  }
}

test("a frame whose blank line has not come is none", () => {
  const bytes = new TextEncoder().encode("id: 7\ndata: x\n");
  assert.deepEqual(parse(bytes), []);
});
