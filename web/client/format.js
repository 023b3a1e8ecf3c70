// @ts-check
/** Words and numbers about a job, for whoever shows one. Pure: values in, text out. */

/** @typedef {import("./types.js").Job} Job */
/** @typedef {"waiting" | "active" | "good" | "warning" | "bad" | "ended"} Tone */

/**
 * How a job stands, in words. "Queued", "finished" and "the work really succeeded" are three facts: a job that
 * completed with `ok: false`, or with nothing to show for it, is a warning, and 100 % is not "completed".
 * @param {Job} job
 * @param {number} now the gateway's time, ms
 * @returns {{label: string, tone: Tone}}
 */
export function standing(job, now) {
  switch (job.state) {
    case "scheduled":
      // No event marks the moment in which it comes due.
      if (job.run_at && Date.parse(job.run_at) <= now) return { label: "Queued", tone: "waiting" };
      return { label: "Scheduled", tone: "waiting" };
    case "queued":
      return { label: "Queued", tone: "waiting" };
    case "retrying":
      return { label: "Retrying", tone: "warning" };
    case "running":
      return job.cancel_requested
        ? { label: "Cancelling", tone: "warning" }
        : { label: "Running", tone: "active" };
    case "completed":
      if (job.outcome?.ok === false) return { label: "Completed, not ok", tone: "warning" };
      if (job.outcome?.items === 0) return { label: "Completed, nothing found", tone: "warning" };
      return { label: "Completed", tone: "good" };
    case "failed":
      return { label: "Failed", tone: "bad" };
    case "cancelled":
      return { label: "Cancelled", tone: "ended" };
    case "expired":
      return { label: "Expired", tone: "bad" };
  }
  // A state of a newer gateway.
  return { label: String(job.state), tone: "ended" };
}

/**
 * A percentage as it is shown: never rounded up to 100.
 * @param {number} value
 */
export function percent(value) {
  if (value >= 100) return "100 %";
  const tenths = Math.floor(value * 10) / 10;
  return `${Number.isInteger(tenths) ? tenths : tenths.toFixed(1)} %`;
}

/**
 * The line beside the bar: how far, of what.
 * @param {Job} job
 */
export function amount(job) {
  const { percent: share, current, total, unit } = job.progress ?? {};
  const parts = [];
  if (share != null) parts.push(percent(share));
  if (current != null) {
    const of = total != null ? ` of ${number(total)}` : "";
    parts.push(`${number(current)}${of}${unit ? ` ${unit}` : ""}`);
  }
  if (share != null && share >= 100 && !job.terminal) parts.push("finishing");
  return parts.join(" · ");
}

/** @param {number} value */
export function number(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

/** @param {number} count */
export function bytes(count) {
  if (count < 1024) return `${count} B`;
  if (count < 1024 * 1024) return `${(count / 1024).toFixed(1)} KiB`;
  return `${(count / 1024 / 1024).toFixed(1)} MiB`;
}

/**
 * A span of time in its two largest units; never negative.
 * @param {number} ms
 */
export function duration(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/**
 * @param {number} ms
 */
export function ago(ms) {
  return ms < 2000 ? "just now" : `${duration(ms).replace(/ \d+ (s|min|h)$/, "")} ago`;
}

/**
 * How long the job has taken: from its last start, or else from its creation, to its end or to now.
 * @param {Job} job
 * @param {number} now the gateway's time, ms
 * @returns {{label: string, ms: number} | null}
 */
export function elapsed(job, now) {
  const end = job.finished_at ? Date.parse(job.finished_at) : now;
  if (job.started_at && job.state !== "queued" && job.state !== "scheduled" && job.state !== "retrying") {
    return { label: job.terminal ? "Took" : "Running for", ms: end - Date.parse(job.started_at) };
  }
  if (job.terminal) return null;
  const due = job.run_at ? Date.parse(job.run_at) : now;
  if (due > now) return { label: job.state === "retrying" ? "Next try in" : "Due in", ms: due - now };
  const since = job.run_at ?? job.created_at;
  return since ? { label: "Waiting for", ms: now - Date.parse(since) } : null;
}

/**
 * The address of a link that a job named, or null if it is not one we follow. Anything but `http` and `https`
 * (`javascript:`, `data:`) would run in the page of whoever clicks it.
 * @param {unknown} url
 */
export function safeLink(url) {
  if (typeof url !== "string" || !URL.canParse(url)) return null;
  const { protocol, href } = new URL(url);
  return protocol === "http:" || protocol === "https:" ? href : null;
}

/**
 * Text without terminal colours and other escape sequences, which mean nothing on a page.
 * @param {string} text
 */
export function plain(text) {
  // CSI and OSC sequences of ECMA-48.
  return text.replace(/\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g, "");
}

/**
 * A value in one line, for a table.
 * @param {unknown} value
 * @param {number} [limit]
 */
export function oneLine(value, limit = 300) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  if (text.length <= limit) return text;
  // Not half a character at the end.
  return `${text.slice(0, limit).replace(/[\ud800-\udbff]$/, "")}…`;
}

/**
 * What an event carries, in one line: its fields without those that are empty.
 * @param {Record<string, unknown> | undefined} data
 */
export function fields(data) {
  return Object.entries(data ?? {})
    .filter(([, value]) => value !== null && value !== "" && oneLine(value) !== "{}")
    .map(([name, value]) => `${name} ${oneLine(value)}`)
    .join(" · ");
}
