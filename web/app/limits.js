// @ts-check
/** The limits of a queue, to be read and changed. */
import { element, setText } from "../client/dom.js";
import { queuePath, send } from "./gateway.js";
import { notice } from "./notices.js";

/** @typedef {import("./queues.js").Queue} Queue */

const FIELDS = /** @type {const} */ ({
  concurrency: "Runs at a time",
  concurrency_per_key: "Runs at a time per key",
  limit: "Hand-outs",
  per_ms: "per so many ms",
  burst: "at once at most",
});

/**
 * @param {string} name
 * @param {() => void} changed
 */
export function limitsForm(name, changed) {
  const inputs = Object.entries(FIELDS).map(([field, label]) => {
    const input = element("input", { type: "number", name: field, min: "1", step: "1", placeholder: "no limit", inputmode: "numeric" });
    return { field, label, input };
  });
  const perKey = element("input", { type: "checkbox", name: "per_key" });
  const save = element("button", { type: "submit" }, "Set limits");
  const sure = element("span", { class: "confirm", hidden: true });
  const said = element("span", { class: "refusal", role: "alert" });
  const form = element(
    "form", { class: "card limits", "aria-label": "Limits" },
    element("div", { class: "cardhead" }, element("h2", {}, "Limits")),
    element(
      "div", { class: "fieldset" },
      ...inputs.map(({ label, input }) => element("label", {}, element("span", {}, label), input)),
      element("label", { class: "check" }, perKey, element("span", {}, "A rate of its own for each key")),
    ),
    element("div", { class: "actions" }, save, sure, said),
  );
  let edited = false;
  let running = 0;
  /** The question that was answered by sending the form again. */
  let asked = "";

  form.addEventListener("input", () => {
    edited = true;
    asked = "";
    sure.hidden = true;
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setText(said, "");
    const { concurrency, concurrency_per_key, limit, per_ms, burst } = Object.fromEntries(
      inputs.map(({ field, input }) => [field, input.value === "" ? null : Number(input.value)]),
    );
    if ((limit === null) !== (per_ms === null)) return setText(said, "A rate has a number of hand-outs and a time.");
    const rate_limit = limit === null ? null : { limit, per_ms, burst: burst ?? 1, per_key: perKey.checked };
    if (concurrency !== null && concurrency < running && asked === "") {
      asked = `${running} run now: none is handed out until fewer than ${concurrency} do. Set it again to do so.`;
      setText(sure, asked);
      sure.hidden = false;
      return;
    }
    sure.hidden = true;
    try {
      await send("PATCH", queuePath(name), { concurrency, concurrency_per_key, rate_limit });
      edited = false;
      notice(`Limits of ${name} set`, { tone: "good" });
      changed();
    } catch (error) {
      setText(said, `Not set: ${/** @type {Error} */ (error).message}`);
    }
  });
  return {
    root: form,
    /** @param {Queue} queue */
    draw(queue) {
      running = queue.counts.running;
      // What somebody is typing is theirs.
      if (edited) return;
      const now = /** @type {Record<string, number | null | undefined>} */ ({
        concurrency: queue.concurrency, concurrency_per_key: queue.concurrency_per_key, limit: queue.rate_limit?.limit,
        per_ms: queue.rate_limit?.per_ms, burst: queue.rate_limit?.burst,
      });
      for (const { field, input } of inputs) input.value = String(now[field] ?? "");
      perKey.checked = queue.rate_limit?.per_key ?? false;
    },
  };
}
