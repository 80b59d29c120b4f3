/* drawCactusCharts: nats, tokens per step and steps over an answer, as pictures. Plain JavaScript, no dependencies.
 *
 *   drawCactusCharts(figures, positions, options)  fills three figures; their style is in answer.css.
 *     positions  of the answer, objects with the fields of TracedPosition
 *     options    selected  the place of the token that is looked at, or null
 *                budget    in nats; infinite or NaN: no line
 */
"use strict";

(function (scope) {
  const { make, draw, numberOf, nats } = scope.CactusWriting;
  const HEIGHT = 132, LEFT = 44, RIGHT = 8, TOP = 10, BOTTOM = 20;

  /* Draws one picture: lines are [{points: [[x, y], …], className, step}], bars [{from, to, y}], levels [{y, text}]. */
  function plot(figure, { title, summary, xMax, yMax, whole, lines, bars, levels, at, xLabel }) {
    figure.replaceChildren(make("figcaption", "", title));
    const width = Math.max(figure.clientWidth, 160);
    const svg = draw(figure, "svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": summary });
    const x = (value) => LEFT + (xMax > 0 ? value / xMax : 0) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (yMax > 0 ? Math.min(value / yMax, 1) : 0) * (HEIGHT - TOP - BOTTOM);
    for (const tick of whole && yMax % 2 ? [0, yMax] : [0, yMax / 2, yMax]) {
      draw(svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: tick ? "ca-grid" : "ca-axis" });
      draw(svg, "text", { x: LEFT - 5, y: y(tick) + 3.5, "text-anchor": "end" }, tick ? tick.toFixed(whole ? 0 : digitsOf(yMax)) : "0");
    }
    draw(svg, "text", { x: LEFT, y: HEIGHT - 5 }, "0");
    draw(svg, "text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, xLabel);
    draw(svg, "text", { x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, String(xMax));
    for (const bar of bars || []) {
      const left = x(bar.from), right = x(bar.to);
      draw(svg, "rect", { x: left, width: Math.max(right - left - 1, 0.5), y: y(bar.y), height: y(0) - y(bar.y), class: "ca-bar" });
    }
    if (at !== null) draw(svg, "line", { x1: x(at + 0.5), x2: x(at + 0.5), y1: TOP, y2: y(0), class: "ca-here" });
    for (const level of levels || []) {
      draw(svg, "line", { x1: LEFT, x2: width - RIGHT, y1: y(level.y), y2: y(level.y), class: "ca-level" });
      draw(svg, "text", { x: LEFT + 4, y: y(level.y) + 12, class: "ca-strong" }, level.text);
    }
    for (const line of lines) {
      let path = "";
      line.points.forEach(([px, py], i) => {
        path += i === 0 ? `M${x(px)} ${y(py)}` : line.step ? `H${x(px)}V${y(py)}` : `L${x(px)} ${y(py)}`;
      });
      if (path) draw(svg, "path", { d: path, class: line.className });
    }
  }

  function niceTop(value) {
    if (!(value > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 3, 4, 5, 6, 8, 10].map((n) => n * power).find((top) => top >= value * 0.9999);
  }

  function digitsOf(top) {
    return Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(top / 2))));
  }

  function drawCactusCharts(figures, all, { selected = null, budget = NaN } = {}) {
    const at = selected === null ? null : all.findIndex((one) => one.place === selected);
    const spent = [[0, 0]], steps = [], running = [[0, 0]], rounds = [[0, 0]];
    let total = 0;
    all.forEach((position, i) => {
      total += numberOf(position.emitted_nats) || 0;
      spent.push([i + 1, total]);
      const last = steps[steps.length - 1];
      if (last && last.step === position.step) [last.to, last.y] = [i + 1, last.y + 1];
      else steps.push({ step: position.step, from: i, to: i + 1, y: 1 });
    });
    steps.forEach((step, i) => {
      running.push([step.to, step.to / (i + 1)]);
      rounds.push([step.from, i + 1], [step.to, i + 1]);
    });
    if (running.length > 1) running[0] = [0, running[1][1]];
    const count = all.length, emitted = all.filter((one) => one.emitted !== false).length, limited = Number.isFinite(budget);
    const mean = steps.length ? count / steps.length : 0;
    const top = niceTop(Math.max(total, limited ? budget : 0, 0.1));
    plot(figures[0], {
      title: limited ? `nats spent: ${nats(total)} of ${nats(budget)}` : `nats spent: ${nats(total)}`,
      summary: `Nats spent over the answer: ${nats(total)}` + (limited ? ` of a budget of ${nats(budget)}` : ""),
      xMax: count, yMax: top, xLabel: "tokens of the answer", at,
      lines: [{ points: spent, className: "ca-line", step: true }],
      levels: limited ? [{ y: budget, text: "budget" }] : [],
    });
    const most = Math.max(2, ...steps.map((step) => step.y));
    plot(figures[1], {
      title: `tokens per step: ${mean.toFixed(2)}`,
      summary: `Acceptance length over the answer; on average ${mean.toFixed(2)} tokens per step`,
      xMax: count, yMax: niceTop(most), whole: true, xLabel: "tokens of the answer", at,
      bars: steps, lines: [{ points: running, className: "ca-line" }],
    });
    plot(figures[2], {
      title: `steps: ${steps.length} for ${emitted} tokens`,
      summary: `Steps: ${steps.length}, each a forward pass of the target; plain decoding takes ${emitted}`,
      xMax: count, yMax: niceTop(Math.max(count, 2)), whole: true, xLabel: "tokens of the answer", at,
      lines: [{ points: [[0, 0], [emitted, emitted]], className: "ca-plain" }, { points: rounds, className: "ca-line" }],
    });
  }

  scope.drawCactusCharts = drawCactusCharts;
})(typeof window === "undefined" ? globalThis : window);
