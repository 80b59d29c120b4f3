// Pictures that grow with the answer: plain SVG, drawn again whenever something was added.

import { makeSvg, make, short } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 120;
const LEFT = 38;
const BOTTOM = 18;
const TOP = 8;

/** A line over the answer's tokens, with an optional level that it should stay below. */
export class LineChart {
  /** Options: title, unit, from (least upper end of the axis), start (where the axis begins). */
  constructor({ title, unit = "", from = 0, start = 0 }) {
    Object.assign(this, { from, start, unit });
    this.svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" });
    this.now = make("span", { class: "now" });
    this.element = make("figure", {}, make("figcaption", {}, title, this.now), this.svg);
    this.title = title;
  }

  /** Draw `values`, one a token; `level` is a dashed line, such as the budget; `said` replaces the last value in words. */
  draw(values, level = null, said = null) {
    const last = values.length ? values[values.length - 1] : null;
    const text = said ?? (last === null ? "" : `${short(last)}${this.unit}`);
    this.now.textContent = text;
    this.svg.setAttribute("aria-label", `${this.title}: ${text || "nothing yet"}`);
    const top = Math.max(this.from, level ?? 0, ...values) * 1.08 || 1;
    const x = (index) => LEFT + ((WIDTH - LEFT - 4) * index) / Math.max(values.length - 1, 1);
    const y = (value) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - (value - this.start) / (top - this.start));
    const points = values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`);
    const parts = [
      makeSvg("line", { x1: LEFT, x2: WIDTH - 4, y1: y(this.start), y2: y(this.start), class: "axis" }),
      label(LEFT - 5, y(this.start) + 3, short(this.start), "end"),
      label(LEFT - 5, TOP + 8, short(top, 2), "end"),
      label(WIDTH - 4, HEIGHT - 4, values.length ? `token ${values.length}` : "tokens", "end"),
    ];
    if (level !== null) {
      parts.push(makeSvg("line", { x1: LEFT, x2: WIDTH - 4, y1: y(level), y2: y(level), class: "level" }));
    }
    if (points.length) parts.push(makeSvg("polyline", { points: points.join(" "), class: "line" }));
    this.svg.replaceChildren(...parts);
  }
}

/** Two bars: passes of the target that were needed, and those of plain decoding, one for each token. */
export class RoundsChart {
  constructor() {
    this.svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} 74`, class: "chart", role: "img" });
    this.now = make("span", { class: "now" });
    this.element = make("figure", {}, make("figcaption", {}, "Target rounds", this.now), this.svg);
  }

  draw(rounds, tokens) {
    this.now.textContent = tokens ? `${rounds} instead of ${tokens}` : "";
    this.svg.setAttribute("aria-label", `Target rounds: ${rounds}; plain decoding needs ${tokens}`);
    const wide = (count) => Math.max((WIDTH - 4) * (count / Math.max(tokens, rounds, 1)), count ? 2 : 0);
    this.svg.replaceChildren(
      label(0, 12, "this answer"),
      makeSvg("rect", { x: 0, y: 17, width: wide(rounds), height: 12, rx: 2, class: "bar" }),
      label(0, 48, "plain decoding: a round for each token"),
      makeSvg("rect", { x: 0, y: 53, width: wide(tokens), height: 12, rx: 2, class: "bar plain" }),
    );
  }
}

/** Two curves over a knob on a logarithmic axis, each on a scale of its own, with a mark at the knob's value. */
export class KnobChart {
  constructor(name) {
    this.name = name;
    this.svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" });
    this.element = make("figure", {}, make("figcaption", {}, `Over ${name}`), this.svg);
  }

  /** `points` are {knob, nats, acceptance}; `at` is the knob's value, which may lie outside. */
  draw(points, at) {
    const [low, high] = [points[0].knob, points[points.length - 1].knob];
    const share = (knob) => Math.min(Math.max(Math.log(knob / low) / Math.log(high / low), 0), 1);
    const x = (knob) => 4 + (WIDTH - 8) * share(knob);
    const most = Math.max(...points.map((point) => point.nats ?? 0)) || 1;
    const y = (value) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - value);
    const line = (value, kind) =>
      makeSvg("polyline", {
        points: points.map((point) => `${x(point.knob).toFixed(1)},${y(value(point)).toFixed(1)}`).join(" "),
        class: kind,
      });
    this.svg.setAttribute("aria-label", `Acceptance and nats over ${this.name}; at most ${short(most)} nats`);
    this.svg.replaceChildren(
      makeSvg("line", { x1: 4, x2: WIDTH - 4, y1: y(0), y2: y(0), class: "axis" }),
      line((point) => point.acceptance, "line second"),
      line((point) => (point.nats ?? most) / most, "line"),
      ...(at > 0 ? [makeSvg("line", { x1: x(at), x2: x(at), y1: TOP, y2: y(0), class: "mark" })] : []),
      label(4, HEIGHT - 4, short(low)),
      label(WIDTH - 4, HEIGHT - 4, short(high), "end"),
    );
  }
}

function label(x, y, text, anchor = "start") {
  return makeSvg("text", { x, y, "text-anchor": anchor }, text);
}
