"""Where trees of proposals pay: regenerates docs/studies/trees.md.

    python -m studies.trees.run                       everything: an hour on one core, can be interrupted
    python -m studies.trees.run --sampling truncated  one of the two samplings, for a process of its own
    python -m studies.trees.run --part passes         one of the parts: nothing else may run beside `passes`
    python -m studies.trees.run --only-render         tables and pictures again, from the result files

Shapes are chosen on validation problems; the tables are of held-out ones. Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.shapes import qwen3
from cactus_decoding import Metrics, ModelDrafter, Pair, Request, generate, load_pair
from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.types import tree_inputs
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.lab.evaluation.run_config import RunConfig, proposing
from cactus_decoding.zoo.word_problems import word_problems
from scripts.pages import put
from scripts.results import write
from studies.relaxing.run import SAMPLINGS, TEST, VALIDATION, seconds, tokens_per_step
from studies.study import answer, at_most, medians_in_turn, parser_of_answers
from studies.trees.page import shape_of, shown

FOLDER = Path(__file__).with_name("results")
DRAFT = "bundled:worded"
KINDS: dict[str, dict[str, Any]] = {
    "lossless": {"rule": "lossless"},
    "lossless, jointly": {"rule": "lossless", "verification": "joint"},
    "protected": {"rule": "clamped:width=2.0", "policy": relaxation_policy(protect="digits")},
}
"""What is asked; chains are verified in blocks where trees are jointly."""
CHAINS = ("2", "4", "6", "8", "10", "16")
SIXTEEN = (
    "tree:static=2.1.1.1.1.1.1.1",
    "tree:static=4.1.1.1",
    "tree:best_first,nodes=16",
    "tree:best_first,nodes=16,depth=12",
    "tree:best_first,nodes=16,depth=16,acceptance=0.95",
)
"""Trees of sixteen nodes."""
TREES = ("tree:static=3.2.1", "tree:best_first,nodes=8", *SIXTEEN, "tree:adaptive")
COSTS = tuple(product((0.02, 0.1, 0.3), (0.0, 0.02, 0.1)))
"""What `adaptive` is told: a draft's pass and a proposal's verification, in passes of the target over one token."""
NODES = (1, 2, 4, 8, 16, 32)
PASSES = 200
"""Of each size, in turn."""
PARTS = ("answers", "told", "passes")


@dataclass(frozen=True)
class Sizes:
    """How many problems each part has."""

    validated: int = 60  # on which shapes are chosen
    held_out: int = 300
    told: int = 60  # of `adaptive` at each pair of costs


def config(kind: str, shape: str, sampling: str, task: str, problems: int) -> RunConfig:
    """Return the run of a shape."""
    asked = dict(KINDS[kind])
    asked |= proposing(shape_of(shape), asked.get("verification", "token"))
    request = Request(sampling=SAMPLINGS[sampling], **asked)
    return RunConfig(task, "bundled", DRAFT, problems=problems, request=request)


def answer_problems(folder: Path, sampling: str, sizes: Sizes, arguments: Mapping[str, Any]) -> None:
    """Answer validation problems with every shape, and held-out ones with what these choose for each kind.

    That is the chain and the tree of the least wall time, the longest chain, the tree of 16 nodes of the most tokens
    per step, and the adaptive ones.
    """
    about = provenance(arguments)
    tried = {
        kind: {shape: config(kind, shape, sampling, VALIDATION, sizes.validated) for shape in (*CHAINS, *TREES)}
        for kind in KINDS
    }
    path = folder / f"{sampling}-validated.jsonl"
    results = answer(path, [each for shapes in tried.values() for each in shapes.values()], about)
    chosen: dict[str, dict[str, str]] = {}
    for kind, shapes in tried.items():
        found = {shape: results[each] for shape, each in shapes.items()}
        chosen[kind] = {
            "chain": min(CHAINS, key=lambda shape: seconds(found[shape])),
            "chain of 16": "16",
            "tree": min(TREES[:-1], key=lambda shape: seconds(found[shape])),
            "tree of 16": max(SIXTEEN, key=lambda shape: tokens_per_step(found[shape])),
            "adaptive tree": TREES[-1],
        }
    write(folder / f"chosen-{sampling}.json", {"chosen": chosen}, arguments)
    held_out = [
        config(kind, shape, sampling, TEST, sizes.held_out)
        for kind, shapes in chosen.items()
        for shape in dict.fromkeys(shapes.values())
    ]
    answer(folder / f"{sampling}-held-out.jsonl", held_out, about)


class CountedModel(CachedModel):
    """Counts passes."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.passes = 0

    def append(self, *given: Any, **named: Any) -> Tensor:
        self.passes += 1
        return super().append(*given, **named)


