"""What each rule does to a position: regenerates the pictures and tables of the pages in docs/rules, exactly.

The table of all rules there is what the rules' classes say.

    python scripts/rule_pictures.py                 computes, writes the result file, and renders; seconds
    python scripts/rule_pictures.py --only-render   pictures and tables again, from the result file

Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parent)]

from pages import ROOT, Cell, columns, put  # noqa: E402
from pages import table as as_table  # noqa: E402
from results import parse, read, write  # noqa: E402

from cactus_decoding import SamplingParams, audit, parse_rule  # noqa: E402
from cactus_decoding.core.files.jsonl import number_of  # noqa: E402
from cactus_decoding.core.rules import RULES  # noqa: E402
from cactus_decoding.core.rules.base import Family, GreedyRule, round_to  # noqa: E402
from cactus_decoding.core.rules.relaxed_greedy import given_up  # noqa: E402
from cactus_decoding.lab.reporting.charts import DASHES  # noqa: E402
from cactus_decoding.lab.reporting.pictures import GREY, OTHER_STYLE, new_figure, style_of, to_svg  # noqa: E402

RESULTS, PAGES = ROOT / "docs/results/rule_pictures.json", ROOT / "docs/rules"
LONG = ROOT / "docs/studies/tables/truncated.md"
VOCABULARY, SEED, KNOBS = 1000, 0, 61
SIZE = (6.4, 4.4)
BLUE, OTHERS = "#0072b2", "#c4c4c4"
SAMPLINGS = {"all tokens": SamplingParams(), "top-p 0.95": SamplingParams(top_p=0.95)}
SHOWN = re.compile(r"<!-- shown: (.+) -->")
"""On a rule's page: the spellings in its pictures and table."""


def standard_pair() -> tuple[Tensor, Tensor]:
    """Return the logits of a target and of a draft that differs from it by as much as small models do."""
    generator = torch.Generator().manual_seed(SEED)
    target = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64).mul(3)
    return target, target + torch.randn(VOCABULARY, generator=generator, dtype=torch.float64)


def rows_with(probability: float) -> Tensor:
    """Return a row that gives token 0 this probability; the others share the rest as Zipf's law does."""
    others = 1 / torch.arange(1, VOCABULARY, dtype=torch.float64)
    return torch.cat([torch.tensor([probability], dtype=torch.float64), (1 - probability) * others / others.sum()])


def knobs(family: Family) -> list[float]:
    """Return knobs over a family's range; lenience changes most right at the beginning of its own."""
    early = [1.01, 1.02, 1.05, 1.1, 1.15, 1.2] if family.name == "lenience" else []
    return sorted({*early, *family.knobs(KNOBS)})


def shown_on(pages: Path) -> dict[str, list[str]]:
    """Return, for every rule, the spellings that its page shows."""
    return {name: SHOWN.findall((pages / f"{name}.md").read_text())[0].split() for name in RULES}


def compute(shown: list[str]) -> dict[str, Any]:
    """Return every number of the pictures and tables."""
    families = [family for rule in RULES.values() for family in rule.families]
    return {
        "lift": {rule: _lift(rule) for rule in shown},
        "audit": {rule: _audits(rule) for rule in shown},
        "frontier": {family.name: [_cost(family.spell(x)) for x in knobs(family)] for family in families},
        "lossless": _cost("lossless"),
    }


def _lift(rule: str) -> list[list[float]]:
    """Return [q(n), h(n)] where the draft is sure of n."""
    places = [10 ** (-6 + i / 20) for i in range(120)] + [0.999]
    judged, token = parse_rule(rule), torch.zeros(1, dtype=torch.long)
    return [[q, min(judged.judge(rows_with(q), None, token).relaxed_prob.item(), 1.0)] for q in places]


