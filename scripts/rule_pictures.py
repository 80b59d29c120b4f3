"""What each rule does to a position: regenerates the pictures and tables of the pages in docs/rules, exactly.

    python scripts/rule_pictures.py                 computes, writes the result file, and renders; seconds
    python scripts/rule_pictures.py --only-render   pictures and tables again, from the result file

Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts")]

from marked_page import insert  # noqa: E402

from cactus_decoding import SamplingParams, audit, parse_rule  # noqa: E402
from cactus_decoding.evaluation.frontier.families import FAMILIES, Family, round_to  # noqa: E402
from cactus_decoding.evaluation.reporting.charts import DASHES  # noqa: E402
from cactus_decoding.evaluation.reporting.pictures import GREY, family_of, new_figure, style_of, to_svg  # noqa: E402
from cactus_decoding.files.jsonl import number_of  # noqa: E402
from cactus_decoding.files.provenance import provenance  # noqa: E402
from cactus_decoding.files.writing import as_json, write_atomically  # noqa: E402
from cactus_decoding.rules.relaxed_greedy import given_up  # noqa: E402

RESULTS, PAGES = ROOT / "docs/results/rule_pictures.json", ROOT / "docs/rules"
VOCABULARY, SEED, KNOBS = 1000, 0, 61
SIZE = (6.4, 4.4)
SAMPLINGS = {"all tokens": SamplingParams(), "top-p 0.95": SamplingParams(top_p=0.95)}
SHOWN = {
    "lossless": ("lossless",),
    "cactus": ("cactus:delta=0.01", "cactus:delta=0.1", "cactus:delta=1.0", "cactus:delta=1.0,solver=exact"),
    "clamped": ("clamped:width=0.5", "clamped:width=1.0", "clamped:width=2.0", "clamped:max_kl=0.1"),
    "ensemble": ("ensemble:weight=0.1", "ensemble:weight=0.3", "ensemble:weight=0.5"),
    "lenience": ("lenience:lenience=0.8", "lenience:lenience=0.5", "lenience:lenience=0.2"),
    "typical": ("typical", "typical:threshold=0.3,alpha=0.55", "typical:recovery=sample"),
    "top_k": ("top_k:k=2", "top_k:k=5", "top_k:k=20", "top_k:k=5,residual=mask"),
    "relaxed_greedy": ("relaxed_greedy:margin=0.2", "relaxed_greedy:margin=0.5", "relaxed_greedy:margin=1.0"),
}
"""The spellings in each rule's pictures and table."""
MARGINS = tuple(round_to(0.02 * 1.35**i) for i in range(20))


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


def compute() -> dict[str, Any]:
    """Return every number of the pictures and tables."""
    return {
        "lift": {rule: _lift(rule) for rules in SHOWN.values() for rule in rules},
        "audit": {rule: _audits(rule) for rules in SHOWN.values() for rule in rules},
        "frontier": {name: [_cost(family.spell(x)) for x in knobs(family)] for name, family in FAMILIES.items()},
        "margins": [_greedy(f"relaxed_greedy:margin={margin}") for margin in MARGINS],
        "lossless": _cost("lossless"),
    }


def _lift(rule: str) -> list[list[float]]:
    """Return [q(n), h(n)] where the draft is sure of n."""
    places = [10 ** (-6 + i / 20) for i in range(120)] + [0.999]
    judged = parse_rule(rule)
    token = torch.zeros(1, dtype=torch.long)
    return [[q, min(judged.judge(rows_with(q), None, token).relaxed_prob.item(), 1.0)] for q in places]


def _audits(rule: str) -> dict[str, dict[str, float]]:
    if rule.startswith("relaxed_greedy"):
        return {"temperature 0": _greedy(rule)}
    found = {}
    for name, sampling in SAMPLINGS.items():
        result = audit(rule, *(sampling(logits) for logits in standard_pair()))
        found[name] = {key: getattr(result, key).item() for key in ("acceptance", "kl", "tv", "max_log_ratio")}
    return found


def _cost(rule: str) -> list[float]:
    """Return [KL, acceptance] on the standard pair, all tokens."""
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


