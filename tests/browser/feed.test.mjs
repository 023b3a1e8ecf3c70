// @ts-check
/** The client's feed and subject against a real gateway, on both stores; from Node, where no locks are shared. */
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { watchFeed, watchSubject } from "../../web/client/milepost.js";
import { eventually, Gateway, STORES } from "./harness.mjs";

for (const store of STORES) {
  describe(`on ${store}`, () => {
    /** @type {Gateway} */
    let gateway;
    /** Why not, if this gateway has no feed. @type {string | false} */
    let lacking = false;
    before(async () => {
      gateway = await Gateway.start(store);
      const { paths } = await gateway.call("GET", "/openapi.json");
      lacking = paths["/v1/events"] ? false : "this gateway has no feed";
    });
    after(() => gateway?.stop());

    test("states at once, at each change, over a restart, and deletions", async (t) => {
      if (lacking) return t.skip(lacking);
      const a = await gateway.track({ subject: "s:1" });
      /** @type {number[]} */
      const seqs = [];
      const feed = watchFeed({ subject: "s:1" }, { base: gateway.url, onState: ({ id, seq }) => id === a && seqs.push(seq) });
      try {
        await eventually(() => feed.jobs.has(a));
        await gateway.append(a, { type: "progress", data: { percent: 5 } });
        await eventually(() => feed.jobs.get(a)?.progress?.percent === 5);
        const b = await gateway.track({ subject: "s:1" });
        await eventually(() => feed.jobs.has(b));
        await gateway.kill("SIGKILL");
        await gateway.start();
        await gateway.append(a, { type: "completed" });
        await eventually(() => feed.jobs.get(a)?.terminal === true, 30_000);
        await gateway.call("DELETE", `/v1/jobs/${a}`);
        await eventually(() => !feed.jobs.has(a));
        assert.deepEqual(seqs, [2, 3, 4]);
      } finally {
        feed.close();
      }
    });

    test("a feed of named jobs ends with the last of them; one that is unknown is gone", async (t) => {
      if (lacking) return t.skip(lacking);
      const id = await gateway.track();
      const unknown = "01990000-0000-7000-8000-000000000000";
      /** @type {string[]} */
      const gone = [];
      const feed = watchFeed({ jobs: [id, unknown, "x"] }, { base: gateway.url, onGone: (id) => gone.push(id) });
      await eventually(() => feed.jobs.has(id));
      await gateway.append(id, { type: "completed" });
      await eventually(() => feed.link === "ended");
      assert.deepEqual(gone.sort(), [unknown, "x"].sort());
    });

    test("a subject's last job is found, and the next one followed, by page as well", async (t) => {
      if (lacking) return t.skip(lacking);
      /** @type {typeof fetch} */
      const blocked = (url, init) =>
        new Headers(init?.headers).get("accept") === "text/event-stream" ? Promise.reject(new TypeError("blocked")) : fetch(url, init);
      for (const environment of [{}, { fetch: blocked }]) {
        const subject = `s:${environment.fetch ? "page" : "stream"}`;
        const last = await gateway.track({ subject });
        await gateway.append(last, { type: "failed", data: { code: "boom", retryable: false } });
        const watched = watchSubject(subject, { base: gateway.url, environment });
        try {
          await eventually(() => watched.job?.id === last && watched.job.state === "failed", 20_000);
          const next = await gateway.track({ subject });
          await gateway.append(next, { type: "output", data: { text: "früh " } });
          await eventually(() => watched.output.text === "früh ", 20_000);
          await gateway.append(next, { type: "output", data: { text: "spät" } });
          await eventually(() => watched.job?.id === next && watched.output.text === "früh spät", 20_000);
        } finally {
          watched.close();
        }
      }
    });
  });
}
