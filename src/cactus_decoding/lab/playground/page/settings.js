// The form beside the rules: prompt, settings, models. The settings come from the server, which has them from the
// fields of a request: name, kind, start, help, and what each needs. This file says nothing of any of them.

import { freshId, make, quote, sentence, spells, withCode } from "./dom.js";

/** A label, a control and a line of help. */
function row(label, control, help, unit = "") {
  const id = freshId("field");
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-help`);
  return make(
    "div",
    { class: "knob" },
    make("label", { for: id }, label, ...(unit ? [" ", make("span", { class: "unit" }, unit)] : [])),
    make("div", { class: "entry" }, control),
    make("p", { class: "help", id: `${id}-help` }, ...withCode(sentence(help))),
  );
}

const input = (value, attributes = {}) =>
  make("input", { type: "text", autocomplete: "off", spellcheck: "false", value, ...attributes });
const decimal = (value, attributes = {}) => input(value, { inputmode: "decimal", ...attributes });
const choice = (options) =>
  make("select", {}, ...options.map(([value, label]) => make("option", { value }, label)));
const group = (title, ...rows) => make("details", { class: "part" }, make("summary", {}, title), ...rows);
const MOST_SHOWN = 60;

/** A setting of a request as the server declares it: one control, or one for each of its parts. */
class Field {
  constructor(declared) {
    Object.assign(this, declared);
    this.parts = (this.parts.length ? this.parts : [""]).map((part) => [
      part ? `${this.name}_${part.toLowerCase()}` : this.name,
      this.control(),
    ]);
    const list = this.suggestions.length
      ? make("datalist", { id: freshId("suggestions") }, ...this.suggestions.map((value) => make("option", { value })))
      : null;
    if (list) for (const [, control] of this.parts) control.setAttribute("list", list.id);
    this.rows = this.parts.map(([name, control]) => row(name.replaceAll("_", "-"), control, this.doc, this.unit));
    if (list) this.rows.push(list);
  }

  control() {
    if (this.choices.length) return choice(this.choices.map((word) => [word, word]));
    return this.kind === "str" ? input(this.start) : decimal(this.start);
  }

  /** What the text means: a number where it is one, so that the server's errors speak of what was typed. */
  get value() {
    const texts = this.parts.map(([, control]) => control.value);
    if (texts.every((text) => text.trim() === "")) return undefined;
    if (texts.length > 1) return texts;
    if (this.several) return [texts[0]];
    const text = texts[0].trim();
    return this.kind === "str" || Number.isNaN(Number(text)) ? text : Number(text);
  }
}

/** Leave out what was left empty. */
const given = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

/** Prompt and settings. `controls` are the fields by the names that links know them by. */
export class Settings {
  constructor(form, promptPart, element, onChange) {
    this.form = form;
    this.onChange = onChange;
    this.buildPrompt(promptPart);
    this.fields = form.settings.flatMap((part) => part.fields.map((declared) => new Field(declared)));
    let next = 0;
    this.groups = form.settings.map(({ title, fields }) => {
      const own = this.fields.slice(next, next + fields.length);
      next += fields.length;
      const chosen = make("span", { class: "chosen" });
      const made = group(title, ...own.flatMap((field) => field.rows));
      made.firstChild.append(" ", chosen);
      element.append(made);
      return { own, chosen };
    });
    if (form.models || form.pair.target !== null) element.append(this.models());
    this.controls = {
      prompt: this.prompt,
      ...Object.fromEntries(this.fields.flatMap((field) => field.parts)),
      ...(form.models ? { target: this.target, draft: this.draft } : {}),
      ...(this.chat ? { chat: this.chat, system: this.system } : {}),
    };
    for (const event of ["input", "change"]) element.addEventListener(event, () => this.changed());
    this.showChosen();
  }

  changed() {
    this.showChosen();
    this.onChange();
  }

  /** Name what is not as usual in the heading of each group, which may be closed. */
  showChosen() {
    const values = this.given;
    for (const { own, chosen } of this.groups) {
      const set = own.filter(({ name, default: usual }) => Object.hasOwn(values, name) && !spells(usual, String(values[name])));
      const text = set.map((field) => `${field.name.replaceAll("_", "-")} ${values[field.name]}`).join(", ");
      chosen.textContent = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}…` : text;
    }
  }

  buildPrompt(part) {
    const { examples, limits, pair } = this.form;
    const bundled = pair.target === null;
    this.prompt = make("textarea", {
      id: "prompt",
      rows: 6,
      "aria-describedby": "prompt-help",
      placeholder: bundled ? "A word problem" : "A text to continue",
    });
    part.append(make("label", { for: "prompt" }, "Prompt"), this.prompt);
    const help = make("p", { class: "help", id: "prompt-help" });
    if (bundled) {
      this.prompt.value = examples[0].question;
      let shown = 0;
      const another = make("button", { type: "button", id: "another" }, "Another example");
      another.addEventListener("click", () => {
        shown = (shown + 1) % examples.length;
        this.prompt.value = examples[shown].question;
      });
      part.append(another);
      help.append(
        "The bundled models solve word problems of the kinds they were trained on, and know nothing else. " +
          "The examples are such as they usually solve. ",
      );
    }
    help.append(`At most ${limits.prompt_characters} characters.`);
    part.append(help);
  }

  models() {
    this.target = input("", { placeholder: this.form.pair.target ?? "bundled" });
    this.draft = input("", { placeholder: this.form.pair.draft ?? "bundled" });
    this.chat = choice([["", "the chat template, if there is one"], ["plain", "plain text"]]);
    this.system = input("", { placeholder: "the template's own" });
    const named = [
      row("Target", this.target,
        "A folder or a GGUF file (``model.gguf``) on this machine, or a name on the Hugging Face hub; empty for the default."),
      row("Draft", this.draft,
        "Likewise, or ``suffix`` to look proposals up in the text, as for a target alone. Code of models is never run."),
    ];
    return group(
      "Models",
      ...(this.form.models ? named : []),
      row("Prompt by", this.chat, "How models other than the bundled one are asked: chat models want their template."),
      row("System message", this.system, "What a chat template puts before the prompt, where it has a place for it."),
    );
  }

  /** Whether some of the least likely tokens are cut off. */
  get truncates() {
    const { temperature, top_k, top_p, min_p } = this.given;
    return temperature === 0 || top_k > 0 || top_p < 1 || min_p > 0;
  }

  /** What the fields say, by names, without what is empty or belongs to a setting that is. */
  get given() {
    const values = given(Object.fromEntries(this.fields.map((field) => [field.name, field.value])));
    for (const { name, needs } of this.fields) if (needs && !Object.hasOwn(values, needs)) delete values[name];
    if (values.tree) delete values.num_speculative_tokens;
    return values;
  }

  /** The text of every control. */
  get values() {
    return Object.fromEntries(Object.entries(this.controls).map(([name, control]) => [name, control.value]));
  }

  /** Fill controls with texts; return a sentence for each that cannot be. */
  set(values) {
    const problems = [];
    for (const [name, text] of Object.entries(values)) {
      const control = Object.hasOwn(this.controls, name) ? this.controls[name] : null;
      const before = control?.value;
      if (control) control.value = text;
      if (!control) problems.push(`this page has no setting ${quote(name)}`);
      else if (control.value !== text.replaceAll(/\r\n?/g, "\n")) {
        control.value = before;
        problems.push(`${name} cannot be ${quote(text)}`);
      }
    }
    this.changed();
    return problems;
  }

  /** What the server takes. */
  request(rules) {
    return given({
      prompt: this.prompt.value,
      rules,
      target: this.target?.value.trim() || undefined,
      draft: this.draft?.value.trim() || undefined,
      chat: this.chat?.value === "plain" ? false : undefined,
      system: this.system?.value.trim() || undefined,
      ...this.given,
    });
  }
}
