// The form beside the rules: prompt, sampling, proposals, budget, models. Names, defaults and help come from the
// server; this file says only where they stand.

import { freshId, make, quote, sentence, withCode } from "./dom.js";

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

/** What the text of a field means: a number where it is one, so that the server's errors speak of what was typed. */
function typed(field) {
  const text = field.value.trim();
  if (text === "") return undefined;
  return Number.isNaN(Number(text)) ? text : Number(text);
}

/** Leave out what was left empty. */
const given = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined));

/** Prompt and settings. `controls` are the fields by the names that links know them by. */
export class Settings {
  constructor(form, promptPart, element, onChange) {
    this.form = form;
    this.onChange = onChange;
    this.buildPrompt(promptPart);
    element.append(this.protection(), this.sampling(), this.speculation(), this.budget());
    if (form.models || form.pair.target !== null) element.append(this.models());
    this.controls = {
      prompt: this.prompt,
      ...this.fields,
      max_new_tokens: this.maxNewTokens,
      seed: this.seed,
      num_speculative_tokens: this.proposals,
      tree: this.tree,
      verification: this.verification,
      budget: this.budgetKind,
      limit: this.budgetValue,
      expected_tokens: this.expectedTokens,
      ...this.protectionFields,
      ...(form.models ? { target: this.target, draft: this.draft } : {}),
      ...(this.chat ? { chat: this.chat, system: this.system } : {}),
    };
    element.addEventListener("input", onChange);
    element.addEventListener("change", onChange);
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

  /** Where no rule may relax. The field that protects stands beside the rule: it is what makes one harmless. */
  protection() {
    const { protection, protected_sets: sets, start } = this.form;
    const [pattern, threshold] = protection;
    const list = make("datalist", { id: "protected-sets" }, ...sets.map((name) => make("option", { value: name })));
    const fields = {
      protect: input(start.protect, { list: "protected-sets" }),
      protect_threshold: decimal(threshold.default),
      lossless_tokens: decimal("0"),
      relax_after: input(""),
      relax_before: input(""),
    };
    this.protectionFields = fields;
    return group(
      "Protection",
      row("Protected tokens", fields.protect,
        `${pattern.doc} Empty protects none.`),
      list,
      row("Threshold", fields.protect_threshold, threshold.doc),
      row("Lossless at first", fields.lossless_tokens, "The first tokens of an answer are not relaxed.", "tokens"),
      row("Relax only behind", fields.relax_after, "A mark in the text, such as ``<think>``; empty relaxes everywhere."),
      row("and before", fields.relax_before, "The mark that ends it, such as ``</think>``."),
    );
  }

  sampling() {
    const { sampling, limits } = this.form;
    this.fields = {};
    const rows = sampling.map((knob) => {
      this.fields[knob.name] = decimal(knob.default);
      return row(knob.name.replace("_", "-"), this.fields[knob.name], knob.doc);
    });
    this.maxNewTokens = decimal(Math.min(256, limits.new_tokens));
    this.seed = decimal(0);
    return group(
      "Sampling",
      ...rows,
      row("Longest answer", this.maxNewTokens, `From 1 to ${limits.new_tokens}.`, "tokens"),
      row("Seed", this.seed, "The same seed gives the same response on the same machine; empty draws one."),
    );
  }

  speculation() {
    const { draft_lengths: lengths, trees, verifications } = this.form;
    const list = make("datalist", { id: "draft-lengths" });
    const shapes = make("datalist", { id: "trees" }, ...trees.map((name) => make("option", { value: name })));
    for (const name of lengths) if (name !== "fixed") list.append(make("option", { value: name }));
    this.proposals = input(String(this.form.start.num_speculative_tokens), { list: "draft-lengths" });
    this.tree = input("", { list: "trees" });
    this.verification = choice(Object.keys(verifications).map((word) => [word, word]));
    return group(
      "Proposals",
      row(
        "Proposals per step",
        this.proposals,
        "A number; 0 is plain sampling from the target. Or ``confidence:threshold=0.4`` to stop where the draft is " +
          "unsure, or ``auto`` for what pays on this machine, which may be none: a rule relaxes nothing then.",
      ),
      list,
      row(
        "Tree",
        this.tree,
        "Instead, such as ``static=3.2.1``, where 3 tokens may follow the text, 2 each of these and 1 each of those; " +
          "``best_first`` and ``adaptive`` grow. Empty proposes chains.",
      ),
      shapes,
      row(
        "Verification",
        this.verification,
        sentence(Object.entries(verifications).map(([word, does]) => `\`\`${word}\`\`: ${does}`).join("; ")),
      ),
    );
  }

  budget() {
    const said = Object.fromEntries(this.form.budget.map((knob) => [knob.name, knob]));
    this.budgetKind = choice([["", "none"], ["nats", "in nats"], ["max_shift", "as the largest shift"]]);
    this.budgetValue = decimal("0.02");
    this.expectedTokens = decimal("");
    const value = row("Limit", this.budgetValue, "");
    const spread = row("Spread over", this.expectedTokens, said.expected_tokens.doc, "tokens");
    const help = value.querySelector(".help");
    this.showBudget = () => {
      const kind = this.budgetKind.value;
      value.hidden = spread.hidden = kind === "";
      if (kind) help.replaceChildren(...withCode(sentence(said[kind].doc)));
    };
    this.budgetKind.addEventListener("change", this.showBudget);
    this.showBudget();
    return group(
      "Budget",
      row("Budget for the answer", this.budgetKind, "Where the rule would overspend it, the lossless rule takes over."),
      value,
      spread,
    );
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
    const { temperature, top_k, top_p, min_p } = Object.fromEntries(
      Object.entries(this.fields).map(([name, field]) => [name, typed(field)]),
    );
    return temperature === 0 || top_k > 0 || top_p < 1 || min_p > 0;
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
    this.showBudget();
    this.onChange();
    return problems;
  }

  /** What the server takes. */
  request(rules) {
    const kind = this.budgetKind.value;
    const limit = { [kind]: typed(this.budgetValue), expected_tokens: typed(this.expectedTokens) };
    const { protect, protect_threshold, lossless_tokens, relax_after, relax_before } = this.protectionFields;
    const pattern = protect.value.trim() || undefined;
    const tree = this.tree.value.trim() || undefined;
    const marks = [relax_after.value, relax_before.value];
    return given({
      prompt: this.prompt.value,
      rules,
      target: this.target?.value.trim() || undefined,
      draft: this.draft?.value.trim() || undefined,
      chat: this.chat?.value === "plain" ? false : undefined,
      system: this.system?.value.trim() || undefined,
      ...Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, typed(field)])),
      num_speculative_tokens: (!tree && this.proposals.value.trim()) || undefined,
      tree,
      verification: this.verification.value,
      budget: kind ? given(limit) : undefined,
      protect: pattern,
      protect_threshold: pattern && typed(protect_threshold),
      lossless_tokens: typed(lossless_tokens),
      relax_within: marks.some(Boolean) ? marks : undefined,
      max_new_tokens: typed(this.maxNewTokens),
      seed: typed(this.seed),
    });
  }
}
