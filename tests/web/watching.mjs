// @ts-check
/** A watched job before a fake gateway, with a clock that stands still: each test has its own. */
import { afterEach, beforeEach } from "node:test";
import { watch } from "../../web/client/milepost.js";
import { Clock } from "./clock.mjs";
import { FakeGateway } from "./fake-gateway.mjs";

/** @typedef {import("../../web/client/types.js").WatchOptions} WatchOptions */

/** @type {FakeGateway} */
export let gateway;
/** @type {Clock} */
export let clock;
/** @type {import("../../web/client/types.js").JobWatch[]} */
export const open = [];

beforeEach(async () => {
  gateway = await FakeGateway.start();
  clock = new Clock();
});
afterEach(async () => {
  open.splice(0).forEach((job) => job.close());
  await gateway.stop();
});

/**
 * @param {string} id
 * @param {WatchOptions} [options]
 */
export function watching(id, options = {}) {
  const seen = {
    /** @type {string[]} */ types: [],
    /** @type {number[]} */ seqs: [],
    /** @type {string[]} */ links: [],
    /** @type {import("../../web/client/types.js").Job[]} */ ends: [],
    /** @type {import("../../web/client/types.js").WatchError[]} */ errors: [],
    snapshots: 0,
    calls: 0,
  };
  const called = () => (seen.calls += 1);
  const job = watch(`${gateway.url}/v1/jobs/${id}`, {
    environment: clock.environment,
    onState: called,
    onEvent: (event) => {
      called();
      seen.types.push(event.type);
      seen.seqs.push(event.seq);
    },
    onSnapshot: () => {
      called();
      seen.snapshots += 1;
    },
    onLink: (link) => {
      called();
      seen.links.push(link);
    },
    onEnd: (ended) => {
      called();
      seen.ends.push(ended);
    },
    onError: (error) => {
      called();
      seen.errors.push(error);
    },
    ...options,
  });
  open.push(job);
  return { job, seen };
}

/** A job that runs. */
export function running() {
  const id = gateway.enqueue();
  gateway.append(id, "started", { worker: "w" });
  return id;
}

/** @param {string} id */
export const truth = (id) => /** @type {import("./fake-gateway.mjs").Held} */ (gateway.jobs.get(id));