def _audits(rule: str) -> dict[str, dict[str, float]]:
    """Return acceptance and costs on the standard pair by sampling, or what is given up at temperature 0."""
    if isinstance(parse_rule(rule), GreedyRule):
        return {"temperature 0": _greedy(rule)}
    found = {name: audit(rule, *map(sampling, standard_pair())) for name, sampling in SAMPLINGS.items()}
    keys = ("acceptance", "kl", "tv", "max_log_ratio")
    return {name: {key: getattr(each, key).item() for key in keys} for name, each in found.items()}


def _cost(rule: str) -> list[float]:
    """Return [nats, acceptance] on the standard pair, all tokens: KL, or log-probability given up at temperature 0."""
    if isinstance(parse_rule(rule), GreedyRule):
        return [_greedy(rule)[key] for key in ("given_up", "acceptance")]
    result = audit(rule, *(logits.softmax(-1) for logits in standard_pair()))
    return [result.kl.clamp(min=0).item(), result.acceptance.item()]


def _greedy(rule: str) -> dict[str, float]:
    """Return the acceptance and the log-probability given up by a draft that samples, judged at temperature 0."""
    target, draft = (logits.softmax(-1) for logits in standard_pair())
    tokens = torch.arange(VOCABULARY)
    kept = draft * parse_rule(rule).judge(target, draft, tokens).relaxed_prob
    nats = torch.where(kept > 0, given_up(target, tokens), 0.0)
    return {"acceptance": kept.sum().item(), "given_up": (kept * nats).sum().item(), "most": nats.max().item()}


def _rounded(value: Any) -> Any:
    """Keep the digits that are the same on every processor."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round_to(value, 7) if math.isfinite(value) else value


def lift_picture(shown: list[str], result: dict[str, Any]) -> str:
    """Return h(n) against q(n), both logarithmic."""
    figure = new_figure(SIZE)
    panel = figure.subplots()
    panel.plot([1e-6, 1], [1e-6, 1], color=GREY, lw=1, ls=":", label="lossless: h(n) = q(n)")
    drawn: dict[str, list[str]] = {}
    for rule in shown:  # what recovery does cannot be seen here: such rules share a line
        drawn.setdefault(json.dumps(result["lift"][rule]), []).append(rule)
    for number, rules in enumerate(drawn.values()):
        places, lifted = zip(*result["lift"][rules[0]], strict=True)
        shown = [h if h > 0 else 1e-9 for h in lifted]  # zero lies below the picture
        panel.plot(places, shown, **_look(rules[0]) | {"marker": "", "linestyle": DASHES[number], "linewidth": 1.8},
                   label=", ".join(rules))  # fmt: skip
    panel.set(xscale="log", yscale="log", xlim=(1e-6, 1), ylim=(1e-6, 1.4))
    panel.set(xlabel="q(n): the target's probability of the drafted token", ylabel="h(n): accepted with probability")
    panel.grid(alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return to_svg(figure)


def cost_picture(name: str, shown: list[str], result: dict[str, Any]) -> str:
    """Return acceptance against nats on the standard pair: this rule over its whole range, and all others in grey."""
    figure = new_figure(SIZE)
    panel = figure.subplots()
    rule = RULES[name]
    comparable = [each for each in RULES.values() if issubclass(each, GreedyRule) == issubclass(rule, GreedyRule)]
    others = [family for each in comparable if each is not rule for family in each.families]
    for family in [*others, *rule.families]:
        points = [place for place in result["frontier"][family.name] if math.isfinite(number_of(place[0]))]
        if family in rule.families:
            look = _look(family.spell(family.strict)) | {"markersize": 4}
            panel.plot(*zip(*points, strict=True), **look, markevery=4, label=family.label, zorder=4)
        else:
            panel.plot(*zip(*points, strict=True), color=OTHERS, lw=1)
    if (
        not rule.families and rule.kind != "exact"
    ):  # a rule without a knob from strict to loose is drawn at the settings of its page
        audits = [result["audit"][spelling]["all tokens"] for spelling in shown]
        panel.plot(*zip(*((each["kl"], each["acceptance"]) for each in audits), strict=True), "o", color=BLUE,
                   label=rule.title, zorder=4)  # fmt: skip
    if others:
        panel.plot([], [], color=OTHERS, lw=1, label="the other rules")
    panel.set(xlabel="log-probability given up, nats per position", ylabel="acceptance")
    if not issubclass(rule, GreedyRule):
        panel.plot(*result["lossless"], "*", color="black", ms=11, label="lossless", zorder=5)
        panel.set_xscale("symlog", linthresh=1e-3)
        panel.set_xlim(left=-2e-4)  # room for what costs nothing
        panel.set(xlabel="KL(emitted‖target), nats per position")
    panel.grid(alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return to_svg(figure)


def _look(rule: str) -> dict[str, Any]:
    """Return how a rule is drawn; one without a style of its own is blue, not grey as the others."""
    style = style_of(rule)
    return style.keywords() | ({"color": BLUE, "markerfacecolor": BLUE} if style is OTHER_STYLE else {})


def table(name: str, shown: list[str], result: dict[str, Any]) -> str:
    """Return what the audit says of a rule's spellings on the standard pair."""
    if not issubclass(RULES[name], GreedyRule):
        return audited(shown, result, "all tokens")
    return columns((result["audit"][rule]["temperature 0"] | {"rule": rule} for rule in shown), {
        "rule": "`{rule}`", "acceptance": "{acceptance:.3f}", "nats given up, mean": "{given_up:.4f}",
        "at most": "{most:.3f}",
    })  # fmt: skip


