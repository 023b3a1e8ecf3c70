// @ts-check
/** The page names all of its modules up front: else each is found only after the one that imports it, one round trip on. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const web = new URL("../../web/", import.meta.url);

/**
 * A module and all that it imports.
 * @param {URL} module
 * @param {Set<string>} found
 */
function closure(module, found) {
  if (found.has(module.href)) return found;
  found.add(module.href);
  for (const [, from] of readFileSync(module, "utf8").matchAll(/^(?:import|export) .*?from "(\.[^"]+)";/gm)) {
    closure(new URL(from, module), found);
  }
  return found;
}

test("index.html preloads exactly the modules that the page runs", () => {
  const needed = [...closure(new URL("app/app.js", web), new Set())].map((href) => href.slice(web.href.length));
  const page = readFileSync(new URL("app/index.html", web), "utf8");
  const preloaded = [...page.matchAll(/rel="modulepreload" href="{{base}}\/assets\/([^"]+)"/g)].map(([, path]) => path);
  assert.deepEqual(preloaded, needed.filter((path) => path !== "app/app.js").sort());
});
