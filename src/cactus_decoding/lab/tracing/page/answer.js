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
 *                                as in a trace file and from cactus_decoding.lab.tracing.to_json: infinite numbers are the texts
 *                                "inf" and "-inf". Several calls may follow each other; a step may be split.
 *                                trees, which may be absent, holds the nodes of each step that proposed a tree, by the step's
 *                                number; the card draws them (tree.js).
 *   answer.finish(end)           the response is over; end = {text, finish_reason, metrics}, all optional. Tokens after
 *                                the end of `text`, which a stop string cut off, are crossed out.
 *   answer.select(place, options)  shows the card of the token at that place, or of none if place is null;
 *                                options.focus: true moves the keyboard's focus there. Returns whether there is one.
 *   answer.mark(place, text)     points out a token, for instance where two responses part; mark(null) takes it back.
 *   answer.clear()               forgets everything, for another response.
 *   answer.positions             those appended so far.   answer.selected   the selected place or null.
 *   answer.card                  the card's element: below its contents there is an empty `.ca-extra` for whoever embeds it.
 *
 * Needs what stands in writing.js, tree.js, pictures.js and card.js, loaded before it.
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

  const { make, numberOf, quoted, visible } = scope.CactusWriting;

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
        item.hidden = fate === "matched"; // shown once there is such a token: only trees have them
        if (item.hidden) this._matched = item;
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
      if (position.fate === "matched" && this._matched) this._matched.hidden = false;
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
      const step = this.positions.filter((other) => other.step === position.step);
      const known = scope.cactusCard(position, { step, nodes: this._trees.get(position.step), rule: this.options.rule });
      this.card.replaceChildren(heading, where, ...known, make("div", "ca-extra"));
      // a card that shrank would move what stands below it, and at the end of a page what stands above it
      const least = Number.parseFloat(this.card.style.minHeight) || 0;
      this.card.style.minHeight = `${Math.max(least, this.card.offsetHeight)}px`;
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
      scope.drawCactusCharts(this._figures, this.positions, { selected: this._selected, budget: numberOf(this.options.budget) });
    }
  }

  scope.CactusAnswer = CactusAnswer;
})(typeof window === "undefined" ? globalThis : window);
