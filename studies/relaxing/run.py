"""Whether relaxing pays where the answer does not depend on it: regenerates docs/studies/relaxing.md.

    python -m studies.relaxing.run                       everything: hours on one core, can be interrupted
    python -m studies.relaxing.run --sampling truncated  one of the two samplings, for a process of its own
    python -m studies.relaxing.run --only-render         tables and pictures again, from the result files

Widths, thresholds and draft lengths are chosen on validation problems; the tables are of held-out ones. Needs
matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from cactus_decoding import Request, SamplingParams, load_pair
from cactus_decoding.cli import options
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.registry import as_draft_length
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.results import RunResult
from scripts.pages import put
from scripts.results import write
from studies.relaxing.page import shown
from studies.study import answer, at_most, medians_in_turn, parser_of_answers

FOLDER = Path(__file__).with_name("results")
SAMPLINGS = {"plain": SamplingParams(), "truncated": SamplingParams(temperature=0.6, top_k=20, top_p=0.95)}
DRAFT = "bundled:worded"
VALIDATION, TEST = "word_problems:split=validation,seed=17", "word_problems"
LENGTHS = (4, 6, 8, 10, 20)
FIRST_LENGTH = 8
"""At which widths and thresholds are compared."""
WIDTHS = (1.0, 2.0, 3.0, 5.0)
POLICIES: dict[str, list[dict[str, Any]]] = {
    "unprotected": [{}],
    "protected": [{"protect": "digits"}],
    "learned": [{"importance": DRAFT, "max_importance": each} for each in (0.1, 0.3)],
}
"""What is tried of each kind of policy."""
ALIKE = 0.02
"""By so much wall times may differ and count as alike."""
CACTUS = "cactus:delta=1.0"
COMPARED = (CACTUS, "cactus:delta=0.75", "typical", "top_k:k=10", "ensemble:weight=0.3")
"""What the Cactus paper's first table compares."""
PAPER_LENGTH = 20
FEWER = {"truncated": 300}
"""Held-out problems of what was chosen, where it is not the usual number."""
PASSES, DRAFTED = 400, 8
"""Steps whose passes are timed, and passes of the draft in each."""


@dataclass(frozen=True)
class Sizes:
    """How many problems each part has: of validation, on which settings are chosen, and held-out ones."""

    chosen: int = 200  # on which widths and thresholds are chosen
    lengths: int = 60  # on which draft lengths are chosen
    tuned: int = 1000  # held-out, of the settings that were chosen
    paper: int = 100  # of the paper's table
    grid: int = 25  # of every rule with every policy at every length


class Study:
    """One sampling's half of the study, with a result file for each part."""

    def __init__(self, folder: Path, sampling: str, sizes: Sizes, arguments: Mapping[str, Any]) -> None:
        self.folder, self.sampling, self.sizes, self.arguments = folder, sampling, sizes, arguments

    def config(self, rule: str, length: int, policy: Mapping[str, Any], task: str, problems: int) -> RunConfig:
        """Return the run of a rule under a relaxation policy."""
        how: dict[str, Any] = {"sampling": SAMPLINGS[self.sampling], "policy": relaxation_policy(**policy)}
        request = Request(rule, num_speculative_tokens=length, **how)
        return RunConfig(task, "bundled", DRAFT, problems=problems, request=request)

    def answer(self, part: str, configs: Sequence[RunConfig]) -> dict[RunConfig, RunResult]:
        """Answer what the result file lacks of some runs; return the results of all."""
        return answer(self.folder / f"{self.sampling}-{part}.jsonl", configs, provenance(self.arguments))

    def choose(self) -> dict[str, RunConfig]:
        """Return the best run of each kind of policy on validation problems, of lossless and of protected Cactus.

        A width (and a threshold) is the one of the most tokens a step at `FIRST_LENGTH` among those whose score is not
        below lossless's; where none is, the one of the highest score. A length is the longest one whose wall time per
        answer is at most `ALIKE` above the least: it takes the fewest passes of the target.
        """
        validated = partial(self.config, task=VALIDATION, problems=self.sizes.chosen)
        lossless = validated("lossless", FIRST_LENGTH, {})
        tried = {
            kind: [
                validated(f"clamped:width={width!r}", FIRST_LENGTH, policy) for width, policy in product(WIDTHS, each)
            ]
            for kind, each in POLICIES.items()
        }
        results = self.answer("chosen", [lossless, *(config for configs in tried.values() for config in configs)])
        floor = score(results[lossless])
        best = {"lossless": lossless} | {kind: loosest(configs, results, floor) for kind, configs in tried.items()}
        best["Cactus, protected"] = validated(CACTUS, FIRST_LENGTH, POLICIES["protected"][0])
        fewer = {kind: replace(config, problems=self.sizes.lengths) for kind, config in best.items()}
        at_lengths = {kind: [_with_length(config, length) for length in LENGTHS] for kind, config in fewer.items()}
        results = self.answer("chosen", [config for configs in at_lengths.values() for config in configs])
        chosen = {kind: longest(configs, results) for kind, configs in at_lengths.items()}
        content = {"chosen": {kind: config.as_dict() for kind, config in chosen.items()}}
        write(self.folder / f"chosen-{self.sampling}.json", content, self.arguments)
        return chosen

    def answer_held_out(self, chosen: Mapping[str, RunConfig]) -> None:
        """Answer held-out problems: what was chosen, the paper's table, and the grid."""
        held_out = partial(replace, task=TEST)
        lengths = {config.num_speculative_tokens for config in chosen.values()}
        problems = min(self.sizes.tuned, FEWER.get(self.sampling, self.sizes.tuned))
        tuned = [held_out(config, problems=problems) for config in chosen.values()]
        tuned += [_with_length(tuned[0], int(length)) for length in sorted(lengths)]  # lossless beside each of them
        self.answer("tuned", tuned)

        if self.sampling == "truncated":
            paper = partial(self.config, length=PAPER_LENGTH, task=TEST, problems=self.sizes.paper)
            compared = [paper(rule, policy={}) for rule in ("lossless", *COMPARED)]
            compared.append(paper(chosen["protected"].rule, policy=POLICIES["protected"][0]))
            self.answer("paper", compared)

        learned = chosen["learned"].request.policy.as_dict()
        policies = [{}, POLICIES["protected"][0], {name: learned[name] for name in POLICIES["learned"][0]}]
        grid = [
            self.config(rule, length, policy, TEST, self.sizes.grid)
            for rule in (*COMPARED, *dict.fromkeys(chosen[kind].rule for kind in POLICIES))
            for policy in policies
            for length in LENGTHS
        ]
        grid += [self.config("lossless", length, {}, TEST, self.sizes.grid) for length in LENGTHS]
        self.answer("grid", grid)