def tell_costs(folder: Path, sizes: Sizes, arguments: Mapping[str, Any]) -> None:
    """Let adaptive trees take costs as they are told, and chains and trees of fixed shapes beside them.

    Nothing is timed: a step takes one pass of the target, and what its passes of the draft and its proposals cost.
    """
    path = folder / "told.json"
    if path.exists():
        return
    loaded = load_pair(draft=DRAFT)
    assert isinstance(loaded.drafter, ModelDrafter)
    model = CountedModel(loaded.drafter.model)
    pair = Pair(loaded.target, ModelDrafter(model, loaded.drafter.vocabulary), loaded.tokenizer, loaded.bundled)
    prompts = [each.prompt for each in islice(word_problems("validation", seed=17), sizes.told)]
    shapes = [*CHAINS, *TREES[:-1]]
    shapes += [f"tree:adaptive,draft_cost={draft!r},token_cost={token!r}" for draft, token in COSTS]
    found = []
    with counting("trees that are told costs", len(shapes)) as progress:
        for number, shape in enumerate(shapes, 1):
            model.passes, total = 0, Metrics()
            length = shape_of(shape)  # one object: it goes on learning
            for seed, prompt in enumerate(prompts):
                total += generate(pair, prompt, Request(seed=seed).proposing(length)).metrics
            counts = {"steps": total.steps, "accepted": total.accepted, "nodes": total.drafted, "passes": model.passes}
            found.append({"shape": shape} | counts)
            progress(number)
    write(path, {"told": found}, arguments)


def time_passes(folder: Path, arguments: Mapping[str, Any]) -> None:
    """Time passes over several nodes, each seeing the text and itself, of the bundled pair and of a larger target."""
    path = folder / "passes.json"
    if path.exists():
        return
    pair = load_pair(draft=DRAFT)
    assert isinstance(pair.drafter, ModelDrafter)
    models = {
        "bundled target": pair.target,
        "bundled draft": CachedModel(pair.drafter.model),
        "Qwen3-0.6B's shape, bfloat16": CachedModel(qwen3(torch.bfloat16)),
    }
    times: dict[str, dict[str, float]] = {}
    for name, model in models.items():
        model.reset()
        model.append(list(range(5, 105)), rows=1)
        timed = {
            str(nodes): partial(model.append, [7] * nodes, rows=nodes, **tree_inputs(100, [-1] * nodes))
            for nodes in NODES
        }
        with torch.inference_mode():
            medians_in_turn(timed, 1, partial(model.rollback, 100))  # warms up
            times[name] = medians_in_turn(timed, PASSES, partial(model.rollback, 100))
    write(path, {"seconds": times}, arguments)


def main() -> None:
    """Answer what is missing, then render."""
    given = parser_of_answers(__doc__, SAMPLINGS, FOLDER, part=([*PARTS], {"choices": PARTS})).parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    arguments, sizes = {"study": "trees", "problems": given.problems}, at_most(given.problems, Sizes())
    options.prepare(1, small=True)
    asked = [] if given.only_render else given.part
    if "answers" in asked:
        for sampling in given.sampling:
            answer_problems(given.folder, sampling, sizes, arguments)
    if "told" in asked:
        tell_costs(given.folder, sizes, arguments)
    if "passes" in asked:
        time_passes(given.folder, arguments)
    if not given.only_answer:
        put(given.page, shown(given.folder, given.sampling))


if __name__ == "__main__":
    main()
