// @ts-check
/** A clock that stands still until a test moves it, and what the tests wait with. The network stays real. */
import { setTimeout as sleep } from "node:timers/promises";

export class Clock {
  #now = Date.parse("2026-01-01T00:00:00.000Z");
  #next = 0;
  /** @type {Map<number, {at: number, callback: () => void}>} */
  #timers = new Map();
  /** What chance gives: the longest waits, so that they can be seen. */
  chance = 1;
  /** What woke whom. @type {Set<import("../../web/client/types.js").WakeListener>} */
  listeners = new Set();
  /** @type {unknown[]} */
  reported = [];

  /** @returns {Partial<import("../../web/client/types.js").Environment>} */
  get environment() {
    return {
      now: () => this.#now,
      random: () => this.chance,
      setTimeout: (callback, ms) => {
        this.#timers.set((this.#next += 1), { at: this.#now + ms, callback });
        return this.#next;
      },
      clearTimeout: (timer) => void this.#timers.delete(timer),
      listen: (listener) => {
        this.listeners.add(listener);
        return () => this.listeners.delete(listener);
      },
      locks: null,
      openChannel: null,
      report: (error) => this.reported.push(error),
    };
  }

  /** Timers that are set. */
  get pending() {
    return this.#timers.size;
  }

  /**
   * Moves on, timer by timer.
   * @param {number} ms
   */
  advance(ms) {
    const end = this.#now + ms;
    for (;;) {
      const due = [...this.#timers].filter(([, { at }]) => at <= end).sort(([, a], [, b]) => a.at - b.at)[0];
      if (!due) break;
      this.#timers.delete(due[0]);
      this.#now = Math.max(this.#now, due[1].at);
      due[1].callback();
    }
    this.#now = end;
  }

  /**
   * Time passes in which nothing runs: timers come late, as after a machine's sleep.
   * @param {number} ms
   */
  sleepFor(ms) {
    this.#now += ms;
    this.advance(0);
  }

  /**
   * Moves on little by little until it holds.
   * @param {() => unknown} probe
   * @param {number} [stepMs]
   */
  async until(probe, stepMs = 50) {
    await eventually(() => {
      if (probe()) return true;
      this.advance(stepMs);
      return false;
    });
  }
}

/**
 * Tries until it holds.
 * @param {() => unknown} probe
 * @param {number} [deadlineMs]
 */
export async function eventually(probe, deadlineMs = 10_000) {
  const end = Date.now() + deadlineMs;
  for (;;) {
    if (await probe()) return;
    if (Date.now() > end) throw new Error(`not within ${deadlineMs} ms: ${probe}`);
    await sleep(1);
  }
}

/** Lets what is under way arrive: a few turns of the event loop, each with its I/O. */
export async function settle() {
  for (let turn = 0; turn < 20; turn += 1) await sleep(1);
}
