// Choosing a rule and its knobs. What there is to choose from comes from the server.

import { freshId, make, quote, sentence, short, spells, withCode } from "./dom.js";

const STEPS = 1000;
/** The groups of rules, as in the docs. */
const KINDS = {
  exact: "Keep the target's distribution",
  truncation: "Truncate: keep what the target finds likely enough",
  collaboration: "Collaborate: both models have a share",
  other: "Others",
};
const kindOf = (rule) => (Object.hasOwn(KINDS, rule.kind) ? rule.kind : "other");

/** A slider, logarithmic over the knob's range, with a field for exact values; or a choice of words. */
class Knob {
  constructor(knob, value, onChange) {
    this.knob = knob;
    this.onChange = onChange;
    const id = freshId("knob");
    const help = `${id}-help`;
    this.field =
      knob.kind === "str"
        ? make("select", { id, "aria-describedby": help }, ...knob.choices.map((word) => make("option", {}, word)))
        : make("input", { id, type: "text", inputmode: "decimal", autocomplete: "off", "aria-describedby": help });
    this.slider = knob.range
      ? make("input", { type: "range", min: 0, max: STEPS, step: 1, "aria-label": `${knob.name}, roughly` })
      : null;
    this.element = make(
      "div",
      { class: "knob" },
      make("label", { for: id }, knob.name, ...(knob.unit ? [" ", make("span", { class: "unit" }, knob.unit)] : [])),
      make("div", { class: "entry" }, this.slider, this.field),
      make("p", { class: "help", id: help }, ...withCode(sentence(knob.doc))),
    );
    this.set(value);
    this.field.addEventListener("input", () => {
      this.showOnSlider();
      onChange();
    });
    this.slider?.addEventListener("input", () => {
      this.field.value = this.at(Number(this.slider.value) / STEPS);
      onChange();
    });
  }

  /** The text of the knob at a share of its range, from 0 to 1. */
  at(share) {
    const [low, high] = this.knob.range;
    const value = low * (high / low) ** share;
    return this.knob.kind === "int" ? String(Math.round(value)) : short(value).replace("e-", "e-");
  }

  set(value) {
    this.field.value = value ?? "";
    this.showOnSlider();
  }

  showOnSlider() {
    if (!this.slider) return;
    const [low, high] = this.knob.range;
    const value = Math.min(Math.max(Number(this.field.value) || low, low), high);
    this.slider.value = Math.round((STEPS * Math.log(value / low)) / Math.log(high / low));
    this.slider.setAttribute("aria-valuetext", this.field.value);
  }

  /** "name=value" where that differs from the default, else nothing. */
  get spelling() {
    const text = this.field.value.trim();
    const isDefault = text === "" || (this.knob.default !== null && text === String(this.knob.default));
    return isDefault ? [] : [`${this.knob.name}=${text}`];
  }
}

/** A rule and its knobs. Options: label, start (a preset's spelling), brief (no summary), onChange. */
export class RuleChooser {
  constructor(element, rules, { label, start, brief = false, onChange = () => {} }) {
    this.rules = rules;
    this.onChange = onChange;
    this.brief = brief;
    const id = freshId("rule");
    this.select = make("select", { id, class: "rule" });
    for (const [kind, label] of Object.entries(KINDS)) {
      const options = rules.filter((rule) => kindOf(rule) === kind).flatMap((rule) =>
        rule.presets.map((preset) => make("option", { value: preset.spelling }, titleOf(rule, preset))));
      if (options.length) this.select.append(make("optgroup", { label }, ...options));
    }
    this.about = make("p", { class: "help" });
    this.place = make("div", { class: "knobs" });
    this.spelled = make("code", { class: "spelling" });
    this.guarantee = make("p", { class: "guarantee" });
    element.append(
      make("div", { class: "choice" }, make("label", { for: id }, label), this.select, this.spelled),
      ...(brief ? [] : [this.about]),
      this.place,
      ...(brief ? [] : [this.guarantee]),
    );
    this.select.addEventListener("change", () => this.showPreset());
    this.select.value = start;
    this.showPreset();
  }

