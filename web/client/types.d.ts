/**
 * The types of the client module, in one place: what the modules here are checked against, and what an app gets that
 * imports them.
 */

export type State = "scheduled" | "queued" | "running" | "retrying" | "completed" | "failed" | "cancelled" | "expired";

export interface Progress {
  percent?: number | null;
  current?: number | null;
  total?: number | null;
  unit?: string | null;
  phase?: string | null;
  message?: string | null;
}

export interface Artifact {
  type?: string;
  label?: string;
  url?: string;
}

/** How a completed job came out. `ok: false` is "it ran, and produced nothing useful". */
export interface Outcome {
  ok?: boolean;
  status?: string;
  items?: number;
  metrics?: Record<string, unknown>;
  note?: string;
  artifacts?: Artifact[];
  /** Where its `data` is, if it has any. */
  result_url?: string;
}

export interface Failure {
  code?: string;
  message?: string;
  retryable?: boolean;
  details?: unknown;
}

/** The state document of a job. All times are RFC 3339 in UTC. */
export interface Job {
  id: string;
  queue: string;
  kind: string;
  subject: string | null;
  state: State;
  terminal: boolean;
  /** The last event that is part of this document. */
  seq: number;
  attempt: number;
  max_attempts: number;
  priority: number;
  tracked: boolean;
  progress: Progress | null;
  output: { bytes: number };
  outcome: Outcome | null;
  error: Failure | null;
  cancel_requested: boolean;
  worker: string | null;
  created_at: string | null;
  run_at: string | null;
  started_at: string | null;
  finished_at: string | null;
  updated_at: string | null;
  meta: Record<string, unknown>;
}

/** One entry of a job's log. */
export interface LogEvent {
  seq: number;
  /** On output that was joined from several events: the first of them. */
  from_seq?: number;
  type: string;
  at: string;
  attempt: number;
  data?: Record<string, any>;
}

/** The text of the job's last run, as far as it is known here. */
export interface Output {
  /** Byte offset of the first character of `text` in the run's output. */
  offset: number;
  text: string;
}

/** What a watcher of one job knows. */
export interface View {
  /** Null until the first `state`, and again between a `reset` and the `state` after it. */
  job: Job | null;
  output: Output;
}

/**
 * How things stand with the gateway: `stale` is "no word for too long", `ended` is the job's end, `gone` says that there is
 * no such job (any more), `denied` that the credential does not do, `refused` that the request can never be answered, and
 * `closed` that it was closed from this side.
 */
export type Link = "connecting" | "live" | "reconnecting" | "stale" | "ended" | "gone" | "denied" | "refused" | "closed";

export type Transport = "stream" | "long-poll" | "poll";

/** A credential: a watch token, or a function that gets one, asked again when the gateway no longer takes the last. */
export type Token = string | null | (() => string | null | Promise<string | null>);

/** What stops a watch for good. */
export declare class WatchError extends Error {
  constructor(status: number, message: string, code?: string);
  /** The HTTP status. */
  readonly status: number;
  /** The problem's stable code, if the gateway gave one. */
  readonly code: string | undefined;
}

export interface ConnectionOptions {
  token?: Token;
  /** Closes the watch when it aborts. */
  signal?: AbortSignal;
  /** As of `fetch`; `include` sends a cookie to another origin. Default `same-origin`. */
  credentials?: RequestCredentials;
  /** The gateway's `--ping-ms`: after two and a half times as much silence a connection counts as dead. Default 15,000. */
  pingMs?: number;
  onLink?: (link: Link) => void;
  /** The watch has stopped for good, and this is why. */
  onError?: (error: WatchError) => void;
  /** What the client stands on, for tests. */
  environment?: Partial<Environment>;
}

export type ActionOptions = Pick<ConnectionOptions, "token" | "credentials" | "environment">;

/** None of the callbacks is called after `close()`. */
export interface WatchOptions extends ConnectionOptions {
  /** The document changed. */
  onState?: (job: Job, output: Output) => void;
  /** An event of the log: each once, in order. */
  onEvent?: (event: LogEvent, job: Job) => void;
  /** What a loop over the watch would yield. */
  onUpdate?: (update: Update) => void;
  /** A whole document came: what was before it did not pass through `onEvent`. */
  onSnapshot?: (job: Job) => void;
  /** The job has ended. */
  onEnd?: (job: Job) => void;
  /** Characters of output that are kept. Default 200,000. */
  outputLimit?: number;
}

