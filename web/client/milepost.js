// @ts-check
/**
 *
 * It chooses the transport by itself (a stream, long-polls, plain polls), keeps one cursor over all of them, comes back
 * after whatever passes, and stops after what does not. No DOM: it runs in pages, workers and Node.
 */
export { cancelJob, mintKey, retryJob } from "./actions.js";
export { WatchError } from "./error.js";
export { blank, fold, follow, isTerminal, keepTail, NOTHING } from "./fold.js";
export { watchFeed } from "./feed.js";
export { watchSubject } from "./subject.js";
export { watch } from "./watch.js";
