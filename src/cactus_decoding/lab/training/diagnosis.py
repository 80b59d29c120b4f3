"""Which tokens a pair's rejections are at, and what would win them back; also in sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.core.drafting.timing import PassTimes
from cactus_decoding.core.files.writing import plain_json
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.policy.relaxation import FittedPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.core.types import ROOT, AcceptanceRule, Proposal, StepRows
from cactus_decoding.lab.evaluation.intervals import Interval, ratio_of_sums
from cactus_decoding.lab.evaluation.score import steps_taken
from cactus_decoding.lab.training.probe import AT_ONCE, FOLDS, Probe, Recorded, change

CLASSES: Mapping[str, str] = {"digits": r"\d", "words": r"[^\W\d_]", "spaces and lines": r"^\s+$", "signs": r"\S"}
"""Kinds of tokens; the first pattern that is found in a token's text decides."""
CONTROL = "control tokens"
MAX_LENGTH = 20  # no more proposals per step are tried
BRANCHES = 3  # candidates at each position of the tree that is considered


@dataclass(frozen=True)
class TokenClass:
    """What happens at one kind of emitted token; shares are in [0, 1]."""

    name: str
    positions: float  # share of the positions
    rejected: float  # share of what lossless rejects
    confidence: float  # the draft's greatest probability, on average over what is rejected here
    trained: float  # share of these rejections that the probe removes; negative if it rejects more
    relaxed: float  # share of these rejections that the relaxed rule keeps


@dataclass(frozen=True)
class Promise:
    """What one way would give; intervals are over problems."""

    name: str
    acceptance: float  # over all positions
    tokens_per_step: Interval  # at the request's number of proposals
    num_speculative_tokens: int  # the best number, from 0 to `MAX_LENGTH`
    time: Interval  # per token at the best number, relative to lossless at its own


@dataclass(frozen=True)
class Diagnosis:
    """Where a pair's rejections are, and what each way of winning them back promises."""

    classes: tuple[TokenClass, ...]  # by what lossless rejects there
    promises: tuple[Promise, ...]  # lossless first, then the ways, then two bounds
    draft_cost: float  # seconds of a proposal over those of a pass of the target
    acceptance_length: float  # tokens per step of the lossless run
    positions: int
    problems: int
    rule: str  # what ``relaxed`` stands for

    def as_dict(self) -> dict[str, Any]:
        listed = {name: [vars(each) for each in getattr(self, name)] for name in ("classes", "promises")}
        found: dict[str, Any] = plain_json(vars(self) | listed)
        return found


