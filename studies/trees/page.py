"""Tables and picture of the study of trees, from its result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cactus_decoding.core.drafting.registry import as_draft_length, as_tree
from cactus_decoding.core.types import DraftLength
from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise
from cactus_decoding.lab.reporting.pictures import GREY, new_figure, to_svg
from cactus_decoding.lab.reporting.report import number
from scripts.pages import table
from scripts.results import read
from studies.relaxing.page import tokens_ratio
from studies.rules.page import compared
from studies.stored import read_results

COSTS_OF_16 = np.linspace(1.0, 3.0, 81)
DRAFT_COSTS = np.geomspace(0.01, 0.5, 81)


class Yield(NamedTuple):
    """What a step of a shape brings and takes, on average: tokens, nodes that it proposes, passes of the draft."""

    tokens: float
    nodes: float
    passes: float

    def speed(self, draft_cost: Any, token_cost: Any) -> Any:
        """Return tokens per pass of the target over one token, whose time both costs are told in."""
        return self.tokens / (1 + token_cost * self.nodes + draft_cost * self.passes)


TREE = "tree:"
"""How a shape of this study begins if it is a tree's."""


def shape_of(name: str) -> DraftLength:
    """Return what a shape's name in the result files stands for."""
    return as_tree(name.removeprefix(TREE)) if name.startswith(TREE) else as_draft_length(name)


def spelled(name: str) -> str:
    """Return a shape as it is asked for: a length's number, or ``tree=`` and the tree's spelling."""
    return name.replace(TREE, "tree=")


def shown(folder: Path, samplings: Sequence[str]) -> dict[str, str]:
    """Return the tables and the picture; raises `OSError` where a result file is missing."""
    told, passes = read(folder / "told.json")["told"], read(folder / "passes.json")["seconds"]
    found = {"told": _told(told), "passes": _passes(passes)}
    for sampling in samplings:
        chosen = read(folder / f"chosen-{sampling}.json")["chosen"]
        held_out = summarise(read_results(folder / f"{sampling}-held-out.jsonl"))
        found[f"held-out {sampling}"] = _held_out(chosen, held_out)
    return found | {"pictures/trees/where-trees-pay.svg": _picture(told, passes)}


def _held_out(chosen: Mapping[str, Mapping[str, str]], summaries: Sequence[RunSummary]) -> str:
    rows = []
    for kind, shapes in chosen.items():
        found = {str(each.config.num_speculative_tokens): each for each in summaries if _kind(each) == kind}
        chain = found[shapes["chain"]]
        roles: dict[str, list[str]] = {}
        for role, shape in shapes.items():
            roles.setdefault(shape, []).append(role)
        for shape, names in roles.items():
            summary = found[str(_plain(shape))]
            group, itself = summary.group, summary is chain
            score, time, *_ = compared(group, chain.group)
            rows.append([
                kind,
                f"{', '.join(names)}: `{spelled(shape)}`",
                number(summary.metrics["score"], 3) + ("" if itself else f"; {number(score, 3)}"),
                number(summary.metrics["acceptance_length"], 2),
                "–" if itself else number(tokens_ratio(group, chain.group), 3),
                f"{group.columns['drafted'].sum() / group.columns['steps'].sum():.1f}",
                "–" if itself else number(time, 3),
            ])  # fmt: skip
    header = (
        "asked", "shape", "score; − best chain", "tokens per step", "÷ best chain", "proposals per step",
        "time per answer ÷ best chain",
    )  # fmt: skip
    return table(header, rows, names=2)


def _plain(shape: str) -> int | str:
    return int(shape) if shape.isdecimal() else f"{TREE}{shape_of(shape)}" if shape.startswith(TREE) else shape


def _kind(summary: RunSummary) -> str:
    request = summary.config.request
    if summary.config.rule != "lossless":
        return "protected"
    return "lossless" if request.verification == "token" else "lossless, jointly"


def _yields(told: Sequence[Mapping[str, Any]]) -> dict[str, Yield]:
    return {
        each["shape"]: Yield(1 + each["accepted"] / steps, each["nodes"] / steps, each["passes"] / steps)
        for each in told
        for steps in [each["steps"]]
    }


