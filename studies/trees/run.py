"""Where trees of proposals pay: regenerates docs/studies/trees.md.

    python -m studies.trees.run                       everything: an hour on one idle core, can be interrupted
    python -m studies.trees.run --sampling truncated  one of the two samplings, for a process of its own
    python -m studies.trees.run --only-render         tables and pictures again, from the result files

Shapes are chosen on validation problems; the tables are of held-out ones. Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from cactus_decoding import Metrics, ModelDrafter, Pair, Request, generate, load_pair
from cactus_decoding.cli.display import counting
from cactus_decoding.core.drafting.registry import as_draft_length, as_tree
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.types import DraftLength
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.lab.evaluation.run_config import RunConfig, proposing
from cactus_decoding.lab.evaluation.runs.summary import RunSummary
from cactus_decoding.lab.reporting.pictures import GREY
from cactus_decoding.lab.reporting.report import with_interval
from cactus_decoding.zoo.word_problems import word_problems
from scripts.pages import table
from scripts.results import read, write
from studies.relaxing.run import TEST, VALIDATION
from studies.shown import Axes, compared, picture
from studies.stored import read_runs
from studies.study import SAMPLING_OPTION, SAMPLINGS, answer, pass_medians, study_of_parts

FOLDER = Path(__file__).with_name("results")
DRAFT = "bundled:worded"
KINDS: dict[str, dict[str, Any]] = {
    "lossless": {"rule": "lossless"},
    "lossless, jointly": {"rule": "lossless", "verification": "joint"},
    "protected": {"rule": "clamped:width=2.0", "policy": relaxation_policy(protect="digits")},
}
"""What is asked; chains are verified in blocks where trees are jointly."""
TREE = "tree:"
"""How a shape of this study begins if it is a tree's."""
CHAINS = ("2", "4", "6", "8", "10", "16")
SIXTEEN = (
    "tree:static=2.1.1.1.1.1.1.1",
    "tree:static=4.1.1.1",
    "tree:best_first,nodes=16",
    "tree:best_first,nodes=16,depth=12",
    "tree:best_first,nodes=16,depth=16,acceptance=0.95",
)
"""Trees of sixteen nodes."""
TREES = ("tree:static=3.2.1", "tree:best_first,nodes=8", *SIXTEEN)
NODES, PASSES = (1, 2, 4, 8, 16, 32), 200
"""Sizes of passes, and passes of each, in turn."""
COSTS_OF_16, DRAFT_COSTS = np.linspace(1.0, 3.0, 81), np.geomspace(0.01, 0.5, 81)


@dataclass(frozen=True)
class Sizes:
    """How many problems each part has."""

    validated: int = 60  # on which shapes are chosen
    held_out: int = 300
    told: int = 60  # of which steps are counted


def shape_of(name: str) -> DraftLength:
    """Return what a shape's name in the result files stands for."""
    return as_tree(name.removeprefix(TREE)) if name.startswith(TREE) else as_draft_length(name)


def spelled(name: str) -> str:
    """Return a shape as it is asked for: a length's number, or ``tree=`` and the tree's spelling."""
    return name.replace(TREE, "tree=")


def config(kind: str, shape: str, sampling: str, task: str, problems: int) -> RunConfig:
    """Return the run of a shape."""
    asked = KINDS[kind] | proposing(shape_of(shape), KINDS[kind].get("verification", "token"))
    return RunConfig(task, "bundled", DRAFT, problems=problems, request=Request(sampling=SAMPLINGS[sampling], **asked))


def measure(given: Namespace, sizes: Sizes, about: dict[str, Any]) -> None:
    """Answer problems under each sampling, count what steps take, and time passes."""
    for sampling in given.sampling:
        answer_problems(given.folder, sampling, sizes, about)
    for name, key, measured in (("told", "told", partial(count_steps, sizes.told)), ("passes", "seconds", time_passes)):
        if not (path := given.folder / f"{name}.json").exists():
            write(path, {key: measured()}, about)


