"""`python -m factory.check_bundled`: whether trained models are good enough to be bundled."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from cactus_decoding import ModelDrafter, generate, load_pair, stream, zoo
from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting, rounded
from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, check_writable, write_atomically
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.policy.protection import Protection, may_relax
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.lab.evaluation.score import Score
from cactus_decoding.zoo.word_problems import WordProblem, word_problems
from factory.command import main

EXAMPLES = (
    "[bold]Examples[/bold]\n\npython -m factory.check_bundled --threads 1\n\n"
    "python -m factory.check_bundled --models ./trained --problems 100 --json check.json"
)
RELAXED = "cactus:delta=1.0"
PAPERS_SAMPLING: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "num_speculative_tokens": 20}
"""How the Cactus paper's first table samples, and its longer draft length."""
MAX_NEW_TOKENS = 256
PASSES, ROUNDS = 8, 100
"""Passes that are timed at once, and how often."""


@dataclass(frozen=True)
class PairScores:
    """How the target alone, the draft alone, and both in lossless speculation did on the same problems."""

    target: Score
    draft: Score
    lossless: Score


@dataclass(frozen=True)
class Disagreement:
    """What lossless speculation rejected, and what it accepts beside a relaxed rule.

    ``untruncated`` is lossless at temperature 1 with 6 proposals; of its rejections those are ``at_digits`` where the
    target put more than 0.01 on tokens with a digit. The others are in the Cactus paper's sampling with 20 proposals.
    """

    untruncated: Score
    rejections: int
    at_digits: int
    lossless: Score
    relaxed: Score

    @property
    def digit_share(self) -> float:
        """Part of the rejections that are at digits, where relaxing may change the answer."""
        return self.at_digits / self.rejections if self.rejections else 0.0

    @property
    def gain(self) -> float:
        """How many more tokens a step of the relaxed rule accepts: a fraction of what lossless accepts, or 0."""
        relaxed, lossless = (score.metrics.accepted_per_step for score in (self.relaxed, self.lossless))
        return relaxed / lossless - 1 if relaxed and lossless else 0.0


@dataclass(frozen=True)
class Floor:
    """A measured value, and between what it must be."""

    name: str
    value: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def met(self) -> bool:
        return self.least <= self.value <= self.most

    @property
    def asked(self) -> str:
        if math.isinf(self.most):
            return f"≥ {self.least:g}"
        return f"≤ {self.most:g}" if math.isinf(self.least) else f"{self.least:g} to {self.most:g}"


def check_floors(scores: PairScores) -> list[Floor]:
    """Compare what was measured with what the bundled pair must reach."""
    return [
        Floor("target accuracy", scores.target.accuracy, least=0.90),
        Floor("target − draft accuracy", scores.target.accuracy - scores.draft.accuracy, least=0.25),
        Floor("acceptance_length, lossless", scores.lossless.metrics.acceptance_length, 2.5, 5),
    ]


def check_wording(found: Disagreement, weights: Path) -> list[Floor]:
    """Compare a draft that disagrees about wording, and the folder of its weights, with what is asked of it.

    Its aims are 0.25 of the rejections, and a gain of 0.25 to 0.45; the rest is room for three standard deviations.
    """
    megabytes = sum(file.stat().st_size for file in weights.glob("*.safetensors")) / 1e6
    return [
        Floor("rejections at digits", found.digit_share, most=0.30),
        Floor("accepted per step, gain of Cactus", found.gain, 0.25, 0.55),
        Floor("megabytes of weights", megabytes, most=4),
    ]


