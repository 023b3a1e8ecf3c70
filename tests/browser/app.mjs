// @ts-check
/** Processes of the apps in `examples/apps/`, started as people start them, and ended by their own ids. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { eventually as eventuallyWithin, shows as showsWithin } from "./harness.mjs";

const apps = fileURLToPath(new URL("../../examples/apps", import.meta.url));

/** How long a step may take: processes start in the middle of these tests, on machines that do other things, too. */
const PATIENCE_MS = 40_000;

/** @type {<T>(probe: () => T | Promise<T>) => Promise<T>} */
export const eventually = (probe) => eventuallyWithin(probe, PATIENCE_MS);

/** @type {(page: import("playwright-core").Page, selector: string, text: string | RegExp) => Promise<void>} */
export const shows = (page, selector, text) => showsWithin(page, selector, text, PATIENCE_MS);

/** @type {Set<import("node:child_process").ChildProcess>} */
const children = new Set();
process.on("exit", () => children.forEach((child) => child.kill("SIGKILL")));

/** One process of an app. What it complains of is shown, but for a gateway that is away. */
export class App {
  /** @type {import("node:child_process").ChildProcess} */
  #child;
  #lines;
  /** How often it has said that the gateway gives no answer. */
  unanswered = 0;
  /** Where a web process listens. */
  url = "";

  /**
   * @param {string} file
   * @param {string[]} args
   * @param {Record<string, string | number>} env
   */
  constructor(file, args, env) {
    const program = file.endsWith(".py") ? "python3" : process.execPath;
    const { MILEPOST_KEY: _, ...inherited } = process.env;
    const settings = Object.fromEntries(Object.entries(env).map(([name, value]) => [name, String(value)]));
    this.#child = spawn(program, [path.join(apps, file), ...args], {
      env: { ...inherited, ...settings },
      stdio: ["ignore", "pipe", "pipe"],
    });
    children.add(this.#child);
    this.#child.on("exit", () => children.delete(this.#child));
    const { stdout, stderr } = this.#child;
    if (!stdout || !stderr) throw new Error("both are pipes");
    this.#lines = createInterface(stdout);
    createInterface(stderr).on("line", (line) => {
      if (line.startsWith("no answer from ")) this.unanswered++;
      else if (line) console.error(`${file}: ${line}`);
    });
  }

  /** A process that has no more to say than that it runs, such as a worker.
   * @param {string} file
   * @param {string[]} args
   * @param {Record<string, string | number>} env
   */
  static run(file, args, env) {
    return new App(file, args, env);
  }

  /** A process that serves pages, once it does. Its port is kept if `env` names one.
   * @param {string} file
   * @param {string[]} args
   * @param {Record<string, string | number>} env
   */
  static async serve(file, args, env) {
    const app = new App(file, args, { PORT: 0, ...env });
    const ended = once(app.#child, "exit").then(([code, signal]) => {
      throw new Error(`${file} ended (${code ?? signal}) before it was ready`);
    });
    ended.catch(() => {});
    /** @type {Promise<string>} */
    const ready = new Promise((done) => {
      app.#lines.on("line", (line) => {
        const [, url] = /^ready at (\S+)$/.exec(line) ?? [];
        if (url) done(url);
      });
    });
    app.url = await Promise.race([ready, ended]);
    return app;
  }

  get port() {
    return Number(new URL(this.url).port);
  }

  /**
   * Ends the process and answers how it ended.
   * @param {NodeJS.Signals} [signal]
   * @returns {Promise<number | NodeJS.Signals | null>} its exit code, or the signal
   */
  async kill(signal = "SIGTERM") {
    const child = this.#child;
    if (child.exitCode === null && child.signalCode === null) {
      const gone = once(child, "exit");
      child.kill(signal);
      await gone;
    }
    return child.exitCode ?? child.signalCode;
  }
}

/** What one test starts, to be ended after it. */
export class Stage {
  /** @type {App[]} */
  #apps = [];

  /** @param {Parameters<typeof App.run>} how */
  run(...how) {
    const app = App.run(...how);
    this.#apps.push(app);
    return app;
  }

  /** @param {Parameters<typeof App.serve>} how */
  async serve(...how) {
    const app = await App.serve(...how);
    this.#apps.push(app);
    return app;
  }

  async clear() {
    await Promise.all(this.#apps.splice(0).map((app) => app.kill("SIGKILL")));
  }
}
