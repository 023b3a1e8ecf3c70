/** The types of the React hooks. */

import type { Job, Link, Output, SubjectOptions, WatchError, WatchOptions } from "./types.js";

export interface JobState {
  /** Null until the first document came. */
  job: Job | null;
  output: Output;
  link: Link;
  /** What stopped it for good. */
  error: WatchError | null;
}

/** A job, live. Null: none, yet. */
export declare function useJob(url: string | URL | null | undefined, options?: WatchOptions): JobState;
/** Whatever job a subject has, live. Null: none, yet. */
export declare function useSubject(subject: string | null | undefined, options?: SubjectOptions): JobState;