def evaluate_pair(
    pair: Pair, draft_alone: Pair, problems: Sequence[WordProblem], *, num_speculative_tokens: int = 6, seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> PairScores:  # fmt: skip
    """Answer problems with the target alone, the draft alone, and both, at temperature 1; problem i with seed + i.

    ``draft_alone`` is a pair whose target is the draft.
    """
    if not problems:
        raise ValueError("problems must not be empty")
    scores = PairScores(Score(), Score(), Score())
    runs = ((scores.target, pair, 0), (scores.draft, draft_alone, 0), (scores.lossless, pair, num_speculative_tokens))
    for i, problem in enumerate(problems):
        for score, models, proposals in runs:
            how = {"temperature": 1.0, "max_new_tokens": MAX_NEW_TOKENS, "seed": seed + i}
            score.add(problem, generate(models, problem.prompt, num_speculative_tokens=proposals, **how))
        report(i + 1)
    return scores


def disagreement(
    pair: Pair, problems: Sequence[WordProblem], *, seed: int = 0, report: Callable[[int], None] = lambda done: None
) -> Disagreement:
    """Answer problems losslessly at temperature 1, and losslessly and relaxed in the Cactus paper's sampling.

    Problem i is answered with seed + i.
    """
    if not problems:
        raise ValueError("problems must not be empty")
    protection = Protection("digits")
    vocabulary = Vocabulary.of(pair.tokenizer, pair.target.model.config.vocab_size)
    digits = protection.mask(vocabulary).nonzero().squeeze(1)
    rejections = at_digits = 0
    untruncated, truncated = Score(), {"lossless": Score(), RELAXED: Score()}
    for i, problem in enumerate(problems):
        shared: dict[str, Any] = {"max_new_tokens": MAX_NEW_TOKENS, "seed": seed + i}
        response = stream(pair, problem.prompt, temperature=1.0, num_speculative_tokens=6, **shared)
        for outcome in response:
            # a last step's proposals beyond the end are judged too, but never handed on
            for visit in outcome.visits[: outcome.num_emitted]:
                if not visit.accepted:
                    rejections += 1
                    mass = visit.target_probs[digits].double().sum().item()
                    at_digits += not may_relax(mass, protection.threshold)
        untruncated.add(problem, response)
        for rule, score in truncated.items():
            score.add(problem, generate(pair, problem.prompt, rule=rule, **PAPERS_SAMPLING, **shared))
        report(i + 1)
    return Disagreement(untruncated, rejections, at_digits, truncated["lossless"], truncated[RELAXED])


@torch.inference_mode()
def pass_ratio(pair: Pair) -> float:
    """Return how long the draft takes for one more token after a solution, as a fraction of the target's time.

    Both are timed in turn, a few passes at once, and the medians are compared.
    """
    assert isinstance(pair.drafter, ModelDrafter)
    problem = next(word_problems("validation"))
    ids = pair.tokenizer(f"{problem.prompt} {problem.solution}").input_ids
    models = [CachedModel(pair.drafter.model), CachedModel(pair.target.model)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for model in models:
        model.append(ids, rows=1)
    for _ in range(ROUNDS):
        for model, taken in zip(models, seconds, strict=True):
            model.rollback(len(ids))
            start = time.perf_counter()
            for _ in range(PASSES):
                model.append(ids[-1:], rows=1)
            taken.append(time.perf_counter() - start)
    return statistics.median(seconds[0]) / statistics.median(seconds[1])


def check_bundled(
    problems: Annotated[int, typer.Option(min=1, metavar="N", help="How many held-out problems to answer.")] = 500,
    models: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Folder with target/, worded/ and draft/, as factory.train_bundled writes it.",
        show_default="bundled",
    )] = None,
    num_speculative_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens that the draft proposes per step.")
    ] = 6,
    seed: Annotated[int, typer.Option(min=0, max=2**32, metavar="S", help="Of the problems and of the answers.")] = 0,
    json_file: Annotated[Path | None, typer.Option(
        "--json", metavar="FILE", dir_okay=False, help="Write the result, with its provenance, here.",
    )] = None,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Measure the target with each of its drafts, and fail where a floor is missed.

    On held-out problems at temperature 1, the target alone must answer 90 % right, the plain draft at least 25 points
    fewer, and lossless speculation with it must have an acceptance_length between 2.5 and 5. On as many validation
    problems, at most 30 % of the worded draft's lossless rejections may be at digits, and in the Cactus paper's
    sampling with 20 proposals Cactus must accept 25 to 55 % more tokens a step. Exit code 1: a floor was missed.
    """
    check_integer("num_speculative_tokens", num_speculative_tokens, 1)
    check_writable(json_file)
    options.prepare_process(threads, small=True)
    target, worded, draft = (
        zoo.path(role) if models is None else models / role for role in ("target", "worded", "draft")
    )
    pair, draft_alone, worded_pair = (
        load_pair(*names, dtype=torch.float32) for names in ((target, draft), (draft, "ngram"), (target, worded))
    )
    how = {"num_speculative_tokens": num_speculative_tokens, "seed": seed}
    with counting("Answering", problems) as report:
        asked = list(islice(word_problems("test", seed=seed), problems))
        scores = evaluate_pair(pair, draft_alone, asked, **how, report=report)
    with counting("Answering with the worded draft", problems) as report:
        asked = list(islice(word_problems("validation", seed=seed), problems))
        wording = disagreement(worded_pair, asked, seed=seed, report=report)
    ratios = {name: pass_ratio(each) for name, each in (("worded", worded_pair), ("draft", pair))}
    floors = [*check_floors(scores), *check_wording(wording, worded)]
    alone = {name: getattr(scores, name) for name in ("target", "draft", "lossless")}
    drafted = {name: getattr(wording, name) for name in ("untruncated", "lossless", "relaxed")}
    if json_file is not None:
        counts = {name: getattr(wording, name) for name in ("rejections", "at_digits", "digit_share", "gain")}
        named = {"models": None if models is None else str(models), "problems": problems}
        result = {
            "scores": {name: score.as_dict() for name, score in alone.items()},
            "worded": {"split": "validation"} | counts | {name: each.as_dict() for name, each in drafted.items()},
            "pass_ratios": ratios,
            "floors": [{name: getattr(each, name) for name in ("name", "value", "asked", "met")} for each in floors],
            "provenance": provenance({**named, "split": "test", "temperature": 1.0, **how}),
        }
        write_atomically(json_file, as_json(result, indent=2) + "\n")
    Console(highlight=False).print(table(alone, drafted, ratios, floors))
    raise typer.Exit(0 if all(floor.met for floor in floors) else 1)


def table(alone: dict[str, Score], drafted: dict[str, Score], ratios: dict[str, float], floors: list[Floor]) -> Table:
    made = Table("measure", "value", "asked", "", title=f"The bundled models on {alone['target'].answers} problems")
    made.columns[1].justify = "right"
    for floor in floors:
        met = "[bold #009e73]met[/]" if floor.met else "[bold underline #d55e00]missed[/]"
        made.add_row(floor.name, rounded(floor.value, 3), floor.asked, met)
    made.add_section()
    for name, score in (alone | {f"worded, {name}": score for name, score in drafted.items()}).items():
        low, high = score.interval
        made.add_row(f"right answers, {name}", f"{score.right}/{score.answers}", f"95 %: {low:.3f} to {high:.3f}", "")
    for name, score in drafted.items():
        made.add_row(f"accepted per step, worded, {name}", rounded(score.metrics.accepted_per_step, 3), "", "")
    for name, ratio in ratios.items():
        made.add_row(f"time of a pass ÷ target's, {name}", rounded(ratio, 3), "", "")
    return made


if __name__ == "__main__":
    sys.exit(main(check_bundled, EXAMPLES))
