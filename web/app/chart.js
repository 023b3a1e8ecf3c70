// @ts-check
/** Small charts as SVG, drawn by hand: lines over time, sparklines, bars of a Gantt. Words beside them say the same. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an SVG element. Text becomes text nodes, as in `element`.
 * @param {string} tag
 * @param {Record<string, string | number | null>} [attributes]
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}, ...children) {
  const made = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/**
 * A picture with a name, for eyes and screen readers alike.
 * @param {number} width
 * @param {number} height
 * @param {string} name
 * @param {string} [kind] a class
 */
export function picture(width, height, name, kind = "chart") {
  return svg("svg", { class: kind, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name, "data-chart": "" });
}

/** @typedef {[number, number | null]} Point an instant, ms, and a value; null where there is none */

/**
 * The path of a line, broken where there is no value.
 * @param {readonly Point[]} points
 * @param {(at: number) => number} x
 * @param {(value: number) => number} y
 */
export function line(points, x, y) {
  let path = "";
  let drawing = false;
  for (const [at, value] of points) {
    if (value !== null) path += `${drawing ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    drawing = value !== null;
  }
  return path;
}

/**
 * A line without axes, as wide as a word.
 * @param {readonly Point[]} points
 * @param {string} name
 */
export function sparkline(points, name) {
  const [width, height] = [96, 24];
  const drawn = picture(width, height, name, "spark");
  const most = Math.max(1, ...points.map(([, value]) => value ?? 0));
  const [from, to] = [points[0]?.[0] ?? 0, points.at(-1)?.[0] ?? 1];
  const x = (/** @type {number} */ at) => 1 + ((at - from) / Math.max(1, to - from)) * (width - 2);
  const y = (/** @type {number} */ value) => height - 2 - (value / most) * (height - 4);
  drawn.append(svg("path", { class: "line", d: line(points, x, y) }));
  return drawn;
}

/**
 * Lines over time with an axis on either side.
 * @param {object} shown
 * @param {string} shown.name
 * @param {{label: string, tone: string, points: readonly Point[]}[]} shown.series
 * @param {number} shown.from ms
 * @param {number} shown.to ms
 * @param {(value: number) => string} shown.format
 * @param {(ms: number) => string} shown.span how far from the left edge to the right one, in words
 * @param {number} [shown.most] the upper end; by default the greatest value
 */
export function timeChart({ name, series, from, to, format, span, most }) {
  const [width, height, left, bottom, top] = [480, 150, 56, 20, 8];
  const values = series.flatMap(({ points }) => points.flatMap(([, value]) => value ?? []));
  const upper = most ?? niceAbove(Math.max(0, ...values));
  const x = (/** @type {number} */ at) => left + ((at - from) / Math.max(1, to - from)) * (width - left - 6);
  const y = (/** @type {number} */ value) => height - bottom - (value / upper) * (height - bottom - top);
  const drawn = picture(width, height, name);
  for (const value of [0, upper / 2, upper]) {
    drawn.append(
      svg("line", { class: "grid", x1: left, x2: width - 6, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
    );
  }
  drawn.append(
    svg("text", { x: left, y: height - 4 }, span(to - from)),
    svg("text", { x: width - 6, y: height - 4, "text-anchor": "end" }, "now"),
  );
  for (const { tone, points } of series) drawn.append(svg("path", { class: "line", "data-tone": tone, d: line(points, x, y) }));
  return drawn;
}

/**
 * The next round number above.
 * @param {number} value
 */
function niceAbove(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * power).find((round) => round >= value) ?? value;
}
