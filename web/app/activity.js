// @ts-check
/** What was told in this tab, after the notices themselves are gone. */
import { batched, element, setText } from "../client/dom.js";
import { ago } from "../client/format.js";
import { jobPage, now } from "./gateway.js";
import { liveFeed } from "./live.js";
import { clearNotices, noticed, notices } from "./notices.js";

/** @type {import("./app.js").View} */
export function showActivity(main, signal) {
  document.title = "Activity · Milepost";
  const clear = element("button", { type: "button" }, "Clear");
  const nothing = element("p", { class: "notice" }, "Nothing has happened in this tab yet.");
  const list = element("ol", { class: "jobs activity", "aria-label": "Notices, newest first" });
  main.replaceChildren(element("div", { class: "heading" }, element("h1", {}, "Activity"), clear), nothing, list);
  clear.addEventListener("click", clearNotices);

  const draw = batched(() => {
    const all = notices();
    nothing.hidden = all.length > 0;
    clear.hidden = all.length === 0;
    list.replaceChildren(...all.map(({ at, text, tone, job }) => {
      const time = new Date(at).toISOString();
      return element(
        "li", { class: "told", "data-tone": tone },
        element("span", { class: "said" }, job ? element("a", { href: jobPage(job) }, text) : text),
        element("time", { class: "when", datetime: time, title: time }, ago(now() - at)),
      );
    }));
  });

  noticed.addEventListener("change", draw, { signal });
  liveFeed({}, signal, {});
  const clock = setInterval(() => {
    if (document.hidden) return;
    for (const time of list.querySelectorAll("time")) setText(time, ago(now() - Date.parse(time.dateTime)));
  }, 5_000);
  signal.addEventListener("abort", () => clearInterval(clock));
  draw();
}
