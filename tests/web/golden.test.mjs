// @ts-check
/** The golden logs that the gateway's own tests read too: both folds come to the same document. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { blank, fold, follow } from "../../web/client/fold.js";

/** @type {{name: string, id: string, events: import("../../web/client/fold.js").LogEvent[], state: import("../../web/client/fold.js").Job}[]} */
const cases = JSON.parse(readFileSync(new URL("../wire/fold.json", import.meta.url), "utf8"));

/**
 * Whether a progress field that was never given is null or missing is open; everything else is not.
 * @param {import("../../web/client/fold.js").Job | null} job
 */
function comparable(job) {
  const said = Object.entries(job?.progress ?? {}).filter(([, value]) => value !== null);
  return { ...job, progress: job?.progress ? Object.fromEntries(said) : null };
}

test("there are golden logs", () => assert.ok(cases.length > 0));

for (const { name, id, events, state } of cases) {
  test(`golden: ${name}`, () => {
    assert.deepEqual(comparable(events.reduce(fold, blank(id))), comparable(state));
    // Read over a stream and with every event twice it comes to the same.
    const twice = events.flatMap((event) => [event, event]);
    const followed = twice.reduce(follow, { job: blank(id), output: { offset: 0, text: "" } });
    assert.deepEqual(comparable(followed.job), comparable(state));
  });
}
