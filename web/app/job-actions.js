// @ts-check
/** What can be done to a job, as far as its state allows; what the credential does not allow is gone after one try. */
import { element } from "../client/dom.js";
import { mintKey } from "../client/milepost.js";
import { announce } from "./announce.js";
import { confirmed } from "./confirm.js";
import { base, jobPath, Refusal, send } from "./gateway.js";
import { notice } from "./notices.js";

/** @typedef {import("../client/types.js").Job} Job */

/**
 * @param {HTMLElement} target
 * @param {string} id
 * @param {{retried: () => void, deleted: () => void}} calls
 */
export function jobActions(target, id, { retried, deleted }) {
  /** @type {Set<string>} */
  const forbidden = new Set();
  /**
   * @param {string} name
   * @param {() => Promise<void>} act
   */
  const trying = (name, act) => async () => {
    try {
      await act();
    } catch (error) {
      if (error instanceof Refusal && (error.status === 401 || error.status === 403)) forbidden.add(name);
      throw error;
    }
  };
  const cancel = confirmed({
    label: "Cancel job", question: "Cancel this job? ", yes: "Yes, cancel it", no: "Let it run",
    act: trying("cancel", async () => {
      await send("POST", jobPath(id, "/cancel"), { reason: "cancelled on the page" });
      announce("Cancel requested");
    }),
  });
  // One key per page and try: sent twice by a double click it is done once.
  let key = mintKey();
  const retry = confirmed({
    label: "Retry job", question: "Put this job back into its queue? ", yes: "Yes, retry it", no: "Leave it",
    act: trying("retry", async () => {
      await send("POST", jobPath(id, "/retry"), undefined, { "idempotency-key": key });
      key = mintKey();
      notice("Job put back into its queue", { job: id });
      retried();
    }),
  });
  const remove = confirmed({
    label: "Delete job", question: "Delete this job and its log for good? ", yes: "Yes, delete it", no: "Keep it",
    act: trying("delete", async () => {
      await send("DELETE", jobPath(id));
      notice("Job deleted", { tone: "ended" });
      deleted();
    }),
  });
  target.append(cancel.root, retry.root, remove.root);
  return {
    /** @param {Job} job */
    draw(job) {
      cancel.offer(!job.terminal && !job.cancel_requested && !forbidden.has("cancel"));
      retry.offer(job.terminal && job.state !== "completed" && !job.tracked && !forbidden.has("retry"));
      remove.offer(job.terminal && !forbidden.has("delete"));
    },
  };
}

/**
 * Instead of a job.
 * @param {HTMLElement} main
 * @param {string} title
 * @param {string} text
 * @param {string} id
 */
export function drawNoJob(main, title, text, id) {
  document.title = `${title} · Milepost`;
  if (main.querySelector(".missing")) return;
  main.replaceChildren(
    element(
      "section",
      { class: "card missing" },
      element("h1", {}, title),
      element("p", {}, text),
      element("p", { class: "mono" }, id),
      element("p", {}, element("a", { href: `${base}/` }, "All jobs")),
    ),
  );
}
