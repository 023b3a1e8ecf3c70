// @ts-check
/**
 * How the element looks. Themed from outside by custom properties (`--milepost-…`) and parts; light or dark as the page
 * says by its `color-scheme`. As a constructed sheet: it needs no leave from a page's content policy.
 */

const CSS = `
:host {
  display: block;
  --ground: var(--milepost-ground, light-dark(#fff, #1a2125));
  --line: var(--milepost-line, light-dark(#dfe3e6, #2d373c));
  --text: var(--milepost-text, light-dark(#1b2226, #e4e9eb));
  --soft: var(--milepost-soft, light-dark(#5a666d, #9aa8af));
  --track: var(--milepost-track, light-dark(#e6eaec, #2b353a));
  --code: var(--milepost-code, light-dark(#f3f5f6, #141a1d));
  --link: var(--milepost-link, light-dark(#0b6a63, #5fc9bd));
  --waiting: var(--milepost-waiting, light-dark(#56636b, #a3b0b7));
  --active: var(--milepost-active, light-dark(#1f5fbf, #7fb0f5));
  --good: var(--milepost-good, light-dark(#17703c, #6fcf97));
  --warning: var(--milepost-warning, light-dark(#945200, #f0b35a));
  --bad: var(--milepost-bad, light-dark(#b3261e, #ff8f86));
  --ended: var(--milepost-ended, light-dark(#56636b, #a3b0b7));
}
@supports not (color: light-dark(#000, #fff)) {
  :host {
    --ground: var(--milepost-ground, #fff); --line: var(--milepost-line, #dfe3e6); --text: var(--milepost-text, #1b2226);
    --soft: var(--milepost-soft, #5a666d); --track: var(--milepost-track, #e6eaec); --code: var(--milepost-code, #f3f5f6);
    --link: var(--milepost-link, #0b6a63); --waiting: var(--milepost-waiting, #56636b); --active: var(--milepost-active, #1f5fbf);
    --good: var(--milepost-good, #17703c); --warning: var(--milepost-warning, #945200); --bad: var(--milepost-bad, #b3261e);
    --ended: var(--milepost-ended, #56636b);
  }
}
:host([hidden]), [hidden] { display: none !important; }
* { box-sizing: border-box; }
p, ul, pre { margin: 0; padding: 0; }
ul { list-style: none; }
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; border-radius: 3px; }
.card:focus { outline: none; }
.card {
  display: grid;
  gap: 8px;
  padding: 14px 16px;
  border: 1px solid var(--line);
  border-radius: var(--milepost-radius, 10px);
  background: var(--ground);
  color: var(--text);
  font: var(--milepost-font, 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif);
}
.head { display: flex; align-items: center; justify-content: space-between; gap: 12px; }
.title { font-weight: 650; }
.title, .message, .output, .box, .words, .notice { unicode-bidi: isolate; overflow-wrap: anywhere; min-width: 0; }
[data-tone="waiting"] { --tone: var(--waiting); }
[data-tone="active"] { --tone: var(--active); }
[data-tone="good"] { --tone: var(--good); }
[data-tone="warning"] { --tone: var(--warning); }
[data-tone="bad"] { --tone: var(--bad); }
[data-tone="ended"] { --tone: var(--ended); }
.badge {
  flex: none;
  padding: 1px 9px;
  border: 1px solid color-mix(in srgb, var(--tone) 40%, transparent);
  border-radius: 99px;
  background: color-mix(in srgb, var(--tone) 11%, transparent);
  color: var(--tone);
  font-size: 0.86em;
  font-weight: 600;
}
.bar { height: 6px; overflow: hidden; border-radius: 99px; background: var(--track); }
.fill {
  height: 100%;
  border-radius: inherit;
  background: var(--tone);
  transform: translateX(calc((var(--share, 0) - 1) * 100%));
  transition: transform 250ms ease-out;
}
.indeterminate .fill { width: 30%; transform: none; animation: sweep 1.6s ease-in-out infinite alternate; }
@keyframes sweep { to { transform: translateX(233%); } }
@media (prefers-reduced-motion: reduce) {
  .fill { transition: none; }
  .indeterminate .fill { width: 100%; opacity: 0.35; animation: none; }
}
@media (forced-colors: active) { .fill { background: Highlight; } .bar { border: 1px solid CanvasText; } }
.words { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 4px 12px; color: var(--soft); font-size: 0.9em; }
.output {
  max-height: var(--milepost-output-height, 16em);
  overflow: auto;
  padding: 8px 10px;
  border-radius: 6px;
  background: var(--code);
  font: var(--milepost-output-font, 0.87em/1.5 ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace);
  white-space: pre-wrap;
}
.box { padding: 8px 10px; border-left: 3px solid var(--tone); border-radius: 4px; background: var(--code); }
.box pre { overflow: auto; font-size: 0.85em; }
.measures, .artifacts { display: flex; flex-wrap: wrap; gap: 2px 14px; }
.mono { color: var(--soft); font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 0.8em; }
.notice { color: var(--soft); }
.notice[data-tone] { color: var(--tone); }
[part="result"]:empty, .words:not(:has(> :not(:empty))), .actions:not(:has(> :not([hidden]))) { display: none; }
.actions, .confirm { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; }
button {
  padding: 4px 12px;
  border: 1px solid var(--line);
  border-radius: 6px;
  background: transparent;
  color: inherit;
  font: inherit;
  cursor: pointer;
}
button:hover { background: var(--code); }
button.danger { border-color: var(--bad); color: var(--bad); }
button:disabled { opacity: 0.6; cursor: default; }
.visually-hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
`;

/** @type {CSSStyleSheet | undefined} */
let sheet;

/** The sheet, shared by all elements of a page. */
export function jobStyle() {
  if (!sheet) {
    sheet = new CSSStyleSheet();
    sheet.replaceSync(CSS);
  }
  return sheet;
}