/** What a watch yields: the document, and the event that made it so; null for a whole document. */
export interface Update {
  job: Job;
  output: Output;
  event: LogEvent | null;
}

export interface Watch<T> extends AsyncIterable<T> {
  readonly link: Link;
  /** How it is connected, or was last. */
  readonly transport: Transport;
  /** Stops it: no request and no callback after this. */
  close(): void;
}

export interface JobWatch extends Watch<Update>, View {
  /** The last document once the job has ended; null if the watch was closed or the job deleted before. */
  readonly ended: Promise<Job | null>;
}

/** Which jobs: AND between names, OR within one. Without any: all that the credential may read. */
export interface FeedFilter {
  jobs?: string | string[];
  subject?: string | string[];
  queue?: string | string[];
  kind?: string | string[];
}

/** None of the callbacks is called after `close()`. */
export interface FeedOptions extends ConnectionOptions {
  /** The gateway's address with its base path, without a slash at the end. Default: this origin. */
  base?: string;
  /** A job appeared, or changed. */
  onState?: (job: Job) => void;
  /** A job was deleted, is unknown, or may not be seen. */
  onGone?: (id: string) => void;
  /** Everything comes anew: what was known may be wrong. */
  onReset?: () => void;
  /** More jobs match than the opening carries. */
  onTruncated?: () => void;
  /** False: a connection of its own, not shared with other tabs. A string: shared among those that name the same. */
  share?: boolean | string;
}

export interface FeedWatch extends Watch<Job> {
  /** By id, in the order in which they appeared. */
  readonly jobs: ReadonlyMap<string, Job>;
}

export interface SubjectOptions extends WatchOptions {
  base?: string;
  share?: boolean | string;
}

/** Frames as they come from the wire: `id` null for none. */
export interface Frame {
  id: string | null;
  body: Record<string, any>;
}

/** What the client stands on. */
export interface Environment {
  fetch: typeof fetch;
  now(): number;
  random(): number;
  setTimeout(callback: () => void, ms: number): unknown;
  clearTimeout(timer: any): void;
  /** Tells when somebody looks again or the network is back, and when the page goes to sleep; answers how to stop it. */
  listen(listener: WakeListener): () => void;
  locks: LockManager | null;
  openChannel: ((name: string) => BroadcastChannel) | null;
  /** What a callback threw. */
  report(error: unknown): void;
}

export interface WakeListener {
  /** `fresh`: the page comes out of the back-forward cache, and what was open is not alive. */
  wake(fresh: boolean): void;
  sleep(): void;
}

/** Watches one job: its state first, then every event. The address is that of the job, of its events or of its page. */
export declare function watch(url: string | URL, options?: WatchOptions): JobWatch;
/** Watches many jobs on one connection, shared by the tabs of one credential: their states, not their logs. */
export declare function watchFeed(filter?: FeedFilter, options?: FeedOptions): FeedWatch;
/** Watches whatever job a subject has: the active one, else the newest, and the next when there is one. */
export declare function watchSubject(subject: string, options?: SubjectOptions): JobWatch;

/** Asks a job to stop. Throws a `WatchError`; status 0: the gateway could not be reached. */
export declare function cancelJob(url: string | URL, options?: ActionOptions & { reason?: string; graceMs?: number }): Promise<Job>;
/** Puts a job back that failed, was cancelled or expired; with the same key once, however often it is sent. */
export declare function retryJob(url: string | URL, options?: ActionOptions & { idempotencyKey?: string }): Promise<Job>;
/** A key for one intention. */
export declare function mintKey(): string;

export declare const NOTHING: View;
export declare function blank(id: string): Job;
export declare function fold(job: Job, event: LogEvent): Job;
export declare function follow(view: View, frame: Record<string, any>): View;
export declare function isTerminal(state: string): boolean;
export declare function keepTail(output: Output, limit: number): Output;
