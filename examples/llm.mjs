#!/usr/bin/env node
// @ts-check
// A worker that streams what a language model says: `MILEPOST_URL=http://127.0.0.1:8080 llm.mjs QUEUE [NAME]`. Beside
// this file it needs `worker.mjs`, whose loop it runs in.

import { setTimeout as sleep } from "node:timers/promises";
import { serve } from "./worker.mjs";

/**
 * THIS IS NO MODEL: it says its prompt again, word by word. Yours goes here, for example
 *
 *     const stream = await openai.chat.completions.create({ model, messages, stream: true }, { signal });
 *     for await (const part of stream) yield part.choices[0]?.delta.content ?? "";
 *
 * Hand it the signal: then a cancel closes its connection at once, and nothing is generated for nobody.
 * @param {{ prompt: string, token_ms?: number, limit?: number }} payload @param {AbortSignal} signal
 */
async function* model({ prompt, token_ms = 100, limit = Infinity }, signal) {
  for (const [index, token] of (prompt.match(/\s*\S+/g) ?? []).entries()) {
    if (token_ms > 0) await sleep(token_ms, undefined, { signal });
    // The data of a `failed` event: this one holds the whole queue back, since others would hear the same.
    const failure = { code: "rate_limited", scope: "queue", retry_after_ms: 1000 };
    if (index >= limit) throw Object.assign(new Error("too many tokens per minute"), { failure });
    yield token;
  }
}

await serve(async (payload, append, signal) => {
  let tokens = 0;
  let busy = false;
  let written = Promise.resolve();
  /** @type {string[]} */
  const waiting = [];
  // What has piled up while a request was under way goes in one event; at an end nothing more is written.
  const write = async () => {
    busy = true;
    while (waiting.length > 0) await append({ type: "output", data: { text: waiting.splice(0, 500).join("") } });
    busy = false;
  };
  try {
    for await (const token of model(payload, signal)) {
      tokens += 1;
      waiting.push(token);
      if (busy) continue;
      written = write();
      written.catch(() => {}); // It is awaited below.
    }
  } finally {
    await written;
  }
  return { items: 1, metrics: { tokens } };
});