def lift_picture(name: str, result: dict[str, Any]) -> str:
    """Return h(n) against q(n), both logarithmic."""
    figure = new_figure(SIZE)
    panel = figure.subplots()
    panel.plot([1e-6, 1], [1e-6, 1], color=GREY, lw=1, ls=":", label="lossless: h(n) = q(n)")
    drawn: dict[str, list[str]] = {}
    for rule in SHOWN[name]:  # what recovery does cannot be seen here: such rules share a line
        drawn.setdefault(json.dumps(result["lift"][rule]), []).append(rule)
    for number, rules in enumerate(drawn.values() if name != "lossless" else ()):
        places, lifted = zip(*result["lift"][rules[0]], strict=True)
        shown = [h if h > 0 else 1e-9 for h in lifted]  # zero lies below the picture
        panel.plot(places, shown, **_look(rules[0]) | {"marker": "", "linestyle": DASHES[number], "linewidth": 1.8},
                   label=", ".join(rules))  # fmt: skip
    panel.set(xscale="log", yscale="log", xlim=(1e-6, 1), ylim=(1e-6, 1.4))
    panel.set(xlabel="q(n): the target's probability of the drafted token", ylabel="h(n): accepted with probability")
    panel.grid(alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return to_svg(figure)


def cost_picture(name: str, result: dict[str, Any]) -> str:
    """Return acceptance against KL on the standard pair: this rule over its whole range, and all others in grey."""
    figure = new_figure(SIZE)
    panel = figure.subplots()
    families = dict.fromkeys(family_of(rule) for rule in SHOWN[name])
    if name == "relaxed_greedy":
        panel.plot(
            [point["given_up"] for point in result["margins"]],
            [point["acceptance"] for point in result["margins"]],
            **_look(name),
            label="margin from 0.02 to 6",
        )
        panel.set(xlabel="log-probability given up, nats per position", ylabel="acceptance")
    else:
        for family in [*(each for each in FAMILIES if each not in families), *families]:
            points = [place for place in result["frontier"].get(family, []) if math.isfinite(number_of(place[0]))]
            if not points:
                continue
            if family in families:
                look = _look(SHOWN_FAMILY[family]) | {"markersize": 4}
                panel.plot(*zip(*points, strict=True), **look, markevery=4, label=FAMILIES[family].label, zorder=4)
            else:
                panel.plot(*zip(*points, strict=True), color="#c4c4c4", lw=1)
        panel.plot([], [], color="#c4c4c4", lw=1, label="the other rules")
        panel.plot(*result["lossless"], "*", color="black", ms=11, label="lossless", zorder=5)
        panel.set_xscale("symlog", linthresh=1e-3)
        panel.set_xlim(left=-2e-4)  # room for what costs nothing
        panel.set(xlabel="KL(emitted‖target), nats per position", ylabel="acceptance")
    panel.grid(alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return to_svg(figure)


def _look(rule: str) -> dict[str, Any]:
    """Return how a rule is drawn; the one rule for temperature 0 is in no other picture."""
    if rule.startswith("relaxed_greedy"):
        return style_of(rule).keywords() | {"color": "#0072b2", "markerfacecolor": "#0072b2"}
    return style_of(rule).keywords()


SHOWN_FAMILY = {name: family.spell(family.strict) for name, family in FAMILIES.items()}
"""A spelling of each family, to draw it by."""


def table(name: str, result: dict[str, Any]) -> str:
    """Return what the audit says of a rule's spellings on the standard pair."""
    if name == "relaxed_greedy":
        lines = ["| rule | acceptance | nats given up, mean | at most |", "|---|---:|---:|---:|"]
        for rule in SHOWN[name]:
            found = result["audit"][rule]["temperature 0"]
            lines.append(f"| `{rule}` | {found['acceptance']:.3f} | {found['given_up']:.4f} | {found['most']:.3f} |")
        return "\n".join(lines)
    lines = ["| rule | sampling | acceptance | KL, nats | TV | most times as likely |", "|---|---|---:|---:|---:|---:|"]
    for rule in SHOWN[name]:
        for sampling, found in result["audit"][rule].items():
            kl, ratio = (number_of(found[key], math.inf) for key in ("kl", "max_log_ratio"))
            cells = [f"{found['acceptance']:.3f}", _number(abs(kl), "{:.4f}"), f"{found['tv']:.3f}"]
            cells.append(_number(math.exp(ratio), "{:,.1f}"))
            lines.append(f"| `{rule}` | {sampling} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float, spelled: str) -> str:
    return "∞" if math.isinf(value) else spelled.format(value)


def main() -> None:
    """Compute unless told otherwise, then render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="result file, JSON")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the rules' pages")
    parser.add_argument("--only-render", action="store_true")
    given = parser.parse_args()
    if not given.only_render:
        arguments = {"vocabulary": VOCABULARY, "seed": SEED, "knobs": KNOBS}
        result = _rounded(compute()) | {"provenance": provenance(arguments)}
        write_atomically(given.results, as_json(result) + "\n")
    result = json.loads(given.results.read_text())
    (given.pages / "pictures").mkdir(exist_ok=True)
    for name in SHOWN:
        page = given.pages / f"{name}.md"
        write_atomically(page, insert(page.read_text(), "audit", table(name, result)))
        for kind, draw in (("lift", lift_picture), ("cost", cost_picture)):
            write_atomically(given.pages / "pictures" / f"{name}_{kind}.svg", draw(name, result))


if __name__ == "__main__":
    main()