def _told(told: Sequence[Mapping[str, Any]]) -> str:
    """Return tokens per pass of the target, at each pair of costs: of the best chain and tree, and the adaptive one."""
    yields, rows = _yields(told), []
    fixed = {shape: each for shape, each in yields.items() if "adaptive" not in shape}
    for shape in (each for each in yields if each not in fixed):
        length: Any = shape_of(shape)
        costs, own = (length.draft_cost, length.token_cost), yields[shape]
        speeds = {name: one.speed(*costs) for name, one in fixed.items()}
        chain, tree = (
            max((name for name in speeds if name.startswith(TREE) == trees), key=speeds.__getitem__)
            for trees in (False, True)
        )
        ratio = own.speed(*costs) / speeds[chain]
        rows.append([
            *(f"{cost:g}" for cost in costs), f"`{chain}`", f"{speeds[chain]:.3f}", f"`{spelled(tree)}`",
            f"{speeds[tree]:.3f}", f"{own.speed(*costs):.3f}", f"{own.nodes:.1f}", f"{own.passes:.1f}", f"{ratio:.3f}",
        ])  # fmt: skip
    header = (
        "draft pass", "each node", "best chain", "its tokens", "best fixed tree", "its tokens", "adaptive's tokens",
        "its nodes", "its passes", "÷ best chain",
    )  # fmt: skip
    return table(header, rows, names=0)


def _passes(passes: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        [nodes, *(f"{1000 * each[nodes]:.1f}" for each in passes.values())] for nodes in next(iter(passes.values()))
    ]
    rows.append(["16 ÷ 1", *(f"{each['16'] / each['1']:.2f}" for each in passes.values())])
    return table(("nodes", *(name.replace("-", "\N{NON-BREAKING HYPHEN}") for name in passes)), rows)


def _picture(told: Sequence[Mapping[str, Any]], passes: Mapping[str, Mapping[str, float]]) -> str:
    """Return how much faster the best fixed tree is than the best chain, by what 16 nodes and a draft's pass cost."""
    fixed = {shape: each for shape, each in _yields(told).items() if "adaptive" not in shape}
    of_16, draft_cost = np.meshgrid(COSTS_OF_16, DRAFT_COSTS)
    token_cost = (of_16 - 1) / 15

    def best(trees: bool) -> Any:
        speeds = [
            each.speed(draft_cost, token_cost) for shape, each in fixed.items() if shape.startswith(TREE) == trees
        ]
        return np.max(speeds, axis=0)

    gain = 100 * (best(True) / best(False) - 1)
    figure = new_figure()
    axes = figure.subplots()
    most = max(1.0, float(np.abs(gain).max()))
    filled = axes.contourf(of_16, draft_cost, gain, levels=np.linspace(-most, most, 13), cmap="BrBG")
    axes.contour(of_16, draft_cost, gain, levels=[0.0], colors="#000000", linewidths=1.2)
    figure.colorbar(filled, ax=axes, label="best tree over best chain, % more tokens per second", format="%.0f")
    draft = passes["bundled draft"]["1"] / passes["bundled target"]["1"]
    x = passes["bundled target"]["16"] / passes["bundled target"]["1"]
    axes.plot(min(x, COSTS_OF_16[-1]), draft, "o", color="#000000")
    axes.annotate("bundled pair, here", (min(x, COSTS_OF_16[-1]), draft), xytext=(-6, 6), ha="right",
                  textcoords="offset points")  # fmt: skip
    name, times = next((name, times) for name, times in passes.items() if not name.startswith("bundled"))
    axes.axvline(times["16"] / times["1"], color=GREY, linestyle="--")
    axes.annotate(name, (times["16"] / times["1"], DRAFT_COSTS[1]), rotation=90, xytext=(4, 0), color=GREY,
                  textcoords="offset points")  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("target's pass over 16 nodes, in passes over one")
    axes.set_ylabel("draft's pass, in target passes over one token")
    return to_svg(figure)
