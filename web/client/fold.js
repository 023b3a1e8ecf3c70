// @ts-check
/**
 * The fold: a job's state document is what its log says, and nothing else.
 *
 * Pure: no DOM, no network, no clock. `fold` is the twin of the gateway's `Job::apply`; `follow` adds what a page shows
 * beside the document (the output's text) and understands every frame of a job's stream, opening and control frames
 * included. Both return a new value or the very one they were given, and never change it.
 */

/**
 * @typedef {import("./types.js").Progress} Progress
 * @typedef {import("./types.js").Job} Job
 * @typedef {import("./types.js").LogEvent} LogEvent
 * @typedef {import("./types.js").Output} Output
 * @typedef {import("./types.js").View} View
 */

const TERMINAL = new Set(["completed", "failed", "cancelled", "expired"]);
const CONTROL = new Set(["state", "reset", "ping", "end", "bye"]);
const PROGRESS_FIELDS = /** @type {const} */ (["current", "total", "unit", "phase", "message"]);
const utf8 = new TextEncoder();

/**
 * Whether a job in this state has ended.
 * @param {string} state
 */
export function isTerminal(state) {
  return TERMINAL.has(state);
}

/**
 * The document of a job before its first event.
 * @param {string} id
 * @returns {Job}
 */
export function blank(id) {
  return {
    id, queue: "default", kind: "", subject: null, state: "queued", terminal: false, seq: 0, attempt: 0,
    max_attempts: 1, priority: 0, tracked: false, progress: null, output: { bytes: 0 }, outcome: null, error: null,
    cancel_requested: false, worker: null, created_at: null, run_at: null, started_at: null, finished_at: null,
    updated_at: null, meta: {},
  };
}

/**
 * Applies one event of the log.
 *
 * An event that the document already holds changes nothing. A hole is an error, never a guess: the caller starts
 * again from a fresh `state`.
 * @param {Job} job
 * @param {LogEvent} event
 * @returns {Job}
 * @throws {RangeError} when events between the document and this one are missing
 */
export function fold(job, event) {
  if (event.seq <= job.seq) return job;
  const first = event.from_seq ?? event.seq;
  if (first > job.seq + 1) throw new RangeError(`events ${job.seq + 1} to ${first - 1} are missing`);
  const next = { ...job, ...change(job, event), seq: event.seq, attempt: event.attempt, updated_at: event.at };
  next.terminal = isTerminal(next.state);
  return next;
}

/**
 * What an event changes beside `seq`, `attempt` and `updated_at`.
 * @param {Job} job
 * @param {LogEvent} event
 * @returns {Partial<Job>}
 */
function change(job, { type, at, data = {} }) {
  switch (type) {
    case "queued":
      return {
        queue: data.queue, kind: data.kind, subject: data.subject ?? null, priority: data.priority ?? 0,
        max_attempts: data.max_attempts ?? 1, tracked: data.tracked ?? false, meta: data.meta ?? {},
        created_at: at, run_at: data.run_at ?? at, state: later(data.run_at, at) ? "scheduled" : "queued",
      };
    case "started":
      return {
        state: "running", worker: data.worker ?? null, started_at: at, progress: null, output: { bytes: 0 },
        error: null,
      };
    case "progress":
      return { progress: advance(job.progress, data) };
    case "output":
      return { output: { bytes: job.output.bytes + utf8.encode(data.text ?? "").length } };
    case "retrying":
      return { state: "retrying", error: data.error ?? null, run_at: data.run_at ?? null, worker: null };
    case "released": {
      const delay = data.delay_ms ?? 0;
      return { state: delay > 0 ? "scheduled" : "queued", run_at: plus(at, delay), worker: null };
    }
    case "cancel_requested":
      return { cancel_requested: true };
    case "completed":
      return { state: "completed", finished_at: at, outcome: { ...data, ok: data.ok ?? true } };
    case "failed":
      return { state: "failed", finished_at: at, error: data };
    case "cancelled":
      return { state: "cancelled", finished_at: at, ...(data.error ? { error: data.error } : {}) };
    case "expired":
      return { state: "expired", finished_at: at };
    case "requeued":
      return {
        state: "queued", run_at: at, error: null, outcome: null, started_at: null, finished_at: null, worker: null,
        cancel_requested: false, progress: null, output: { bytes: 0 },
      };
    default:
      return {};
  }
}

