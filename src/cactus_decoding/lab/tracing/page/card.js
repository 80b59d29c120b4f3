/* cactusCard: what is known of a position, as elements. Plain JavaScript, no dependencies.
 *
 *   cactusCard(position, options)  returns them; their style is in answer.css.
 *     position  an object with the fields of TracedPosition
 *     options   step   the positions of its step
 *               nodes  the tree that the step proposed, if it did
 *               rule   the response's rule: a position's own is told where it differs
 */
"use strict";

(function (scope) {
  const { make, numberOf, quoted, percent, share, nats } = scope.CactusWriting;

  function story(position, alone) {
    if (position.fate === "bonus") {
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
    let said = `The draft proposed ${quoted(position.drafted || "")}. ${chance}`;
    if (position.fate === "relaxed") said += " It was kept; with the same random number, lossless would have rejected it.";
    if (position.fate === "matched")
      said += " It was rejected, and the token that was drawn instead was proposed too: the step went on after it.";
    if (position.fate === "recovered") said += " It was rejected, and this token was drawn instead.";
    if (position.fell_back) said += " The budget could not afford the rule here, so the lossless rule decided.";
    if (position.protected) said += " This position is protected: the lossless rule decided.";
    return said;
  }

  function table(position) {
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
    return make("div", "ca-scroll", make("table", "", make("thead", "", head), body));
  }

  function numbers(position, rule) {
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
      add("budget left", `${nats(left)} nats`, "after this token");
    if (position.rule && position.rule !== rule && position.fate !== "bonus")
      add("rule here", position.rule, "the rule that decided at this token");
    return list;
  }

  /* The tree of the position's step, if it proposed one. */
  function tree(position, step, nodes) {
    if (!nodes) return [];
    const last = step[step.length - 1];
    const figure = make("figure", "ca-tree-figure", make("figcaption", "", `proposals of step ${position.step + 1}: ${nodes.length}`));
    const frame = make("div", "ca-scroll ca-tree-scroll");
    frame.tabIndex = 0;
    frame.setAttribute("role", "group");
    frame.setAttribute("aria-label", "The tree of this step's proposals");
    const ends = last && (last.fate === "recovered" || last.fate === "bonus");
    scope.drawCactusTree(frame, nodes, { next: ends ? last : null, selected: step.indexOf(position) });
    figure.append(frame, make("p", "ca-hint", "Round: drawn from the draft. With corners: its likeliest tokens. Dashed: drawn by the target."));
    return [figure];
  }

  scope.cactusCard = (position, { step, nodes, rule }) => [make("p", "ca-story", story(position, step.length === 1)),
    table(position), numbers(position, rule), ...tree(position, step, nodes)];
})(typeof window === "undefined" ? globalThis : window);
