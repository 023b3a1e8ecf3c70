/** The types of `<milepost-job>`, which importing the module defines. */

import type { Job, Output, Token, WatchError } from "./types.js";

export declare class MilepostJobElement extends HTMLElement {
  href: string;
  /** A watch token, or a function that gets one. */
  token: Token;
  /** The job's document, once it is known. */
  readonly job: Job | null;
}

declare global {
  interface HTMLElementTagNameMap {
    "milepost-job": MilepostJobElement;
  }
  interface HTMLElementEventMap {
    "job-state": CustomEvent<{ job: Job; output: Output }>;
    "job-end": CustomEvent<{ job: Job; output: Output }>;
    "job-error": CustomEvent<WatchError>;
  }
}