/**
 * The progress after one more report. A field left out keeps its value; the shown percent never falls within a run.
 * @param {Progress | null} before
 * @param {Record<string, any>} data
 * @returns {Progress}
 */
function advance(before, data) {
  /** @type {Progress} */
  const after = { percent: null, current: null, total: null, unit: null, phase: null, message: null, ...before };
  for (const field of PROGRESS_FIELDS) {
    if (data[field] != null) /** @type {Record<string, unknown>} */ (after)[field] = data[field];
  }
  // Only a pair given together is a ratio; neither half derives anything with one from earlier.
  const paired = data.current != null && data.total != null ? ratio(data.current, data.total) : null;
  const percent = data.percent ?? paired;
  if (percent !== null) after.percent = Math.max(Math.min(Math.max(percent, 0), 100), after.percent ?? 0);
  return after;
}

/**
 * @param {number} current
 * @param {number} total
 */
function ratio(current, total) {
  const percent = (100 * current) / total;
  // 100 × current overflows near the end of the range; such a ratio is still a ratio.
  return Number.isFinite(percent) ? percent : 100 * (current / total);
}

/**
 * @param {string | null | undefined} time
 * @param {string} than
 */
function later(time, than) {
  return time != null && Date.parse(time) > Date.parse(than);
}

/**
 * @param {string} time
 * @param {number} ms
 */
function plus(time, ms) {
  return ms > 0 ? new Date(Date.parse(time) + ms).toISOString() : time;
}

/** @type {Output} */
const NO_OUTPUT = { offset: 0, text: "" };

/** @type {View} */
export const NOTHING = { job: null, output: NO_OUTPUT };

/**
 * Applies one frame of a job's stream, read with `?unnamed=1` (or with `type` put into it from the frame's name).
 * @param {View} view
 * @param {Record<string, any>} frame the frame's parsed `data`
 * @returns {View}
 * @throws {RangeError} when events are missing, or an event comes before any `state`
 */
export function follow(view, frame) {
  if (frame.type === "state") {
    const { type: _, ...job } = frame;
    // The output of this document follows in a frame of its own, if there is any.
    return { job: /** @type {Job} */ (job), output: NO_OUTPUT };
  }
  if (frame.type === "reset") return NOTHING;
  if (CONTROL.has(frame.type)) return view;
  if (frame.type === "output" && frame.seq === undefined) {
    // The opening: its bytes are in the document already.
    return { ...view, output: { offset: frame.data.offset, text: frame.data.text } };
  }
  if (view.job === null) throw new RangeError("an event came before the state it changes");
  const event = /** @type {LogEvent} */ (frame);
  const job = fold(view.job, event);
  if (job === view.job) return view;
  return { job, output: write(view.output, event) };
}

/**
 * The output without its beginning, once it is longer than twice `limit` characters, so that a page's memory is
 * bounded; at most `limit` are left, from the start of a line if one is near.
 * @param {Output} output
 * @param {number} limit
 * @returns {Output}
 */
export function keepTail(output, limit) {
  if (output.text.length <= 2 * limit) return output;
  let start = output.text.length - limit;
  const line = output.text.indexOf("\n", start);
  if (line >= 0 && line < start + limit / 2) start = line + 1;
  // Not in the middle of a character outside the basic plane.
  else if (/[\udc00-\udfff]/.test(output.text[start] ?? "")) start += 1;
  const dropped = utf8.encode(output.text.slice(0, start)).length;
  return { offset: output.offset + dropped, text: output.text.slice(start) };
}

/**
 * @param {Output} output
 * @param {LogEvent} event
 * @returns {Output}
 */
function write(output, { type, data = {} }) {
  switch (type) {
    case "output":
      return { ...output, text: output.text + (data.text ?? "") };
    case "started":
    case "requeued":
      return NO_OUTPUT;
    default:
      return output;
  }
}
