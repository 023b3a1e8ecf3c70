// @ts-check
/** When a run will be done, as far as its progress tells. Pure. */

/** Reports older than this tell little about the pace now, ms. */
const RECENT_MS = 120_000;
/** Of fewer reports, or over less time, nothing is guessed. */
const FEWEST = 3;
const SHORTEST_MS = 2_000;

/**
 * How long it will take from now on, ms; null if nobody can tell: too little is known, or it stands still.
 * @param {[number, number][]} progress instants, ms, and percent, of one run
 * @param {number} now ms
 * @returns {number | null}
 */
export function remaining(progress, now) {
  const last = progress.at(-1);
  if (!last || last[1] >= 100) return null;
  const recent = progress.filter(([at]) => last[0] - at <= RECENT_MS);
  const [first] = recent;
  const spent = last[0] - first[0];
  const gained = last[1] - first[1];
  if (recent.length < FEWEST || spent < SHORTEST_MS || gained <= 0) return null;
  const left = ((100 - last[1]) * spent) / gained - (now - last[0]);
  // Overdue: the pace was another.
  return left > 0 ? left : null;
}