def diagnose(
    rows: Recorded,
    pair: Pair,
    request: Request,
    relaxed: Request,
    *,
    draft_cost: float | None = None,
    probe: Probe | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Diagnosis:
    r"""Return what a pair's rejections are about.

    A step of K proposals costs a pass of the target and K of the draft, c each in passes of the target, so a token
    takes :math:`(1 + cK) / E_K` with :math:`E_K` the expected tokens of a step. What is compared:

    - ``lossless``: :math:`\alpha = \sum_x \min(p(x), q(x))`.
    - ``trained``: the same with the probabilities of a `Probe`, fitted to the problems of the other half. A probe only
      changes the last layer, so training all weights may give more: this is what training gives *at least*.
    - ``relaxed``: what a rule accepts, where its policy lets it judge.
    - ``tree``: the target's mass on the draft's `BRANCHES` likeliest tokens, as if every one were verified in the same
      pass at no cost: what a tree gives *at most*.
    - ``free draft``: lossless with c = 0, more than any smaller draft gives. ``perfect draft``: everything is kept.

    ``rows`` are those of `record`, of responses to ``request``; ``relaxed`` is the request with a rule and a relaxation
    policy. c is ``draft_cost`` or, if None, as measured in the run. ``report`` is called with how many of the probe's
    steps, `FOLDS` times as many as one has, and of the positions are done.

    Source: design of this project; the time of a step is that of Leviathan et al. (arXiv 2211.17192), theorem 3.8.
    """
    words = Vocabulary.of(pair.tokenizer, rows.target.shape[1])
    chances, confidence = _chances(rows, words, request, relaxed, probe or Probe(), report)
    cost = rows.draft_cost if draft_cost is None else draft_cost
    k = request.num_speculative_tokens.max_draft_tokens
    times = PassTimes(((1, 1.0), (1 + MAX_LENGTH, 1.0)), draft=cost)
    base = _best(rows, chances["lossless"], times)
    promises = [_promise(name, rows, each, times, k, base) for name, each in chances.items()]
    promises.append(_promise("free draft", rows, chances["lossless"], replace(times, draft=0.0), k, base))
    perfect = torch.ones(len(rows.problem), dtype=torch.float64)
    promises.append(_promise("perfect draft", rows, perfect, times, k, base))
    return Diagnosis(
        _by_class(rows, words, chances, confidence),
        tuple(promises),
        cost,
        rows.acceptance_length,
        len(rows.problem),
        int(rows.problem[-1]) + 1,
        f"{relaxed.rule} {relaxed.policy}".rstrip(),
    )


def _chances(
    rows: Recorded, words: Vocabulary, request: Request, relaxed: Request, probe: Probe, report: Callable[[int], None]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return how likely each way keeps a proposal, ``[positions]`` each, and the draft's greatest probabilities."""
    to_probs, policy = SamplingFn(request.sampling), relaxed.policy.fit_vocabulary(words)
    count = len(rows.problem)
    chances = {name: torch.zeros(count, dtype=torch.float64) for name in ("lossless", "trained", "relaxed", "tree")}
    confidence = torch.zeros(count, dtype=torch.float64)
    size, done = max(1, AT_ONCE // rows.target.shape[1]), FOLDS * probe.steps
    for places, weights in probe.held_out(rows, report):
        for some in places.split(size):
            logits = rows.draft[some].float()
            target, draft, trained = (
                to_probs(each, []).double()
                for each in (rows.target[some].float(), logits, logits + change(rows.hidden[some], *weights))
            )
            target, draft, trained = (each / each.sum(-1, keepdim=True) for each in (target, draft, trained))
            pairs = zip(target.split(1), draft.split(1), strict=True)
            accepted = [_acceptance(policy, relaxed.rule, *each) for each in pairs]
            chances["lossless"][some] = torch.minimum(target, draft).sum(-1)
            chances["trained"][some] = torch.minimum(target, trained).sum(-1)
            chances["relaxed"][some] = torch.tensor(accepted, dtype=torch.float64)
            likeliest = draft.topk(min(BRANCHES, draft.shape[1])).indices
            chances["tree"][some] = target.gather(-1, likeliest).sum(-1)
            confidence[some] = draft.amax(-1)
            report(done := done + len(some))
    return chances, confidence


def _acceptance(policy: FittedPolicy, rule: AcceptanceRule, target: Tensor, draft: Tensor) -> float:
    """Return what a rule accepts at a position, ``[1, vocabulary]`` each, or lossless where the policy forbids it."""
    position = Position(StepRows(target, [0], Proposal([0], draft), *[lambda rows, _: rows] * 2), ROOT)
    judge = policy.rule_at(rule, policy.begin([]), position)
    return position.audit(judge or Lossless()).acceptance.item()


def _best(rows: Recorded, chances: Tensor, times: PassTimes) -> tuple[int, Tensor]:
    """Return the fastest number of proposals, and each problem's expected time with it, ``[problems]``."""
    taken = [steps_taken(chances, rows.problem, length) * times.step(length) for length in range(MAX_LENGTH + 1)]
    length = min(range(len(taken)), key=lambda i: float(taken[i].sum()))
    return length, taken[length]


def _promise(
    name: str, rows: Recorded, chances: Tensor, times: PassTimes, length: int, base: tuple[int, Tensor]
) -> Promise:
    best, taken = _best(rows, chances, times)
    tokens, steps = torch.bincount(rows.problem).double(), steps_taken(chances, rows.problem, length)
    return Promise(name, float(chances.mean()), ratio_of_sums(tokens, steps), best, ratio_of_sums(taken, base[1]))


def _by_class(
    rows: Recorded, words: Vocabulary, chances: Mapping[str, Tensor], confidence: Tensor
) -> tuple[TokenClass, ...]:
    names = [*CLASSES, CONTROL]
    kinds = torch.tensor([names.index(kind_of(words, token)) for token in range(len(words.texts))])[rows.token_ids]
    rejected = 1 - chances["lossless"]
    found = []
    for number, name in enumerate(names):
        here = kinds == number
        lost = float(rejected[here].sum())
        if here.any() and lost > 0:
            won = {
                way: float((chances[way] - chances["lossless"])[here].sum()) / lost for way in ("trained", "relaxed")
            }
            sure = float((rejected * confidence)[here].sum()) / lost
            found.append(TokenClass(name, float(here.double().mean()), lost / float(rejected.sum()), sure, **won))
    return tuple(sorted(found, key=lambda each: -each.rejected))


def kind_of(words: Vocabulary, token: int) -> str:
    r"""Return the kind of a token.

    Example:
        >>> words = Vocabulary((" cats", "x1", " +", "\n", "<eos>"), frozenset([4]))
        >>> [kind_of(words, token) for token in range(5)]
        ['words', 'digits', 'signs', 'spaces and lines', 'control tokens']
    """
    if token in words.control or not words.texts[token]:
        return CONTROL
    return next(name for name, pattern in CLASSES.items() if re.search(pattern, words.texts[token]))


WAYS = ("trained", "relaxed", "tree")


def advice(found: Diagnosis) -> list[str]:
    """Say what a diagnosis means, most promising way first, and what may be chance."""
    lossless = found.promises[0]
    lines = [_where(found)]
    ways = sorted((each for each in found.promises if each.name in WAYS), key=lambda each: each.time.value)
    for each in ways:
        lines.append(f"{each.name}: {_gain(each, lossless)}. {_means(each, found)}")
    length = lossless.num_speculative_tokens
    many = f"{length} proposals a step are best for lossless" if length else "lossless is best without a draft"
    free = next(each for each in found.promises if each.name == "free draft")
    lines.append(
        f"length: {many}, if a proposal takes {found.draft_cost:.2f} of a pass of the target; with a draft that is as "
        f"good and takes no time, a token would take {free.time.value:.2f} of the time."
    )
    return lines


def _where(found: Diagnosis) -> str:
    if not found.classes:
        return "nothing is rejected: there is nothing to win back."
    first = found.classes[0]
    return (
        f"rejections: {100 * first.rejected:.0f} % are at {first.name}, where the draft's greatest probability is "
        f"{first.confidence:.2f} on average."
    )


def _gain(way: Promise, lossless: Promise) -> str:
    time, tokens = way.time, way.tokens_per_step.value
    steps = f"{lossless.tokens_per_step.value:.2f} to {tokens:.2f} tokens per step"
    if not time.has_ends:
        return f"{time.value:.2f} of the time per token (too few problems for an interval), {steps}"
    ends = f"95 %: {time.low:.2f} to {time.high:.2f}"
    sure = "" if time.high < 1 or time.low > 1 else ", which may be chance"
    return f"{time.value:.2f} of the time per token ({ends}{sure}), {steps}"


def _means(way: Promise, found: Diagnosis) -> str:
    if way.name == "tree":
        return f"At most: {BRANCHES} candidates at every position, verified at no cost."
    if way.name == "relaxed":
        return f"This is {found.rule}; what it does to answers, 'cactus eval' measures."
    if way.time.has_ends and way.time.high < 1:
        return (
            "At least: a change of the last layer does it, and training all of it removes more ('cactus train-draft')."
        )
    return (
        "A change of the last layer removes nothing. Training all of the draft may yet, by less: a few hundred steps "
        "of 'cactus train-draft --loss total_variation' tell."
    )