def score(result: RunResult) -> float:
    """Return the share of right answers."""
    return float(result.column("right").mean())


def seconds(result: RunResult) -> float:
    """Return the wall time per answer."""
    return float(result.column("seconds").mean())


def tokens_per_step(result: RunResult) -> float:
    """Return how many tokens a step yields."""
    return 1 + float(result.column("accepted").sum() / result.column("steps").sum())


def loosest(configs: Sequence[RunConfig], results: Mapping[RunConfig, RunResult], floor: float) -> RunConfig:
    """Return the run of the most tokens a step among those whose score reaches a floor, or else of the best score."""
    good = [config for config in configs if score(results[config]) >= floor]
    if good:
        return max(good, key=lambda config: tokens_per_step(results[config]))
    return max(configs, key=lambda config: score(results[config]))


def longest(configs: Sequence[RunConfig], results: Mapping[RunConfig, RunResult]) -> RunConfig:
    least = min(seconds(results[config]) for config in configs)
    alike = [config for config in configs if seconds(results[config]) <= least * (1 + ALIKE)]
    return max(alike, key=lambda config: int(config.num_speculative_tokens))


def _with_length(config: RunConfig, length: int) -> RunConfig:
    return config.asking(num_speculative_tokens=as_draft_length(length))


def time_machine(folder: Path, arguments: Mapping[str, Any]) -> None:
    """Measure passes over a cache of 100 tokens in turn: the target's on several tokens, then some of the draft's."""
    path = folder / "costs.json"
    if path.exists():
        return
    pair = load_pair(draft=DRAFT)
    assert isinstance(pair.drafter, ModelDrafter)
    draft = CachedModel(pair.drafter.model)

    def passes(model: CachedModel, tokens: int, in_a_row: int) -> None:
        for _ in range(in_a_row):
            model.append([7] * tokens, rows=tokens)

    timed = {f"target on {n}": partial(passes, pair.target, n, 1) for n in (1, 5, 9, 21)}
    with torch.inference_mode():
        for model in (pair.target, draft):
            model.reset()
            model.append(list(range(5, 105)), rows=1)
        timed["draft on 1"] = partial(passes, draft, 1, DRAFTED)
        medians = medians_in_turn(timed, PASSES, lambda: [model.rollback(100) for model in (pair.target, draft)])
    medians["draft on 1"] /= DRAFTED
    write(path, {"seconds": medians}, arguments)


def main() -> None:
    """Answer what is missing, then render."""
    choose = (False, "end before any held-out problem is answered")
    given = parser_of_answers(__doc__, SAMPLINGS, FOLDER, only_choose=choose).parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    arguments, sizes = {"study": "relaxing", "problems": given.problems}, at_most(given.problems, Sizes())
    options.prepare(1, small=True)
    if not given.only_render:
        for sampling in given.sampling:
            study = Study(given.folder, sampling, sizes, arguments)
            chosen = study.choose()
            if not given.only_choose:
                study.answer_held_out(chosen)
        if not given.only_choose:
            time_machine(given.folder, arguments)
    if not (given.only_answer or given.only_choose):
        put(given.page, shown(given.folder, given.sampling))


if __name__ == "__main__":
    main()