  showPreset() {
    this.rule = this.rules.find((rule) => rule.presets.some((preset) => preset.spelling === this.select.value));
    const preset = this.rule.presets.find((each) => each.spelling === this.select.value);
    this.knobs = this.rule.knobs
      .filter((knob) => !(knob.range && preset.values[knob.name] === null)) // another preset has it
      .map((knob) => new Knob(knob, preset.values[knob.name], () => this.changed()));
    const seldom = this.knobs.filter((knob) => !knob.slider);
    const more = make("details", { class: "more" }, make("summary", {}, "More knobs"), ...seldom.map((k) => k.element));
    this.place.replaceChildren(
      ...this.knobs.filter((knob) => knob.slider).map((knob) => knob.element),
      ...(seldom.length ? [more] : []),
    );
    this.changed();
  }

  /** Choose the rule of a spelling, with its values; return a sentence for each part that cannot be had here. */
  set(spelling) {
    // a rule's name ends where its knobs begin; one from outside is a path, which holds a colon
    const known = this.rules.find((rule) => [":", ","].some((end) => `${spelling}:`.startsWith(rule.name + end)));
    if (!known) return [`there is no rule ${quote(spelling)}`];
    const { name, presets } = known;
    const rest = spelling.slice(name.length + 1);
    const given = new Map(rest.split(",").filter(Boolean).map((part) => part.split(/=(.*)/s)));
    const fits = (preset) => [...given].filter(([key, text]) => spells(preset.values[key], text)).length;
    const named = (preset) => [...given.keys()].filter((key) => preset.values[key] !== null).length;
    const best = [...presets].sort((a, b) => named(b) - named(a) || fits(b) - fits(a))[0];
    this.select.value = best.spelling;
    this.showPreset();
    const problems = [];
    for (const [key, text = ""] of given) {
      const knob = this.knobs.find((each) => each.knob.name === key);
      const before = knob?.field.value;
      knob?.set(text);
      if (knob && knob.field.value === text) continue;
      knob?.set(before);
      problems.push(`the rule ${quote(name)} cannot have ${quote(`${key}=${text}`)} here`);
    }
    for (const { name: needed, required } of this.rule.knobs) {
      if (required && !given.has(needed)) problems.push(`the rule ${quote(name)} needs a value of ${needed}`);
    }
    this.changed();
    return problems;
  }

  /** The knob that a curve is drawn over. */
  get main() {
    return this.knobs.find((knob) => knob.slider) ?? null;
  }

  /** The rule's spelling, with another text for its main knob if one is given. */
  spelling(mainText = null) {
    const parts = this.knobs.flatMap((knob) =>
      mainText !== null && knob === this.main ? [`${knob.knob.name}=${mainText}`] : knob.spelling,
    );
    return parts.length ? `${this.rule.name}:${parts.join(",")}` : this.rule.name;
  }

  changed() {
    this.spelled.textContent = this.spelling();
    this.about.textContent = this.rule.summary;
    const preset = this.rule.presets.find((each) => this.promises(each));
    this.guarantee.replaceChildren(
      ...(preset ? [make("strong", {}, "Guaranteed at each position: "), preset.guarantee] : []),
    );
    this.onChange();
  }

  /** Whether a preset's guarantee is that of the knobs as they are: the same words, the same numbers left out. */
  promises(preset) {
    return this.rule.knobs.every((knob) => {
      const text = this.knobs.find((each) => each.knob.name === knob.name)?.field.value.trim() ?? "";
      const theirs = preset.values[knob.name];
      return knob.kind === "str" ? text === theirs : (text === "") === (theirs === null);
    });
  }
}

/** The rule's title, with the words in which this preset differs from the rule's first one. */
function titleOf(rule, preset) {
  const first = rule.presets[0].values;
  const words = Object.entries(preset.values)
    .filter(([name, value]) => value !== null && value !== first[name])
    .map(([name, value]) => (typeof value === "string" ? value : name.replace("_", " ")));
  return words.length ? `${rule.title}, ${words.join(", ")}` : rule.title;
}
