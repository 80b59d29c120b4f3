// The playground's page: wires the form, the answers and the what-if panel together.

import { check, fetchForm, generate, stop } from "./api.js";
import { make, quoted } from "./dom.js";
import { RuleChooser } from "./knobs.js";
import { addressOf, copy, fromText, keep, kept, takeFromAddress, toText } from "./link.js";
import { SessionView, partingOf } from "./session.js";
import { Settings } from "./settings.js";
import { WhatIf } from "./whatif.js";

const SECOND = "lossless";
const byId = (id) => document.getElementById(id);

class Page {
  constructor(form) {
    this.form = form;
    this.sessions = [];
    this.settings = new Settings(form, byId("prompt-part"), byId("settings"), () => this.advise());
    this.advice = make("p", { class: "message advice", hidden: true });
    this.first = new RuleChooser(byId("rule-part"), form.rules, {
      label: "Rule", start: SECOND, onChange: () => this.advise(),
    });
    this.first.set(form.start.rule);
    byId("rule-part").append(this.advice);
    this.buildSecond(byId("compare-part"));
    this.whatIf = new WhatIf(form.rules);
    byId("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.generate();
    });
    byId("form").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.generate();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("copy-link").addEventListener("click", async () => this.say(await copy(addressOf(this.text(true)))));
    this.compare.checked = form.compare;
    this.showSecond();
    this.restore();
    for (const event of ["input", "change", "click"]) byId("form").addEventListener(event, () => keep(this.text()));
    addEventListener("hashchange", () => this.follow(takeFromAddress()));
    this.advise();
  }

  buildSecond(part) {
    this.compare = make("input", { type: "checkbox", id: "compare" });
    const place = make("div", { hidden: true });
    part.append(make("label", { class: "check" }, this.compare, "Compare with a second rule, side by side"), place);
    this.second = new RuleChooser(place, this.form.rules, {
      label: "Second rule", start: SECOND, onChange: () => this.advise(),
    });
    this.showSecond = () => {
      place.hidden = !this.compare.checked;
      this.advise();
    };
    this.compare.addEventListener("change", this.showSecond);
  }

  /** The form as text; for a link with the seed that was drawn, if the field leaves it open. */
  text(forLink = false) {
    const values = this.settings.values;
    if (forLink && values.seed.trim() === "" && this.seed !== undefined) values.seed = String(this.seed);
    return toText(values, this.rules);
  }

  /** Fill the form as the address says, or else as this tab keeps it. */
  restore() {
    const link = takeFromAddress();
    if (link) this.follow(link);
    else this.tell("Not all of the form could be restored", this.fill(kept()));
  }

  /** Fill the form as a link says, and say what of it cannot be. */
  async follow(link) {
    if (!link) return;
    byId("problem").hidden = true;
    const problems = this.fill(link);
    keep(this.text());
    try {
      await check(this.settings.request(this.rules));
    } catch (error) {
      problems.push(error.message);
    }
    this.tell("Not all of this link could be followed", problems);
  }

  /** Fill the form from a text; return a sentence for each part that cannot be. */
  fill(text) {
    if (!text) return [];
    const { values, rules, problems } = fromText(text);
    problems.push(...this.settings.set(values));
    if (rules.length > 2) problems.push(`${rules.length} rules are too many: two can be compared`);
    if (rules.length > 0) problems.push(...this.first.set(rules[0]));
    if (rules.length > 1) problems.push(...this.second.set(rules[1]));
    if (rules.length > 0) this.compare.checked = rules.length > 1;
    this.showSecond();
    return problems;
  }

  tell(what, problems) {
    if (problems.length) this.fail(`${what}: ${problems.join("; ")}.`);
  }

  get rules() {
    return [this.first, ...(this.compare.checked ? [this.second] : [])].map((chooser) => chooser.spelling());
  }

  /** Say what is not wrong, but seldom meant. */
  advise() {
    if (!this.first || !this.second) return;
    const lifts = this.rules.some((rule) => rule.startsWith("cactus") && !rule.includes("max_ratio"));
    this.advice.hidden = !lifts || this.settings.truncates;
    this.advice.textContent =
      "Without top-p, top-k or min-p, Cactus also lifts tokens that the target finds absurd; top-p 0.95 is a good start.";
  }

  async generate() {
    if (this.leaving) return;
    this.leaving = new AbortController();
    const request = { ...this.settings.request(this.rules), after: this.last };
    this.run = null;
    this.busy(true);
    byId("problem").hidden = true;
    this.say("Sending…");
    try {
      await generate(request, (event) => this.take(event), this.leaving.signal);
      if (!this.ended) this.fail("The connection to the server was lost.");
    } catch (error) {
      if (error.name === "AbortError") this.say("Stopped.");
      else this.fail(error.message);
    }
    this.leaving = null;
    this.busy(false);
  }

  /** End the run; one that has not begun gives up its place in the queue. */
  stop() {
    if (this.run) stop(this.run).catch((error) => this.fail(error.message));
    else this.leaving?.abort();
  }

  take(event) {
    this.ended = event.event === "finished" || event.event === "error";
    if (event.event === "queued") this.say(queued(event.ahead));
    else if (event.event === "loading") this.say("Loading the models…");
    else if (event.event === "started") this.start(event);
    else if (event.event === "step") this.step(event);
    else if (event.event === "ended") this.sessions[event.session].end(event, this.run);
    else if (event.event === "finished") this.finish();
    else this.fail(event.message);
  }

  start({ run, seed, sessions }) {
    this.run = this.last = run; // the next one reuses what this one has read
    this.say(`Generating, seed ${seed}…`);
    byId("welcome").hidden = true;
    byId("parting").hidden = true;
    this.whatIf.hide();
    const two = sessions.length > 1;
    const legend = make("ul"); // one for both
    const legendOf = (index) => (two ? index === 0 && legend : undefined);
    this.sessions = sessions.map(
      (header, index) => new SessionView(index, header, legendOf(index), (position) => this.select(index, position)),
    );
    const place = byId("sessions");
    place.className = two ? "two" : "";
    const shared = two ? [make("div", { class: "cactus-answer shared" }, legend)] : [];
    place.replaceChildren(...shared, ...this.sessions.map((session) => session.element));
    this.seed = seed;
    const results = byId("results"); // on a phone it begins below the form
    if (results.getBoundingClientRect().top > 0.8 * innerHeight) results.scrollIntoView({ block: "start" });
  }

  step({ session, positions, trees, metrics }) {
    this.sessions[session].append(positions, trees, metrics);
    this.showParting(false);
  }

  finish() {
    this.showParting(true);
    const words = this.sessions.map((session) => `${session.steps} steps for ${session.emitted.length} tokens`);
    this.say(`Done with seed ${this.seed}: ${words.join(", ")}.`);
  }

  showParting(bothEnded) {
    if (this.sessions.length < 2 || !byId("parting").hidden) return;
    const place = partingOf(...this.sessions, bothEnded);
    if (place === null && !bothEnded) return;
    const parting = byId("parting");
    parting.hidden = false;
    if (place === null) {
      parting.textContent = "Both rules gave the same answer, token by token.";
      return;
    }
    for (const session of this.sessions) session.answer.mark(place, "parts here");
    const [first, second] = this.sessions.map((session) => {
      const position = session.emitted[place];
      return [position ? quoted(position.token) : "the end", " under ", make("code", {}, session.header.rule)];
    });
    const go = make("button", { type: "button" }, "Show it");
    go.addEventListener("click", () => this.sessions.forEach((session) => session.answer.select(place)));
    parting.replaceChildren(
      `The two answers part at token ${place + 1}: `, ...first, ", ", ...second, ". ", go,
    );
  }

  select(index, position) {
    const session = this.sessions[index];
    if (!position) return;
    session.whatIfPlace.append(this.whatIf.element);
    this.whatIf.show(this.run, index, position, session.header.rule);
  }

  busy(is) {
    byId("generate").disabled = is;
    byId("stop").disabled = !is;
    byId("results").setAttribute("aria-busy", String(is));
    document.body.dataset.state = is ? "busy" : "ready";
  }

  say(text) {
    byId("status").textContent = text;
  }

  fail(text) {
    this.say("");
    byId("problem").textContent = text;
    byId("problem").hidden = false;
  }
}

function queued(ahead) {
  return ahead === 1 ? "One visitor is ahead of you in the queue…" : `${ahead} visitors are ahead of you in the queue…`;
}

try {
  new Page(await fetchForm());
  document.body.dataset.state = "ready";
} catch (error) {
  byId("problem").textContent = error.message;
  byId("problem").hidden = false;
}
