/* CactusAnswer: a traced response that can be looked into, token by token. Plain JavaScript, no dependencies.
 *
 *   const answer = new CactusAnswer(element, options)
 *     element   an empty block element; the component fills it. Its style is answer.css.
 *     options   all optional:
 *       onSelect(place, position)  called when a token is selected by click, tap, keyboard or select();
 *                                  with (null, null) when nothing is selected any more
 *       budget    the budget in nats, a line in the picture of nats; absent or infinite: no line
 *       rule      spelling of the response's rule: a position's own rule is told where it differs
 *       label     accessible name of the text, "Answer" if absent
 *       legend    false leaves the legend out;  charts: false leaves the pictures out
 *       parts     {legend, text, card, charts}: elements to fill instead of new ones inside `element`
 *
 *   answer.append(positions, trees)  adds positions in order of their place. They are objects with the fields of TracedPosition,
 *                                as in a trace file and from cactus_decoding.tracing.to_json: infinite numbers are the texts
 *                                "inf" and "-inf". Several calls may follow each other; a step may be split.
 *                                trees, which may be absent, holds the nodes of each step that proposed a tree, by the step's
 *                                number; the card draws them (tree.js).
 *   answer.finish(end)           the response is over; end = {text, finish_reason, metrics}, all optional. Tokens behind
 *                                the end of `text`, which a stop string cut off, are crossed out.
 *   answer.select(place, options)  shows the card of the token at that place, or of none if place is null;
 *                                options.focus: true moves the keyboard's focus there. Returns whether there is one.
 *   answer.mark(place, text)     points out a token, for instance where two responses part; mark(null) takes it back.
 *   answer.clear()               forgets everything, for another response.
 *   answer.positions             those appended so far.   answer.selected   the selected place or null.
 *   answer.card                  the card's element: below its contents there is an empty `.ca-extra` for whoever embeds it.
 *
 * Keyboard: the text is one stop of the Tab key; arrows move from token to token (up and down by a line), Home and End go to
 * the ends, Escape closes the card. Everything is written as text, never as HTML, whatever the tokens are.
 */
"use strict";

