// @ts-check
/**
 * Takes the picture of the README: `node tests/browser/screenshot.mjs` writes `web/screenshot.png`.
 *
 * One job in mid-run on a real gateway, with the others that a small team might have beside it.
 */
import { fileURLToPath } from "node:url";
import { eventually, Gateway, launchChromium } from "./harness.mjs";

const target = fileURLToPath(new URL("../../web/screenshot.png", import.meta.url));
const STORY = [
  "Progress gateways keep one append-only log per job.\n",
  "Whoever holds the job's URL sees the current state first, ",
  "then every event as it happens. ",
  "A reload, a lost connection or a restarted server changes nothing:\n",
  "the log is durable before anyone sees it, and a reader resumes after ",
  "the last event it saw",
];

const gateway = await Gateway.start("sqlite");
const browser = await launchChromium();
try {
  const id = await gateway.track({
    queue: "llm", kind: "summarize", subject: "article:42", meta: { model: "small-8b", requested_by: "editor" },
  });
  const context = await browser.newContext({ viewport: { width: 1080, height: 800 }, deviceScaleFactor: 1.5, colorScheme: "light" });
  const page = await context.newPage();
  await page.goto(`${gateway.url}/jobs/${id}`);
  await page.waitForSelector("[data-link=live]");
  /** @param {...{type: string, data?: Record<string, unknown>}} events */
  const say = (...events) => gateway.append(id, ...events);
  /** @param {string} message @param {Record<string, unknown>} [fields] */
  const log = (message, fields) => say({ type: "log", data: { level: "info", message, fields } });
  const pause = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));
  await log("fetching 3 sources", { sources: 3 });
  for (let source = 1; source <= 3; source += 1) {
    await pause(700);
    await say(
      { type: "source.read", data: { source, chars: 8_400 + 911 * source } },
      { type: "progress", data: { percent: 12 * source, phase: "reading", message: `source ${source} of 3` } },
    );
    if (source === 2) await say({ type: "log", data: { level: "warn", message: "source 2 answered slowly, waited 0.7 s" } });
  }
  await log("drafting", { tokens_max: 1200 });
  for (const [index, text] of STORY.entries()) {
    await pause(500);
    await say({ type: "output", data: { text } });
    await say({ type: "progress", data: { percent: 40 + 6.3 * (index + 1), current: 96 * (index + 1), total: 800, unit: "tokens", phase: "drafting", message: `paragraph ${1 + (index >> 1)} of 4` } });
  }
  await eventually(async () => (await page.locator("pre.output").innerText()).endsWith("the last event it saw"));
  await pause(600);
  await page.screenshot({ path: target, fullPage: true });
  console.log(target);
} finally {
  await browser.close();
  await gateway.stop();
}