def audited(rules: list[str], result: dict[str, Any], sampling: str) -> str:
    """Return what the audit says of rules at temperatures above 0."""

    def finite(key: str, spelled: str, of: Callable[[float], float]) -> Cell:
        return lambda row: spelled.format(of(value)) if math.isfinite(value := number_of(row[key])) else "∞"

    return columns((result["audit"][rule][sampling] | {"rule": rule} for rule in rules), {
        "rule": "`{rule}`", "acceptance": "{acceptance:.3f}", "KL, nats": finite("kl", "{:.4f}", abs), "TV": "{tv:.3f}",
        "most times as likely": finite("max_log_ratio", "{:,.1f}", math.exp),
    })  # fmt: skip


def rule_table() -> str:
    """Return what there is to choose from, as the rules' classes say it."""
    rows = [
        [f"[{rule.title}]({name}.md)", f"`{preset.spelling}`", preset.guarantee, preset.choose]
        for name, rule in RULES.items()
        for preset in rule.presets
    ]
    return as_table(("rule", "for example", "guarantee at a position", "choose it"), rows, names=4)


def main() -> None:
    given = parse(
        __doc__,
        results=RESULTS,
        pages=(PAGES, "folder of the rules' pages"),
        long=(LONG, "page of the rules beside each other, truncated"),
        only_render=False,
    )
    shown = shown_on(given.pages)
    if not given.only_render:
        every = [spelling for spellings in shown.values() for spelling in spellings]
        write(given.results, _rounded(compute(every)), {"vocabulary": VOCABULARY, "seed": SEED, "knobs": KNOBS})
    result = read(given.results)
    for name, spellings in shown.items():
        made = {
            "audit": table(name, spellings, result),
            f"pictures/{name}_cost.svg": cost_picture(name, spellings, result),
        }
        if name != "lossless":  # which lifts nothing
            made[f"pictures/{name}_lift.svg"] = lift_picture(spellings, result)
        put(given.pages / f"{name}.md", made)
    put(given.pages / "index.md", {"rules": rule_table()})
    rules = [rule for name in shown if not issubclass(RULES[name], GreedyRule) for rule in shown[name]]
    put(given.long, {"truncated": audited(rules, result, "top-p 0.95")})


if __name__ == "__main__":
    main()
