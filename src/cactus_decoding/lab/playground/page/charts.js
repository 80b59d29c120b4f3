// What a knob does at a position, as a picture: plain SVG, drawn again whenever the knob moves.

import { makeSvg, make, short } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 120;
const BOTTOM = 18;
const TOP = 8;

/** Two curves over a knob on a logarithmic axis, each on a scale of its own, with a mark at the knob's value. */
export class KnobChart {
  constructor(name) {
    this.name = name;
    this.svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img" });
    this.maximum = make("span", { class: "key" });
    this.element = make(
      "figure",
      {},
      make("figcaption", {}, this.maximum, make("span", { class: "key second" }, "acceptance, from 0 to 1"), `over ${name}`),
      this.svg,
    );
  }

  /** `points` are {knob, nats, acceptance}; `at` is the knob's value, which may lie outside. */
  draw(points, at) {
    const [low, high] = [points[0].knob, points[points.length - 1].knob];
    const share = (knob) => Math.min(Math.max(Math.log(knob / low) / Math.log(high / low), 0), 1);
    const x = (knob) => 4 + (WIDTH - 8) * share(knob);
    const maximum = Math.max(...points.map((point) => point.nats ?? 0)) || 1;
    const y = (value) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - value);
    const line = (value, kind) =>
      makeSvg("polyline", {
        points: points.map((point) => `${x(point.knob).toFixed(1)},${y(value(point)).toFixed(1)}`).join(" "),
        class: kind,
      });
    this.maximum.textContent = `nats, up to ${short(maximum)}`;
    this.svg.setAttribute("aria-label", `Acceptance and nats over ${this.name}; at most ${short(maximum)} nats`);
    this.svg.replaceChildren(
      makeSvg("line", { x1: 4, x2: WIDTH - 4, y1: y(0), y2: y(0), class: "axis" }),
      line((point) => point.acceptance, "line second"),
      line((point) => (point.nats ?? maximum) / maximum, "line"),
      ...(at > 0 ? [makeSvg("line", { x1: x(at), x2: x(at), y1: TOP, y2: y(0), class: "mark" })] : []),
      label(4, HEIGHT - 4, short(low)),
      label(WIDTH - 4, HEIGHT - 4, short(high), "end"),
    );
  }
}

function label(x, y, text, anchor = "start") {
  return makeSvg("text", { x, y, "text-anchor": anchor }, text);
}
