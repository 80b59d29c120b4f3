// What a knob does at a position, as a picture: plain SVG, drawn again whenever the knob moves.

import { makeSvg, make, short } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 148;
const LEFT = 36;
const RIGHT = 16;
const BOTTOM = 34;
const TOP = 8;

/** Two curves over a knob on a logarithmic axis, each on a scale of its own, with a mark at the knob's value. */
export class KnobChart {
  constructor(name, unit = "") {
    this.name = name;
    this.unit = unit;
    this.svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" });
    this.element = make(
      "figure",
      {},
      make("figcaption", {}, make("span", { class: "key" }, "nats, on the left"),
        make("span", { class: "key second" }, "acceptance, on the right")),
      this.svg,
    );
  }

  /** `points` are {knob, nats, acceptance}; `at` is the knob's value, which may lie outside. */
  draw(points, at) {
    const [low, high] = [points[0].knob, points[points.length - 1].knob];
    const share = (knob) => Math.min(Math.max(Math.log(knob / low) / Math.log(high / low), 0), 1);
    const x = (knob) => LEFT + (WIDTH - LEFT - RIGHT) * share(knob);
    const maximum = Math.max(...points.map((point) => point.nats ?? 0)) || 1;
    const y = (value) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - value);
    const line = (value, kind) =>
      makeSvg("polyline", {
        points: points.map((point) => `${x(point.knob).toFixed(1)},${y(value(point)).toFixed(1)}`).join(" "),
        class: kind,
      });
    this.svg.setAttribute("aria-label", `Acceptance and nats over ${this.name}; at most ${short(maximum)} nats`);
    this.svg.replaceChildren(
      makeSvg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(0), y2: y(0), class: "axis" }),
      line((point) => point.acceptance, "line second"),
      line((point) => (point.nats ?? maximum) / maximum, "line"),
      ...(at > 0 ? [makeSvg("line", { x1: x(at), x2: x(at), y1: TOP, y2: y(0), class: "mark" })] : []),
      ...[0, 1].flatMap((end) => [
        label(LEFT - 4, y(end) + 4, short(end * maximum), "end", "of-line"),
        label(WIDTH - RIGHT + 4, y(end) + 4, String(end), "start", "of-second"),
      ]),
      label(LEFT, HEIGHT - BOTTOM + 13, short(low)),
      label(WIDTH - RIGHT, HEIGHT - BOTTOM + 13, short(high), "end"),
      label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, `${this.name}${this.unit && ` (${this.unit})`}`, "middle"),
    );
  }
}

function label(x, y, text, anchor = "start", kind = "") {
  return makeSvg("text", { x, y, "text-anchor": anchor, class: kind }, text);
}
