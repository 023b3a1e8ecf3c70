// @ts-check
/**
 * Hooks for React 18 and later: a job, or a subject's job, as state.
 *
 * Components that watch the same share one connection. It is opened by the first that is mounted, and closed after the last
 * is gone; not in between, when StrictMode or a moved subtree mounts again at once. Changes reach React once per frame.
 */
import { useCallback, useRef, useSyncExternalStore } from "react";
import { NOTHING } from "./fold.js";
import { watchSubject } from "./subject.js";
import { watch } from "./watch.js";

/** @typedef {import("./types-react.js").JobState} JobState */
/** @typedef {import("./types.js").SubjectOptions} SubjectOptions */
/** @typedef {{notify: () => void, options: () => SubjectOptions}} Subscriber */

/** @type {JobState} */
const NOTHING_YET = Object.freeze({ job: null, output: NOTHING.output, link: "connecting", error: null });

/** What is watched, by what it is of. @type {Map<string, Shared>} */
const shared = new Map();

/** One watch, for all components that want the same. */
class Shared {
  /** @type {JobState} */
  snapshot = NOTHING_YET;
  /** @type {Set<Subscriber>} */
  #subscribers = new Set();
  #key;
  #watch;
  /** @type {import("./types.js").WatchError | null} */
  #error = null;
  #asked = false;

  /**
   * @param {string} key
   * @param {(options: SubjectOptions) => import("./types.js").JobWatch} open
   * @param {Subscriber} first
   */
  constructor(key, open, first) {
    this.#key = key;
    const { token, ...options } = first.options();
    const one = () => [...this.#subscribers][0] ?? first;
    this.#watch = open({
      ...options,
      // A function of the newest render of whoever is still there.
      token: typeof token === "function" ? () => {
        const { token: newest } = one().options();
        return typeof newest === "function" ? newest() : (newest ?? null);
      } : token,
      onState: (job, output) => this.#changed((options) => options.onState?.(job, output)),
      onEvent: (event, job) => this.#changed((options) => options.onEvent?.(event, job)),
      onUpdate: (update) => this.#changed((options) => options.onUpdate?.(update)),
      onSnapshot: (job) => this.#changed((options) => options.onSnapshot?.(job)),
      onLink: (link) => this.#changed((options) => options.onLink?.(link)),
      onEnd: (job) => this.#changed((options) => options.onEnd?.(job)),
      onError: (error) => {
        this.#error = error;
        this.#changed((options) => options.onError?.(error));
      },
    });
  }

  /** @param {Subscriber} subscriber */
  join(subscriber) {
    this.#subscribers.add(subscriber);
  }

  /** @param {Subscriber} subscriber */
  leave(subscriber) {
    this.#subscribers.delete(subscriber);
    setTimeout(() => {
      if (this.#subscribers.size > 0) return;
      this.#watch.close();
      if (shared.get(this.#key) === this) shared.delete(this.#key);
    });
  }

  /** @param {(options: SubjectOptions) => void} tell */
  #changed(tell) {
    for (const { options } of this.#subscribers) tell(options());
    if (this.#asked) return;
    this.#asked = true;
    const { requestAnimationFrame = (/** @type {() => void} */ draw) => setTimeout(draw, 16) } = globalThis;
    requestAnimationFrame(() => {
      this.#asked = false;
      const { job, link, output } = this.#watch;
      this.snapshot = { job, output, link, error: this.#error };
      for (const { notify } of this.#subscribers) notify();
    });
  }
}

/**
 * @param {string | null} key null: nothing is watched
 * @param {(options: SubjectOptions) => import("./types.js").JobWatch} open
 * @param {SubjectOptions} options
 * @returns {JobState}
 */
function useShared(key, open, options) {
  const latest = useRef({ open, options });
  latest.current = { open, options };
  const subscribe = useCallback(
    (/** @type {() => void} */ notify) => {
      if (key === null) return () => {};
      const subscriber = { notify, options: () => latest.current.options };
      const watched = shared.get(key) ?? new Shared(key, latest.current.open, subscriber);
      shared.set(key, watched);
      watched.join(subscriber);
      return () => watched.leave(subscriber);
    },
    [key],
  );
  const snapshot = () => (key === null ? undefined : shared.get(key)?.snapshot) ?? NOTHING_YET;
  return useSyncExternalStore(subscribe, snapshot, () => NOTHING_YET);
}

/**
 * What makes two wishes one.
 * @param {string} kind
 * @param {string} what
 * @param {SubjectOptions} options
 */
function keyOf(kind, what, { base = "", credentials = "same-origin", token = null }) {
  return JSON.stringify([kind, what, base, credentials, typeof token === "function" ? true : token]);
}

/**
 * A job, live.
 * @param {string | URL | null | undefined} url null: none, yet
 * @param {import("./types.js").WatchOptions} [options]
 * @returns {JobState}
 */
export function useJob(url, options = {}) {
  const key = url == null ? null : keyOf("job", String(url), options);
  return useShared(key, (options) => watch(/** @type {string} */ (url), options), options);
}

/**
 * Whatever job a subject has, live.
 * @param {string | null | undefined} subject null: none, yet
 * @param {SubjectOptions} [options]
 * @returns {JobState}
 */
export function useSubject(subject, options = {}) {
  const key = subject == null ? null : keyOf("subject", subject, options);
  return useShared(key, (options) => watchSubject(/** @type {string} */ (subject), options), options);
}
