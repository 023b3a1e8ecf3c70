// @ts-check
/**
 * `<milepost-job href="/v1/jobs/…">`: one job as a card, live, wherever a page puts it.
 *
 * | attribute | |
 * |---|---|
 * | `href` | the job's address, its events' or its page's (whose `#token=` is used) |
 * | `subject`, `base` | instead: the job that a subject has, and the gateway's address |
 * | `token` | a watch token; as a property also a function that gets one |
 * | `credentials` | `include`: send the cookie to another origin |
 * | `on-complete` | when a job that was seen running succeeds: `reload` the page, or `open-artifact`, its first |
 * | `no-controls` | offers neither cancel nor retry |
 *
 * Events, which bubble: `job-state` at each change, `job-end` (cancelable: then nothing is done `on-complete`), each with
 * `detail` `{job, output}`, and `job-error` with the `WatchError`. Parts: card, header, title, state, bar, fill, words,
 * amount, message, output, result, outcome, error, notice, actions, button. What it opens it closes when it leaves the page.
 */
import { cancelJob, mintKey, retryJob } from "./actions.js";
import { jobAddress, jobUrl } from "./address.js";
import { batched } from "./dom.js";
import { safeLink, standing } from "./format.js";
import { JobCard } from "./job-card.js";
import { jobStyle } from "./job-style.js";
import { speaker } from "./speaker.js";
import { watchSubject } from "./subject.js";
import { watch } from "./watch.js";

/** @typedef {import("./types.js").Job} Job */
/** @typedef {import("./types.js").Token} Token */
/** @typedef {import("./types.js").WatchOptions} WatchOptions */

/** Refusals that say that the credential does not allow it: on a job that may be seen, 404 does too. */
const NOT_ALLOWED = new Set([401, 403, 404]);
const RETRYABLE = new Set(["failed", "cancelled", "expired"]);

// Outside of a browser the class can be imported, not used.
const Base = /** @type {typeof HTMLElement} */ (globalThis.HTMLElement ?? class {});

export class MilepostJobElement extends Base {
  static observedAttributes = ["href", "subject", "base", "token", "credentials", "no-controls"];

  #card = new JobCard();
  #draw = batched(() => this.isConnected && this.#drawNow());
  /** @type {import("./types.js").JobWatch | null} */
  #watched = null;
  /** @type {Token | undefined} */
  #token;
  /** Whether the credential was found to allow no actions. */
  #forbidden = false;
  #busy = false;
  #refusal = "";
  /** One intention to retry, however often it is sent. @type {string | null} */
  #retryKey = null;
  /** The job that was seen before its end; only its success is news. */
  #seenLive = "";
  /** How far the gateway's clock is ahead of ours, ms; null until it told us. @type {number | null} */
  #ahead = null;
  #reopening = false;

