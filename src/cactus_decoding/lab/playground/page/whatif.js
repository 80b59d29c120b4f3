// What another rule, or another knob, would have done at a position of an answer: worked out by the server from the
// rows of both models that it keeps, exactly, each time a knob moves.

import { whatIf } from "./api.js";
import { KnobChart } from "./charts.js";
import { make, numberOf, percent, quoted, short } from "./dom.js";
import { RuleChooser } from "./knobs.js";

const HEADS = [
  ["token", "the likeliest tokens here"],
  ["target", "the target's probability"],
  ["draft", "the draft's probability"],
  ["did", "probability that the rule that decided here emitted it"],
  ["would", "probability that the rule chosen here would emit it"],
];
const POINTS = 33;
const LEAST = 5e-4; // what is less likely than this shows no bar
const NUMBERS = [
  ["acceptance_prob", "keeps this draft", "probability that the drafted token is kept"],
  ["acceptance", "keeps a draft", "probability that whatever the draft proposes here is kept"],
  ["emitted_nats", "nats", "KL of what is emitted to the target; log-probability given up for relaxed_greedy"],
  ["tv", "total variation", "largest change of any event's probability here"],
  ["max_log_ratio", "log ratio, at most", "log of the largest ratio of what is emitted to the target, in nats"],
];

export class WhatIf {
  constructor(rules) {
    this.element = make("section", { class: "what-if", "aria-labelledby": "what-if-title", hidden: true });
    this.title = make("h2", { id: "what-if-title" });
    this.said = make("p", { class: "help" });
    this.problem = make("p", { class: "message error", role: "alert", hidden: true });
    const knobs = make("div", { class: "what-if-knobs" });
    this.numbers = make("table", { class: "numbers" });
    this.bars = make("div", { class: "bars" });
    this.curve = make("div", { class: "curve" });
    this.body = make("div", { class: "what-if-body" }, knobs, this.bars, this.numbers, this.curve);
    this.element.replaceChildren(this.title, this.said, this.problem, this.body);
    this.chooser = new RuleChooser(knobs, rules, {
      label: "What if the rule were",
      start: rules[0].presets[0].spelling,
      brief: true,
      onChange: () => this.ask(),
    });
  }

  /** Show a position of a run: `rule` is the one that decided there. */
  show(run, session, position, rule) {
    const [name] = rule.split(":");
    const isNew = this.run !== run || this.session !== session;
    Object.assign(this, { run, session, position, rule });
    this.element.hidden = false;
    this.title.replaceChildren(`What if, at token ${position.place + 1}?`);
    const drafted = position.drafted_id !== null && position.drafted_id !== undefined;
    this.body.hidden = !drafted;
    this.problem.hidden = true;
    this.points = null;
    if (!drafted) {
      this.said.textContent =
        "Nothing was drafted at this token: it came from the target itself, so no rule had a say and nothing was spent.";
      return;
    }
    this.said.replaceChildren(
      "The draft proposed ", quoted(position.drafted), " here, and ", make("code", {}, position.rule), ` ${position.fate === "recovered" ? "rejected" : "kept"} it. `,
      "Choose a rule and move its knob: what would be emitted here, and at what cost?",
    );
    if (isNew || this.chooser.rule.name !== name) this.chooser.set(rule); // which asks
    else this.ask();
  }

  hide() {
    this.element.hidden = true;
    this.run = null;
  }

  /** Ask about the rule as it is chosen now; whatever changes while an answer is on its way is asked about next. */
  async ask() {
    this.changed = true;
    if (this.asking) return;
    this.asking = true;
    this.element.setAttribute("aria-busy", "true");
    while (this.changed) {
      this.changed = false;
      await this.askOnce();
    }
    this.asking = false;
    this.element.setAttribute("aria-busy", "false");
  }

  async askOnce() {
    if (!this.run || this.element.hidden || this.body.hidden) return;
    const { run, session, position } = this;
    try {
      const [now, before] = await whatIf(run, session, position.place, [this.chooser.spelling(), position.rule]);
      if (position !== this.position) return;
      this.problem.hidden = true;
      this.draw(now, before);
      await this.askCurve(run, session, position);
    } catch (error) {
      this.problem.textContent = error.message;
      this.problem.hidden = false;
    }
  }

  /** Ask once for the curve over the whole range of the main knob: it stays while only that knob moves. */
  async askCurve(run, session, position) {
    const main = this.chooser.main;
    const key = `${run} ${session} ${position.place} ${this.chooser.spelling("*")}`;
    if (this.changed || this.points?.key === key) return;
    this.points = null;
    if (main) {
      const grid = gridOf(main);
      const rules = grid.map((text) => this.chooser.spelling(text));
      const points = (await whatIf(run, session, position.place, rules)).map((each, index) => ({
        knob: Number(grid[index]), nats: numberOf(each.emitted_nats), acceptance: each.acceptance,
      }));
      this.points = { key, points };
    }
    this.drawCurve();
  }

  draw(now, before) {
    this.numbers.replaceChildren(
      make("thead", {}, make("tr", {}, make("th", {}, "the rule"), make("th", {}, "did"),
        make("th", {}, "would"))),
      make("tbody", {}, ...NUMBERS.map(([name, label, help]) =>
        make("tr", {}, make("th", { scope: "row", title: help }, label), make("td", {}, short(numberOf(before[name]))),
          make("td", { class: "now" }, short(numberOf(now[name])))))),
    );
    this.drawBars(now);
    this.drawCurve();
  }

  drawCurve() {
    const main = this.chooser.main;
    if (!main || !this.points) {
      this.curve.replaceChildren();
      return;
    }
    const chart = new KnobChart(main.knob.name, main.knob.unit);
    chart.draw(this.points.points, Number(main.field.value));
    this.curve.replaceChildren(chart.element);
  }

  /** For each candidate a row: bars of both models, of what was emitted, and of what would be. */
  drawBars(now) {
    const { candidates, drafted_id: drafted } = this.position;
    const bar = (value, kind) => {
      const inner = make("span", { class: `fill ${kind}` });
      inner.style.width = `${Math.max(100 * (value ?? 0), value > 0 ? 0.5 : 0)}%`;
      return make("span", { class: "bar" }, inner, make("span", { class: "value" }, percent(value)));
    };
    const head = HEADS.map(([text, help]) => make("span", { class: "head", title: help }, text));
    const shown = (candidate, index) =>
      Math.max(candidate.target, candidate.draft ?? 0, candidate.emitted, now.emitted[index]) >= LEAST ||
      candidate.token_id === drafted;
    const rowOf = (candidate, index) => [
      make("span", { class: `token${candidate.token_id === drafted ? " drafted" : ""}` }, quoted(candidate.token)),
      bar(candidate.target, "target"),
      bar(candidate.draft, "draft"),
      bar(candidate.emitted, "emitted"),
      bar(now.emitted[index], "would"),
    ];
    const rows = candidates.flatMap((each, index) => (shown(each, index) ? rowOf(each, index) : []));
    this.bars.replaceChildren(...head, ...rows);
  }
}

/** The texts of a knob at even distances over its range. */
function gridOf(knob) {
  const texts = Array.from({ length: POINTS }, (_, index) => knob.at(index / (POINTS - 1)));
  return [...new Set(texts)];
}