def answer_problems(folder: Path, sampling: str, sizes: Sizes, about: dict[str, Any]) -> None:
    """Answer validation problems with every shape, and held-out ones with what these choose for each kind.

    That is the chain and the tree of the least wall time, the longest chain, and the tree of 16 nodes of the most
    tokens per step.
    """
    tried = {
        kind: {shape: config(kind, shape, sampling, VALIDATION, sizes.validated) for shape in (*CHAINS, *TREES)}
        for kind in KINDS
    }
    path = folder / f"{sampling}-validated.jsonl"
    runs = answer(path, [each for shapes in tried.values() for each in shapes.values()], about)
    chosen: dict[str, dict[str, str]] = {}
    for kind, shapes in tried.items():

        def value(shape: str, metric: str, shapes: Mapping[str, RunConfig] = shapes) -> float:
            return runs[shapes[shape]].known(metric).value

        chosen[kind] = {
            "chain": min(CHAINS, key=lambda shape: value(shape, "seconds_per_answer")),
            "chain of 16": "16",
            "tree": min(TREES, key=lambda shape: value(shape, "seconds_per_answer")),
            "tree of 16": max(SIXTEEN, key=lambda shape: value(shape, "acceptance_length")),
        }
    write(folder / f"chosen-{sampling}.json", {"chosen": chosen}, about)
    held_out = [
        config(kind, shape, sampling, TEST, sizes.held_out)
        for kind, shapes in chosen.items()
        for shape in dict.fromkeys(shapes.values())
    ]
    answer(folder / f"{sampling}-held-out.jsonl", held_out, about)


class CountedModel(CachedModel):
    """Counts passes."""

    passes = 0

    def append(self, *given: Any, **named: Any) -> Tensor:
        self.passes += 1
        return super().append(*given, **named)


def count_steps(problems: int) -> list[dict[str, Any]]:
    """Count what steps of chains and trees bring and take: tokens, nodes, and passes of the draft. Nothing is timed."""
    loaded = load_pair(draft=DRAFT)
    assert isinstance(loaded.drafter, ModelDrafter)
    model = CountedModel(loaded.drafter.model)
    pair = Pair(loaded.target, ModelDrafter(model, loaded.drafter.vocabulary), loaded.tokenizer, loaded.bundled)
    prompts = [each.prompt for each in islice(word_problems("validation", seed=17), problems)]
    shapes, found = [*CHAINS, *TREES], []
    with counting("steps by shape", len(shapes)) as progress:
        for place, shape in enumerate(shapes, 1):
            model.passes, total = 0, Metrics()
            for seed, prompt in enumerate(prompts):
                total += generate(pair, prompt, Request(seed=seed).proposing(shape_of(shape))).metrics
            counts = {"steps": total.steps, "accepted": total.accepted, "nodes": total.drafted, "passes": model.passes}
            found.append({"shape": shape} | counts)
            progress(place)
    return found