(function (scope) {
  const FATES = {
    accepted: "proposed by the draft, kept",
    relaxed: "kept by the rule, where lossless would have rejected it",
    recovered: "drawn after a rejection",
    bonus: "drawn from the target, as no proposal was rejected",
    matched: "drawn after a rejection, and proposed too: only in trees",
  };
  const SVG = "http://www.w3.org/2000/svg";

  /* --- small helpers --- */

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  function draw(parent, tag, attributes, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  function numberOf(value) {
    if (value === "inf") return Infinity;
    if (value === "-inf") return -Infinity;
    return value === null || value === undefined || value === "nan" ? NaN : Number(value);
  }

  /* Control characters as pictures, so that a token can neither hide nor command anything. */
  function visible(text) {
    return text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
      .replace(/[\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  }

  function quoted(text) {
    return "“" + visible(text).replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "␣") + "”";
  }

  function percent(value) {
    const number = numberOf(value);
    if (Number.isNaN(number)) return "–";
    const part = 100 * number;
    if (part === 0 || part >= 99.995) return Math.round(part) + "\u00a0%";
    if (part < 0.01) return part.toExponential(0).replace(/e-(\d+)/, (_, power) => "·10⁻" + superscript(power)) + "\u00a0%";
    return (part < 1 ? part.toFixed(2) : part.toFixed(1)) + "\u00a0%";
  }

  function share(value) {
    const number = numberOf(value);
    return number > 0 && number < 0.0001 ? "< 0.01\u00a0%" : percent(number);
  }

  function superscript(text) {
    return text.replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
  }

  function nats(value) {
    const number = numberOf(value);
    if (Number.isNaN(number)) return "–";
    if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
    if (number === 0) return "0";
    if (Math.abs(number) < 0.0001) return number < 0 ? "−0.0001" : "< 0.0001";
    return number.toFixed(Math.abs(number) < 10 ? 4 : 2);
  }

  /* --- pictures --- */

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
    draw(svg, "text", { x: width - RIGHT, y: HEIGHT - 5, "text-anchor": "end" }, `${xMax} ${xLabel}`);
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

  /* --- the component --- */

  class CactusAnswer {
    constructor(element, options = {}) {
      this.element = element;
      this.options = options;
      element.classList.add("cactus-answer");
      const parts = options.parts || {};
      this.legend = options.legend === false ? null : parts.legend || element.appendChild(make("ul", "ca-legend"));
      const body = parts.text && parts.card ? null : element.appendChild(make("div", "ca-body"));
      this.text = parts.text || body.appendChild(make("div"));
      this.card = parts.card || body.appendChild(make("section"));
      this.charts = options.charts === false ? null : parts.charts || (body || element).appendChild(make("div"));
      if (this.charts) this.charts.classList.add("ca-charts");
      this.text.classList.add("ca-text");
      this.text.setAttribute("role", "listbox");
      this.text.setAttribute("aria-label", options.label || "Answer");
      this.text.setAttribute("aria-orientation", "horizontal");
      this.card.classList.add("ca-card");
      this.card.setAttribute("aria-live", "polite");
      this.card.setAttribute("aria-label", "The selected token");
      if (this.legend) this._writeLegend();
      this._listen();
      this.clear();
      if (this.charts && scope.ResizeObserver) {
        this._observer = new ResizeObserver(() => {
          this.card.style.minHeight = "";
          this._drawSoon();
        });
        this._observer.observe(this.charts);
      }
    }

    get selected() {
      return this._selected;
    }

    clear() {
      this.positions = [];
      this._tokens = new Map();
      this._shown = [];
      this._selected = this._hovered = this._marked = null;
      this._length = 0;
      this._ends = new Map();
      this._trees = new Map();
      this.text.replaceChildren();
      this._showCard(null);
      this._drawSoon();
    }

    append(positions, trees = {}) {
      for (const [step, nodes] of Object.entries(trees)) this._trees.set(Number(step), nodes);
      const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 2;
      for (const position of positions) {
        this.positions.push(position);
        if (position.emitted === false) continue;
        const token = this._makeToken(position);
        this._tokens.set(position.place, token);
        this._shown.push(position);
        this._length += (position.text || "").length;
        this._ends.set(position.place, this._length);
        if (this._shown.length === 1) token.tabIndex = 0;
        this.text.append(token);
      }
      if (atEnd) this.text.scrollTop = this.text.scrollHeight; // whoever reads along goes on reading along
      this._drawSoon();
    }

    finish(end = {}) {
      this.element.classList.add("ca-finished");
      if (typeof end.text === "string") {
        for (const position of this._shown) {
          const begin = this._ends.get(position.place) - (position.text || "").length;
          const cut = begin >= end.text.length && (position.text || "") !== "";
          this._tokens.get(position.place).classList.toggle("ca-cut", cut);
        }
      }
      this._drawSoon();
    }

    select(place, options = {}) {
      const before = this._tokens.get(this._selected), token = this._tokens.get(place);
      if (before) before.setAttribute("aria-selected", "false");
      this._selected = token ? place : null;
      this._hovered = null;
      if (token) {
        for (const other of this.text.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
        token.tabIndex = 0;
        token.setAttribute("aria-selected", "true");
        if (options.focus) token.focus({ preventScroll: true });
      }
      const position = token ? this._at(place) : null;
      this._showCard(position);
      if (token && options.focus) {
        const below = this.card.offsetTop >= this.text.offsetTop + this.text.offsetHeight; // else it is in view with the text
        if (below) this.card.scrollIntoView({ block: "nearest" });
        token.scrollIntoView({ block: "nearest" });
      }
      this._drawSoon();
      if (this.options.onSelect) this.options.onSelect(this._selected, position);
      return Boolean(token);
    }

    mark(place, text) {
      const before = this._tokens.get(this._marked), token = this._tokens.get(place);
      if (before) {
        before.classList.remove("ca-marked", "ca-marked-left");
        delete before.dataset.mark;
      }
      this._marked = token ? place : null;
      if (token) {
        token.classList.add("ca-marked");
        token.classList.toggle("ca-marked-left", token.offsetLeft > this.text.clientWidth / 2); // the text's edge cuts it
        token.dataset.mark = text || "";
      }
    }

    _at(place) {
      return this._shown.find((position) => position.place === place) || null;
    }

    /* --- tokens --- */

    _writeLegend() {
      this.legend.classList.add("ca-legend");
      this.legend.setAttribute("aria-label", "Legend");
      for (const [fate, meaning] of Object.entries(FATES)) {
        const item = make("li", "", make("span", `ca-token ca-${fate}`, fate), make("span", "ca-meaning", meaning));
        this.legend.append(item);
      }
      const seldom = (mark, name, meaning) => { // shown once there is such a token
        const swatch = make("span", `ca-token ca-accepted ${mark}`, name);
        const item = make("li", "", swatch, make("span", "ca-meaning", meaning));
        item.hidden = true;
        this.legend.append(item);
        return item;
      };
      this._fellBack = seldom("ca-fell-back", "fell back", "not affordable: lossless decided");
      this._protected = seldom("ca-protected", "protected", "not to be relaxed: lossless decided");
    }

    _makeToken(position) {
      const written = position.text || "";
      const token = make("span", `ca-token ca-${position.fate}`);
      if (written === "") token.append(make("span", "ca-name", visible(position.token)));
      else if (written.includes("\n")) {
        for (const part of visible(written).split(/(\n)/)) {
          if (part === "\n") token.append(make("span", "ca-break", "↵"), "\n");
          else token.append(part);
        }
      } else token.textContent = visible(written);
      if (position.fell_back) {
        token.classList.add("ca-fell-back");
        if (this._fellBack) this._fellBack.hidden = false;
      }
      if (position.protected) {
        token.classList.add("ca-protected");
        if (this._protected) this._protected.hidden = false;
      }
      token.tabIndex = -1;
      token.setAttribute("role", "option");
      token.setAttribute("aria-selected", "false");
      token.setAttribute("aria-label", `${quoted(position.token)} ${position.fate}${position.protected ? ", protected" : ""}`);
      token.dataset.place = position.place;
      return token;
    }

    _listen() {
      const placeOf = (event) => {
        const token = event.target.closest ? event.target.closest(".ca-token[data-place]") : null;
        return token ? Number(token.dataset.place) : null;
      };
      this.text.addEventListener("click", (event) => {
        const place = placeOf(event);
        if (place !== null) this.select(place, { focus: true });
      });
      this.text.addEventListener("focusin", (event) => {
        const place = placeOf(event);
        if (place !== null && place !== this._selected) this.select(place);
      });
      this.text.addEventListener("pointerover", (event) => {
        const place = placeOf(event);
        if (event.pointerType !== "mouse" || place === this._hovered) return;
        this._hovered = place;
        this._showCard(place === null ? this._at(this._selected) : this._at(place));
      });
      // moving from the text onto the card is no leaving: one may want to read and scroll it
      for (const [from, to] of [[this.text, this.card], [this.card, this.text]]) {
        from.addEventListener("pointerleave", (event) => {
          if (this._hovered === null || to.contains(event.relatedTarget)) return;
          this._hovered = null;
          this._showCard(this._at(this._selected));
        });
      }
      this.text.addEventListener("keydown", (event) => this._onKey(event));
      this.card.addEventListener("keydown", (event) => {
        if (event.key === "Escape") this._close();
      });
    }

    _close() {
      const token = this._tokens.get(this._selected);
      this.select(null);
      this.card.style.minHeight = "";
      if (token) token.blur();
    }

    _onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || this._shown.length === 0) return;
      const here = this._shown.findIndex((position) => position.place === this._selected);
      const last = this._shown.length - 1;
      let next = null;
      if (event.key === "ArrowRight") next = Math.min(here + 1, last);
      else if (event.key === "ArrowLeft") next = Math.max(here - 1, 0);
      else if (event.key === "Home") next = 0;
      else if (event.key === "End") next = last;
      else if (event.key === "ArrowDown") next = this._inLine(here, 1);
      else if (event.key === "ArrowUp") next = this._inLine(here, -1);
      else if (event.key === "Escape") {
        this._close();
        event.preventDefault();
        return;
      } else return;
      event.preventDefault();
      this.select(this._shown[Math.max(next, 0)].place, { focus: true });
    }

    /* The token of the next or last line that is nearest to the one here. */
    _inLine(here, direction) {
      const boxOf = (i) => this._tokens.get(this._shown[i].place).getClientRects()[0] || new DOMRect();
      const start = boxOf(Math.max(here, 0)), middle = start.left + start.width / 2;
      let best = here, line = null, distance = Infinity;
      for (let i = here + direction; i >= 0 && i < this._shown.length; i += direction) {
        const box = boxOf(i);
        if (Math.abs(box.top - start.top) < 4) continue;
        if (line === null) line = box.top;
        if (Math.abs(box.top - line) >= 4) break;
        const away = Math.abs(box.left + box.width / 2 - middle);
        if (away < distance) [best, distance] = [i, away];
      }
      return best;
    }

    /* --- the card --- */

    _showCard(position) {
      const token = position ? this._tokens.get(position.place) : null;
      for (const other of this.text.querySelectorAll(".ca-shown")) other.classList.remove("ca-shown");
      if (token) token.classList.add("ca-shown");
      this.card.classList.toggle("ca-empty", !position);
      if (!position) {
        const hint = "Point at a token, tap it, or press Tab and the arrow keys, to see what both models and the rule thought there.";
        this.card.replaceChildren(make("p", "ca-hint", hint), make("div", "ca-extra"));
        return;
      }
      const close = make("button", "ca-close", "×");
      close.type = "button";
      close.setAttribute("aria-label", "Close");
      close.addEventListener("click", () => this._close());
      const heading = make("h3", "", make("span", "ca-quoted", quoted(position.token)), " ",
        make("span", `ca-token ca-${position.fate}`, position.fate), close);
      const where = make("p", "ca-where", `token ${position.place + 1}, step ${position.step + 1}`);
      this.card.replaceChildren(heading, where, make("p", "ca-story", this._story(position)),
        this._table(position), this._numbers(position), ...this._tree(position), make("div", "ca-extra"));
      // a card that shrank would move what stands below it, and at the end of a page what stands above it
      const least = Number.parseFloat(this.card.style.minHeight) || 0;
      this.card.style.minHeight = `${Math.max(least, this.card.offsetHeight)}px`;
    }

    _story(position) {
      if (position.fate === "bonus") {
        const alone = this.positions.filter((other) => other.step === position.step).length === 1;
        return alone
          ? "The draft proposed nothing here; the target drew this token itself."
          : "All proposals of this step were kept, so the target drew one more token itself. That costs nothing.";
      }
      const drafted = (position.candidates || []).find((one) => one.token_id === position.drafted_id);
      const lossless = drafted && position.draft_prob > 0 ? Math.min(1, drafted.target / position.draft_prob) : NaN;
      const kept = percent(position.acceptance_prob), strictly = percent(lossless);
      const jointly = position.acceptance === null || position.acceptance === undefined;
      const untold = position.acceptance_prob === null || position.acceptance_prob === undefined;
      const chance = untold ? "It was judged together with the other proposals of its tree." : jointly
        ? `Judged together with the proposals before it, it is kept with probability ${kept}.`
        : `The rule keeps it with probability ${kept}` + (kept === strictly ? "." : `, lossless with ${strictly}.`);
      let story = `The draft proposed ${quoted(position.drafted || "")}. ${chance}`;
      if (position.fate === "relaxed") story += " It was kept; with the same random number, lossless would have rejected it.";
      if (position.fate === "matched")
        story += " It was rejected, and the token that was drawn instead was proposed too: the step went on behind it.";
      if (position.fate === "recovered") story += " It was rejected, and this token was drawn instead.";
      if (position.fell_back) story += " The budget could not afford the rule here, so the lossless rule decided.";
      if (position.protected) story += " This position is protected: the lossless rule decided.";
      return story;
    }

    _table(position) {
      const columns = [["target", "target"]];
      if (position.fate !== "bonus") columns.push(["draft", "draft"], ["relaxed", "relaxed"], ["emitted", "emitted"]);
      const candidates = position.candidates || [];
      const cut = candidates.some((one) => Math.abs(one.untempered - one.target) > 1e-6);
      if (cut) columns.unshift(["untempered", "model"]);
      const head = make("tr", "", make("th", "", "token"));
      const titles = {
        untempered: "the target before temperature and truncation",
        target: "q: the target, as it is sampled from",
        draft: "p: the draft",
        relaxed: "h: the relaxed target, given the drafted token",
        emitted: "what comes out here, averaged over what the draft may propose",
      };
      for (const [name, title] of columns) {
        const cell = make("th", `ca-cell-${name}`, title);
        cell.title = titles[name];
        cell.scope = "col";
        head.append(cell);
      }
      const body = make("tbody");
      for (const one of candidates) {
        const name = make("th", "", make("span", "ca-quoted", quoted(one.token)));
        name.scope = "row";
        if (one.token_id === position.drafted_id) name.append(make("span", "ca-tag", "drafted"));
        if (one.token_id === position.token_id) name.append(make("span", "ca-tag ca-chosen", "chosen"));
        const row = make("tr", "", name);
        for (const [key] of columns) {
          const bar = make("span", `ca-fill ca-of-${key}`), part = Math.min(1, numberOf(one[key]) || 0);
          bar.style.width = part > 0 ? `max(1px, ${100 * part}%)` : "0";
          row.append(make("td", `ca-cell-${key}`, bar, make("span", "ca-value", percent(one[key]))));
        }
        body.append(row);
      }
      const table = make("table", "", make("thead", "", head), body);
      return make("div", "ca-scroll", table);
    }

    _numbers(position) {
      const list = make("dl", "ca-numbers");
      const add = (term, value, meaning) => {
        const name = make("dt", "", term);
        name.title = meaning;
        list.append(make("div", "", name, make("dd", "", value)));
      };
      if (position.fate !== "bonus") {
        if (position.acceptance_prob !== null && position.acceptance_prob !== undefined)
          add("acceptance, given draft", share(position.acceptance_prob), "probability that the drafted token is kept");
        if (position.acceptance !== null && position.acceptance !== undefined)
          add("acceptance, on average", share(position.acceptance), "the same, averaged over what the draft may propose");
        add("nats, given draft", nats(position.conditional_nats), "KL of the relaxed target to the target, given the drafted token");
        add("nats, on average", nats(position.emitted_nats), "KL of what is emitted to the target: what a budget is charged");
        add("total variation", share(position.tv), "largest change of any event's probability here");
        add("recovery scale s", nats(position.residual_scale), "recovery draws in proportion to the positive part of s·q − p");
      }
      const left = position.budget_left;
      if (left !== null && left !== undefined && Number.isFinite(numberOf(left)))
        add("budget left", `${nats(left)} nats`, "behind this token");
      if (position.rule && position.rule !== this.options.rule && position.fate !== "bonus")
        add("rule here", position.rule, "the rule that decided at this token");
      return list;
    }

    /* The tree of the position's step, if it proposed one. */
    _tree(position) {
      const nodes = this._trees.get(position.step);
      if (!nodes) return [];
      const step = this.positions.filter((other) => other.step === position.step), last = step[step.length - 1];
      const figure = make("figure", "ca-tree-figure", make("figcaption", "", `proposals of step ${position.step + 1}: ${nodes.length}`));
      const frame = make("div", "ca-scroll ca-tree-scroll");
      frame.tabIndex = 0;
      frame.setAttribute("role", "group");
      frame.setAttribute("aria-label", "The tree of this step's proposals");
      const ends = last && (last.fate === "recovered" || last.fate === "bonus");
      scope.drawCactusTree(frame, nodes, { next: ends ? last : null, selected: step.indexOf(position), visible });
      figure.append(frame, make("p", "ca-hint", "Round: drawn from the draft. With corners: its likeliest tokens. Dashed: drawn by the target."));
      return [figure];
    }

    /* --- pictures --- */

    _drawSoon() {
      if (!this.charts || this._waiting) return;
      this._waiting = true;
      scope.requestAnimationFrame(() => {
        this._waiting = false;
        this._drawCharts();
      });
    }

    _drawCharts() {
      if (this._figures === undefined) {
        this._figures = [make("figure"), make("figure"), make("figure")];
        this.charts.append(...this._figures);
      }
      const all = this.positions, at = this._selected === null ? null : all.findIndex((one) => one.place === this._selected);
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
      const count = all.length, emitted = this._shown.length, budget = numberOf(this.options.budget), limited = Number.isFinite(budget);
      const mean = steps.length ? count / steps.length : 0;
      const top = niceTop(Math.max(total, limited ? budget : 0, 0.1));
      plot(this._figures[0], {
        title: limited ? `nats spent: ${nats(total)} of ${nats(budget)}` : `nats spent: ${nats(total)}`,
        summary: `Nats spent over the answer: ${nats(total)}` + (limited ? ` of a budget of ${nats(budget)}` : ""),
        xMax: count, yMax: top, xLabel: "positions", at,
        lines: [{ points: spent, className: "ca-line", step: true }],
        levels: limited ? [{ y: budget, text: "budget" }] : [],
      });
      const most = Math.max(2, ...steps.map((step) => step.y));
      plot(this._figures[1], {
        title: `tokens per step: ${mean.toFixed(2)}`,
        summary: `Acceptance length over the answer; on average ${mean.toFixed(2)} tokens per step`,
        xMax: count, yMax: niceTop(most), whole: true, xLabel: "positions", at,
        bars: steps, lines: [{ points: running, className: "ca-line" }],
      });
      plot(this._figures[2], {
        title: `steps: ${steps.length} for ${emitted} tokens`,
        summary: `Steps: ${steps.length}, each a forward pass of the target; plain decoding takes ${emitted}`,
        xMax: count, yMax: niceTop(Math.max(count, 2)), whole: true, xLabel: "positions", at,
        lines: [{ points: [[0, 0], [emitted, emitted]], className: "ca-plain" }, { points: rounds, className: "ca-line" }],
      });
    }
  }

  scope.CactusAnswer = CactusAnswer;
})(typeof window === "undefined" ? globalThis : window);
