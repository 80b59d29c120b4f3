// One rule's answer: its metrics, and its tokens, cards and pictures, which CactusAnswer draws (answer.js, the component
// that trace pages are made of).

import { traceAddress } from "./api.js";
import { make, nats, short } from "./dom.js";

const METRICS = [
  ["acceptance_length", "acceptance length", "tokens per pass of the target"],
  ["relaxed", "relaxed tokens", "kept by the rule where the lossless test would have rejected them"],
  ["protected", "protected", "positions where the rule was kept away, and the lossless rule decided"],
  ["spent", "nats spent", "exact divergence to the target, summed over the answer"],
  ["tokens_per_second", "tokens per second", "without the time of tracing"], // last: two sessions share a machine
];
/** By how much a budget lets the probability of an event move: the bounds of Pinsker and of Bretagnolle and Huber. */
const shiftOf = (budget) => `${short(100 * Math.min(Math.sqrt(budget / 2), Math.sqrt(1 - Math.exp(-budget))), 2)}\u00a0%`;
/** What the nats that were spent mean, above temperature 0: by what a budget promises, or would promise. */
const meaningOf = ({ budget_nats: budget, temperature }, spent) => {
  if (!(temperature > 0)) return "";
  if (Number.isFinite(budget)) return `of ${nats(budget)}: no event moves by more than ${shiftOf(budget)}`;
  return spent > 0 ? `as a budget: no event moves by more than ${shiftOf(spent)}` : "";
};
const STATES = { stop: "finished", length: "cut at the longest answer", stopped: "stopped" };

export class SessionView {
  /** `header` is the trace's; `legend` is a place for it, or false; `onSelect(position)` hears what is looked at, or null. */
  constructor(index, header, legend, onSelect) {
    Object.assign(this, { index, header, steps: 0, onSelect });
    this.shown = legend === undefined ? METRICS : METRICS.slice(0, -1);
    this.state = make("span", { class: "state" }, "generating");
    this.metrics = make("dl", { class: "metrics" });
    this.whatIfPlace = make("div", { class: "what-if-place" });
    this.downloads = make("p", { class: "downloads" });
    const answer = make("div");
    this.answer = new CactusAnswer(answer, {
      budget: header.budget_nats,
      rule: header.rule,
      label: `Answer under ${header.rule}`,
      legend: legend !== false,
      parts: { legend },
      onSelect: (place, position) => this.selected(position),
    });
    this.answer.charts.before(this.whatIfPlace);
    this.element = make(
      "section",
      { class: "panel session", "aria-label": `Rule ${header.rule}` },
      make("h2", {}, make("code", {}, header.rule), header.policy && ` ${header.policy}`, this.state),
      this.metrics,
      answer,
      this.downloads,
    );
    this.show({});
  }

  /** Take a step's positions, and its tree if it proposed one. */
  append(positions, trees, metrics) {
    this.steps += 1;
    this.answer.append(positions, trees);
    this.show(metrics);
  }

  end(event, run) {
    this.state.textContent = STATES[event.finish_reason] ?? "";
    this.answer.finish(event);
    this.show(event.metrics);
    const link = (kind, text) => make("a", { href: traceAddress(run, this.index, kind), download: "" }, text);
    this.downloads.replaceChildren("Trace: ", link("html", "a page to share"), " · ", link("jsonl", "JSON Lines"));
  }

  /** The answer's tokens, without what was verified after its end. */
  get emitted() {
    return this.answer.positions.filter((position) => position.emitted);
  }

  show(metrics) {
    const spent = this.answer.positions.reduce((sum, position) => sum + Number(position.emitted_nats ?? 0), 0);
    const values = { ...metrics, spent };
    this.metrics.replaceChildren(
      make("div", { class: "step-count" },
        make("dt", { title: "forward passes of the target; plain decoding takes one for each token" }, "steps"),
        make("dd", {}, String(this.steps), make("small", {}, ` for ${this.emitted.length} tokens`))),
      ...this.shown.map(([name, label, help]) =>
        make("div", {}, make("dt", { title: help }, label), make("dd", {}, (name === "spent" ? nats : short)(values[name]),
          name === "spent" ? make("small", { class: "meaning" }, meaningOf(this.header, spent)) : null))),
    );
  }

  selected(position) {
    const extra = this.answer.card.querySelector(".ca-extra");
    if (position && extra) {
      const go = make("button", { type: "button", class: "go" }, "What if the rule were another?");
      go.addEventListener("click", () => this.whatIfPlace.querySelector("select")?.focus());
      extra.append(go);
    }
    this.onSelect(position);
  }
}

/** Where two answers part: the first place where their tokens differ, or null; one may also be the beginning of the other. */
export function partingOf(left, right, bothEnded) {
  const [a, b] = [left.emitted, right.emitted];
  const shared = Math.min(a.length, b.length);
  for (let place = 0; place < shared; place += 1) if (a[place].token_id !== b[place].token_id) return place;
  return bothEnded && a.length !== b.length ? shared : null;
}