  constructor() {
    super();
    const shadow = this.attachShadow({ mode: "open" });
    shadow.adoptedStyleSheets = [jobStyle()];
    shadow.append(this.#card.root, this.#card.announcer);
    const { cancel, confirm, keep, really, retry } = this.#card;
    cancel.addEventListener("click", () => {
      cancel.hidden = true;
      confirm.hidden = false;
      keep.focus();
    });
    keep.addEventListener("click", () => {
      confirm.hidden = true;
      this.#drawNow();
      cancel.focus();
    });
    really.addEventListener("click", () => {
      confirm.hidden = true;
      this.#act("Not cancelled", (url, options) => cancelJob(url, { ...options, reason: "cancelled on the page" }));
    });
    retry.addEventListener("click", () => this.#retry());
  }

  connectedCallback() {
    // What a framework set before the class was known hides the accessors.
    for (const name of /** @type {const} */ (["href", "token"])) {
      if (!Object.hasOwn(this, name)) continue;
      const value = this[name];
      delete (/** @type {any} */ (this)[name]);
      /** @type {any} */ (this)[name] = value;
    }
    this.#open();
  }

  disconnectedCallback() {
    this.#close();
  }

  attributeChangedCallback() {
    // Several attributes that change together open one connection.
    if (!this.isConnected || this.#reopening) return;
    this.#reopening = true;
    queueMicrotask(() => {
      this.#reopening = false;
      if (this.isConnected) this.#open();
    });
  }

  /** The address of the job. */
  get href() {
    return this.getAttribute("href") ?? "";
  }

  set href(url) {
    this.setAttribute("href", url);
  }

  /** The credential. */
  get token() {
    return this.#token === undefined ? this.getAttribute("token") : this.#token;
  }

  /** @param {Token} token */
  set token(token) {
    this.#token = token;
    this.attributeChangedCallback();
  }

  /** The job's document, once it is known. */
  get job() {
    return this.#watched?.job ?? null;
  }

  #close() {
    this.#watched?.close();
    this.#watched = null;
  }

  #open() {
    this.#close();
    this.#forbidden = this.hasAttribute("no-controls");
    this.#refusal = "";
    this.#retryKey = null;
    this.#seenLive = "";
    this.#watch();
  }

  #watch() {
    this.#close();
    const speak = speaker((text) => this.#say(text), () => this.#now());
    const subject = this.getAttribute("subject");
    if (subject === null && this.href === "") {
      this.#draw();
      return;
    }
    /** @type {WatchOptions} */
    const options = {
      token: this.token ?? undefined,
      credentials: /** @type {RequestCredentials} */ (this.getAttribute("credentials") ?? "same-origin"),
      onState: (job, output) => {
        this.#witness(job.updated_at);
        if (!job.terminal) this.#seenLive = job.id;
        speak(job, this.#watched?.link ?? "live");
        this.#tell("job-state", { job, output });
        this.#draw();
      },
      onLink: (link) => {
        speak(this.job, link);
        this.#draw();
      },
      onEnd: (job) => this.#onEnd(job),
      onError: (error) => this.#tell("job-error", error),
    };
    try {
      this.#watched = subject !== null
        ? watchSubject(subject, { ...options, base: this.getAttribute("base") ?? "" })
        : watch(new URL(this.href, this.baseURI), options);
    } catch (error) {
      // Not an address of a job: the author's mistake, shown where it was made.
      this.#refusal = String(/** @type {Error} */ (error).message);
    }
    this.#draw();
  }

  /** @param {Job} job */
  #onEnd(job) {
    const news = this.#seenLive === job.id;
    this.#seenLive = "";
    if (!this.#tell("job-end", { job, output: this.#watched?.output })) return;
    // A page that comes back to a job that was over already must not go away again. A warning is to be read.
    if (!news || standing(job, 0).tone !== "good") return;
    const wish = this.getAttribute("on-complete");
    if (wish === "reload") location.reload();
    if (wish === "open-artifact") {
      const [first] = (job.outcome?.artifacts ?? []).flatMap((artifact) => safeLink(artifact?.url) ?? []);
      if (first) location.assign(first);
    }
  }

  /**
   * @param {string} name
   * @param {unknown} detail
   */
  #tell(name, detail) {
    return this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true, cancelable: name === "job-end" }));
  }

  /** @param {string} text */
  #say(text) {
    this.#card.announcer.textContent = text;
  }

  /** The address of the job that is shown. */
  get #url() {
    const id = this.job?.id ?? "";
    const { base } = this.hasAttribute("subject")
      ? { base: this.getAttribute("base") ?? "" }
      : jobAddress(new URL(this.href, this.baseURI));
    return jobUrl({ base, id, token: null });
  }

  /** What to send: the app's, or what the address carries. */
  get #credential() {
    return this.token ?? (this.href ? jobAddress(new URL(this.href, this.baseURI)).token : null);
  }

  /** For a link, which can send no header. A function's token is too short-lived for one. */
  get #resultUrl() {
    const token = this.#credential;
    return `${this.#url}/result${typeof token === "string" ? `?token=${encodeURIComponent(token)}` : ""}`;
  }

  async #retry() {
    this.#retryKey ??= mintKey();
    const idempotencyKey = this.#retryKey;
    const done = await this.#act("Not tried again", (url, options) => retryJob(url, { ...options, idempotencyKey }));
    if (!done) return;
    this.#retryKey = null;
    // Its log goes on; a subject's watch notices by itself.
    if (!this.hasAttribute("subject")) this.#watch();
    this.#card.root.focus();
  }

  /**
   * @param {string} failed
   * @param {(url: string, options: import("./types.js").ActionOptions) => Promise<unknown>} action
   * @returns {Promise<boolean>} whether it was done
   */
  async #act(failed, action) {
    const watched = this.#watched;
    this.#busy = true;
    this.#refusal = "";
    this.#draw();
    try {
      const token = this.#credential;
      const credentials = /** @type {RequestCredentials} */ (this.getAttribute("credentials") ?? "same-origin");
      await action(this.#url, { token, credentials });
      return this.isConnected && this.#watched === watched;
    } catch (error) {
      const { status, message } = /** @type {import("./types.js").WatchError} */ (error);
      if (NOT_ALLOWED.has(status)) this.#forbidden = true;
      // Somebody was faster: the state says so.
      else if (status !== 409) this.#refusal = `${failed}: ${message}`;
      if (status !== 409) this.#say(`${failed}: ${message}`);
      return false;
    } finally {
      this.#busy = false;
      this.#draw();
    }
  }

  #drawNow() {
    const watched = this.#watched;
    const job = watched?.job ?? null;
    const allowed = job !== null && !this.#forbidden && watched?.link !== "denied" && watched?.link !== "gone";
    this.#card.draw(
      {
        job,
        output: watched?.output.text ?? "",
        link: watched?.link ?? "connecting",
        resultUrl: job ? this.#resultUrl : "",
        cancellable: allowed && !job.terminal && !job.cancel_requested,
        retryable: allowed && !job.tracked && RETRYABLE.has(job.state),
        busy: this.#busy,
        refusal: this.#refusal,
      },
      this.#now(),
    );
  }

  #now() {
    return Date.now() + (this.#ahead ?? 0);
  }

  /** @param {string | null} at a time that has passed at the gateway */
  #witness(at) {
    const time = at ? Date.parse(at) : NaN;
    if (time > this.#now()) this.#ahead = time - Date.now();
  }
}

if (globalThis.customElements && !customElements.get("milepost-job")) {
  customElements.define("milepost-job", MilepostJobElement);
}
