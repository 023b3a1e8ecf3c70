// @ts-check
/** Thousands of jobs in the list: the page stays small and quick, and keeps what somebody reads in its place. */
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { eventually, Gateway, shows, Tabs } from "./harness.mjs";

const tabs = new Tabs();
/** @type {Gateway} */
let gateway;
before(async () => {
  await tabs.launch();
  gateway = await Gateway.start("sqlite");
  for (let batch = 0; batch < 3; batch += 1) {
    const jobs = Array.from({ length: 1_000 }, (_, index) => ({ kind: "import", subject: `row-${1_000 * batch + index}` }));
    await gateway.call("POST", "/v1/jobs/batch", { jobs });
  }
});
afterEach(() => tabs.closeAll());
after(async () => {
  await tabs.quit();
  await gateway?.stop();
});

/** A page with all of them in its list. */
async function opened() {
  const page = await tabs.open();
  await page.goto(`${gateway.url}/`);
  await shows(page, ".row", "row-2999");
  const more = page.getByRole("button", { name: "Show more" });
  while (await more.isVisible()) {
    const before = await page.locator(".size").innerText();
    await more.click();
    await eventually(async () => (await page.locator(".size").innerText()) !== before);
  }
  await shows(page, ".size", "3,000");
  return page;
}

test("3,000 jobs scroll from one end to the other without a long task", async () => {
  const page = await opened();
  assert.ok((await page.locator(".row").count()) <= 150, "only the rows near the eye are in the page");
  // The processor's time, not the clock's: on a machine that is busy with something else any task is long.
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const spent = async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return 1_000 * (metrics.find(({ name }) => name === "TaskDuration")?.value ?? NaN);
  };
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  assert.ok(height > 3_000 * 50, `${height} px for 3,000 rows`);
  let longest = 0;
  for (let top = 0; top <= height; top += 700) {
    const before = await spent();
    await page.evaluate(async (top) => {
      const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
      scrollTo(0, top);
      await frame();
      await frame();
    }, top);
    longest = Math.max(longest, (await spent()) - before);
  }
  assert.match(await page.locator(".row").last().innerText(), /row-0\b/);
  // The 50 ms from which on a task counts as long; all tasks of a step together take less.
  assert.ok(longest > 0 && longest < 50, `${longest} ms for one step`);
});

test("what somebody reads stays in its place while jobs come in above it", async () => {
  const page = await opened();
  await page.evaluate(() => scrollTo(0, 40_000));
  const reading = () => page.evaluate(() => {
    const row = document.elementFromPoint(300, 300)?.closest(".row");
    return [row?.querySelector(".about")?.textContent, Math.round(row?.getBoundingClientRect().top ?? 0)];
  });
  await eventually(async () => assert.match(String((await reading())[0]), /row-\d+/));
  const before = await reading();
  const count = page.locator(".size");
  for (let index = 0; index < 5; index += 1) await gateway.call("POST", "/v1/jobs", { kind: "import", subject: `new-${index}` });
  await eventually(async () => assert.equal(await count.innerText(), "3,005"));
  await eventually(async () => assert.deepEqual(await reading(), before));
  await page.evaluate(() => scrollTo(0, 0));
  await shows(page, ".row", "new-4");
});

test("the keyboard walks down the list", async () => {
  const page = await tabs.open();
  await page.goto(`${gateway.url}/`);
  await shows(page, ".row", "row-2999");
  await page.locator(".row a").first().focus();
  for (let step = 0; step < 3; step += 1) await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.evaluate(() => document.activeElement?.closest(".row")?.getAttribute("aria-posinset")), "3");
});
