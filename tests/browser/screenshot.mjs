// @ts-check
/**
 * Takes the pictures of the README: `node tests/browser/screenshot.mjs` writes `web/screenshot.png`, and one of each view
 * into `web/screenshots/`.
 *
 * One job in mid-run on a real gateway, with the others that a small team might have beside it.
 */
import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { eventually, Gateway, launchChromium, shows } from "./harness.mjs";
import { smallTeam } from "./small-team.mjs";

const target = fileURLToPath(new URL("../../web/screenshot.png", import.meta.url));
const views = fileURLToPath(new URL("../../web/screenshots/", import.meta.url));
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
  const context = await browser.newContext({ viewport: { width: 1080, height: 760 }, colorScheme: "light" });
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
  await page.screenshot({ path: target });
  console.log(target);
  await pictureViews();
} finally {
  await browser.close();
  await gateway.stop();
}

/** Each view, with a minute of a small team's work in it. */
async function pictureViews() {
  await mkdir(views, { recursive: true });
  const context = await browser.newContext({ viewport: { width: 1080, height: 720 }, colorScheme: "light" });
  const page = await context.newPage();
  await page.goto(`${gateway.url}/#view=queues`);
  const { retried } = await smallTeam(gateway, 40);
  /** @param {string} name @param {string} path @param {string} selector @param {string | RegExp} text */
  const take = async (name, path, selector, text) => {
    // A step within the page keeps what it has gathered.
    if (path.startsWith("/#") && new URL(page.url()).pathname === "/") await page.evaluate((hash) => void (location.hash = hash), path.slice(2));
    else await page.goto(gateway.url + path);
    await shows(page, selector, text);
    await page.evaluate(() => document.getElementById("toasts")?.replaceChildren());
    await page.waitForFunction(() => document.getAnimations().length === 0);
    await page.screenshot({ path: `${views}${name}.png` });
    console.log(`${views}${name}.png`);
  };
  await take("queues", "/#view=queues", ".queue", "render");
  await take("queue", "/#view=queue&queue=llm", ".figures", "Waiting");
  await take("dead-letters", "/#view=dead", ".dead", "timed_out");
  await take("workers", "/#view=workers", ".table", "gpu-1");
  await take("activity", "/#view=activity", ".told", "Completed");
  await take("jobs", "/", ".row", "Completed, nothing found");
  await page.setViewportSize({ width: 1080, height: 1000 });
  await take("job", `/jobs/${retried}`, ".runs", "provider");
  await context.close();
}
