// @ts-check
/** Calling what an app gave us. */

/**
 * A way to call callbacks that stops with the watch, and whose own faults stay their own.
 * @param {import("./types.js").Environment} env
 */
export function caller(env) {
  let muted = false;
  return {
    /** Nothing is called any more. */
    mute() {
      muted = true;
    },
    /**
     * @template {any[]} A
     * @param {((...values: A) => void) | undefined} callback
     * @param {A} values
     */
    call(callback, ...values) {
      if (muted || !callback) return;
      try {
        callback(...values);
      } catch (error) {
        env.report(error);
      }
    },
  };
}