def of_qwen3_s_shape() -> PreTrainedModel:
    """Return a model of random weights in bfloat16, of the shape of Qwen3-0.6B."""
    config = Qwen3Config(
        vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def time_passes() -> dict[str, dict[str, float]]:
    """Time passes over several nodes, each seeing the text and itself, of the bundled pair and of a larger target."""
    pair = load_pair(draft=DRAFT)
    assert isinstance(pair.drafter, ModelDrafter)
    models = {
        "bundled target": pair.target,
        "bundled draft": CachedModel(pair.drafter.model),
        "Qwen3-0.6B's shape, bfloat16": CachedModel(of_qwen3_s_shape()),
    }
    return pass_medians(models, NODES, PASSES, trees=True)


def shown(folder: Path, samplings: Sequence[str]) -> dict[str, str]:
    """Return the tables and the picture; raises `OSError` where a result file is missing."""
    passes, yields = read(folder / "passes.json")["seconds"], Yields(read(folder / "told.json")["told"])
    rows = [[nodes, *(f"{1000 * each[nodes]:.1f}" for each in passes.values())] for nodes in passes["bundled draft"]]
    rows.append(["16 ÷ 1", *(f"{each['16'] / each['1']:.2f}" for each in passes.values())])
    names = (name.replace("-", "\N{NON-BREAKING HYPHEN}") for name in passes)
    found = {"passes": table(("nodes", *names), rows)}
    for sampling in samplings:
        chosen = read(folder / f"chosen-{sampling}.json")["chosen"]
        held_out = read_runs(folder / f"{sampling}-held-out.jsonl")
        found[f"held-out {sampling}"] = _held_out(chosen, held_out, sampling)
    return found | {"pictures/trees/where-trees-pay.svg": _picture(yields, passes)}


def _held_out(chosen: Mapping[str, Mapping[str, str]], runs: Mapping[RunConfig, RunSummary], sampling: str) -> str:
    rows, problems = [], next(iter(runs)).problems
    for kind, shapes in chosen.items():
        found = {shape: runs[config(kind, shape, sampling, TEST, problems)] for shape in shapes.values()}
        chain = found[shapes["chain"]]
        for shape, run in found.items():
            roles = ", ".join(role for role, each in shapes.items() if each == shape)
            differences = compared(run.group, chain.group)
            score, tokens, time = (with_interval(differences[name], 3) for name in ("score", "tokens", "time"))
            rows.append([
                kind,
                f"{roles}: `{spelled(shape)}`",
                with_interval(run.metrics["score"], 3) + ("" if run is chain else f"; {score}"),
                with_interval(run.metrics["acceptance_length"], 2),
                "–" if run is chain else tokens,
                f"{run.group.columns['drafted'].sum() / run.group.columns['steps'].sum():.1f}",
                "–" if run is chain else time,
            ])  # fmt: skip
    header = (
        "asked", "shape", "score; − best chain", "tokens per step", "÷ best chain", "proposals per step",
        "time per answer ÷ best chain",
    )  # fmt: skip
    return table(header, rows, names=2)


class Yield(NamedTuple):
    """What a step of a shape brings and takes, on average: tokens, nodes that it proposes, passes of the draft."""

    tokens: float
    nodes: float
    passes: float

    def speed(self, draft_cost: Any, token_cost: Any) -> Any:
        """Return tokens per pass of the target over one token, whose time both costs are told in."""
        return self.tokens / (1 + token_cost * self.nodes + draft_cost * self.passes)


class Yields:
    """What chains and trees bring."""

    def __init__(self, told: Sequence[Mapping[str, Any]]) -> None:
        found = {
            each["shape"]: Yield(*(each[name] / each["steps"] for name in ("accepted", "nodes", "passes")))
            for each in told
        }
        found = {shape: each._replace(tokens=1 + each.tokens) for shape, each in found.items()}
        self.chains = {shape: each for shape, each in found.items() if not shape.startswith(TREE)}
        self.trees = {shape: each for shape, each in found.items() if shape.startswith(TREE)}


def _picture(yields: Yields, passes: Mapping[str, Mapping[str, float]]) -> str:
    """Return how much faster the best fixed tree is than the best chain, by what 16 nodes and a draft's pass cost."""
    of_16, draft_cost = np.meshgrid(COSTS_OF_16, DRAFT_COSTS)
    chains, trees = (
        np.max([each.speed(draft_cost, (of_16 - 1) / 15) for each in some.values()], axis=0)
        for some in (yields.chains, yields.trees)
    )
    gain = 100 * (trees / chains - 1)
    most = max(1.0, float(np.abs(gain).max()))
    draft = passes["bundled draft"]["1"] / passes["bundled target"]["1"]
    name = next(each for each in passes if not each.startswith("bundled"))
    target, larger = (passes[each]["16"] / passes[each]["1"] for each in ("bundled target", name))

    def draw(axes: Axes) -> None:
        filled = axes.contourf(of_16, draft_cost, gain, levels=np.linspace(-most, most, 13), cmap="BrBG")
        axes.contour(of_16, draft_cost, gain, levels=[0.0], colors="#000000", linewidths=1.2)
        axes.figure.colorbar(filled, ax=axes, label="best tree over best chain, % more tokens per second",
                             format="%.0f")  # fmt: skip
        here = min(target, COSTS_OF_16[-1]), draft
        axes.plot(*here, "o", color="#000000")
        axes.annotate("bundled pair, here", here, xytext=(-6, 6), ha="right", textcoords="offset points")
        axes.axvline(larger, color=GREY, linestyle="--")
        axes.annotate(name, (larger, DRAFT_COSTS[1]), rotation=90, xytext=(4, 0), color=GREY,
                      textcoords="offset points")  # fmt: skip
        axes.set_yscale("log")
        axes.set_xlabel("target's pass over 16 nodes, in passes over one")
        axes.set_ylabel("draft's pass, in target passes over one token")

    return picture(draw, grid=False)


if __name__ == "__main__":
    study_of_parts(__doc__, FOLDER, Sizes(), measure, shown, sampling=SAMPLING_OPTION)
