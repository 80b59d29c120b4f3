"""FLy: its law by a second hand, enumerated to 1e-12; its lossless ends; what refuses it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from support.exact_enumeration import Law
from support.tree_enumeration import Models, distance, product_law, respond, steps, uniform_shape
from torch import Tensor

from cactus_decoding import Request, generate, load_pair, parse_rule
from cactus_decoding.core.request import with_default_proposals
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.schemes import VERIFICATIONS, FlyKnobs, read_scheme
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.core.verification.fly import fly
from cactus_decoding.core.verification.tree import Scheme
from cactus_decoding.lab.evaluation.engines.engine import PairEngine
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.tracing import stream_trace
from cactus_decoding.zoo.word_problems import EXAMPLES

EXACT = 1e-12
KNOBS = [
    FlyKnobs(1, 0.3),
    FlyKnobs(2, 0.3),
    FlyKnobs(1, 0.0),
    FlyKnobs(2, 0.1, 1),
    FlyKnobs(1, 0.3, 0),
    FlyKnobs(1, 0.3, behind=2),
    FlyKnobs(1, 0.3, behind=2, test="draws"),
]
RuleBook = Callable[[Sequence[bool], Sequence[float], FlyKnobs], list[bool]]


def kept(passes: Sequence[bool], entropies: Sequence[float], knobs: FlyKnobs) -> list[bool]:
    """Return which tokens are kept, were all looked at: the definition, position by position."""
    ahead = [passes[j + 1 : j + 1 + knobs.window] for j in range(len(passes))]
    return [
        passed or (entropy >= knobs.threshold and len(passes) - j > max(knobs.window, knobs.behind) and all(behind))
        for j, (passed, entropy, behind) in enumerate(zip(passes, entropies, ahead, strict=True))
    ]


def kept_at_the_end(passes: Sequence[bool], entropies: Sequence[float], knobs: FlyKnobs) -> list[bool]:
    """Decide wrongly: what the end of a step cuts off of a window passes."""
    wide = [*passes, *[True] * knobs.window]
    return kept(wide, [*entropies, *[0.0] * knobs.window], knobs)[: len(passes)]


def kept_by_a_shorter_window(passes: Sequence[bool], entropies: Sequence[float], knobs: FlyKnobs) -> list[bool]:
    """Decide wrongly, as where a window counts the rejected token too."""
    return kept(passes, entropies, FlyKnobs(knobs.window + 1, knobs.threshold))


def kept_whatever_follows(passes: Sequence[bool], entropies: Sequence[float], knobs: FlyKnobs) -> list[bool]:
    """Decide wrongly where more must follow than the window."""
    return kept(passes, entropies, replace(knobs, behind=0))


def entropy(row: Tensor, knobs: FlyKnobs) -> float:
    ordered = sorted((q for q in row.tolist() if q > 0), reverse=True)[: knobs.top_k or None]
    return -sum(q * math.log(q) for q in ordered) / (1 if knobs.top_k else math.log(len(row)))


def law_of(models: Models, knobs: FlyKnobs, proposals: int, length: int, decide: RuleBook = kept) -> Law:
    """Return the law of responses: all drafts, all outcomes of all tests, whichever are looked at."""
    law: Law = defaultdict(float)
    unfinished: Law = {(): 1.0}
    while unfinished:
        longer: Law = defaultdict(float)
        for text, chance in unfinished.items():
            count = min(proposals, length - len(text) - 1)
            for tokens, probability in one_step(models, knobs, text, count, decide):
                whole = (*text, *tokens)
                (law if len(whole) == length else longer)[whole] += chance * probability
        unfinished = longer
    return dict(law)


def one_step(models: Models, knobs: FlyKnobs, text: tuple[int, ...], count: int, decide: RuleBook) -> list:
    found = []
    for drafted in itertools.product(range(models.vocabulary), repeat=count):
        rows = [models((*text, *drafted[:j])) for j in range(count + 1)]
        chance = math.prod(rows[j][1][n].item() for j, n in enumerate(drafted))
        tests = [min(1.0, (rows[j][0][n] / rows[j][1][n]).item()) if chance else 0.0 for j, n in enumerate(drafted)]
        if knobs.test == "draws":  # of both
            tests = [1 - (1 - rows[j][0][n].item()) ** 2 for j, n in enumerate(drafted)]
        # no row gives the token anything: it is never kept, however unsure the target is
        unsure = [entropy(q, knobs) if q[n] > 0 else -1.0 for (q, _), n in zip(rows, drafted, strict=False)]
        for passes in itertools.product((True, False), repeat=count):
            weight = chance * math.prod(a if passed else 1 - a for a, passed in zip(tests, passes, strict=True))
            if weight == 0:
                continue
            accepted = sum(itertools.accumulate(decide(passes, unsure, knobs), lambda a, b: a and b))
            target, draft = rows[accepted]
            if knobs.test == "draws" and accepted < count:  # neither was it: the first is one of the others
                draft = torch.eye(len(target), dtype=target.dtype)[drafted[accepted]]
            last = target if accepted == count else (target - draft).clamp(min=0)
            last = target if last.sum() == 0 else last
            for token, share in enumerate((last / last.sum()).tolist()):
                found.append(((*drafted[:accepted], token), weight * share))
    return found


class SureOfToken0(Models):
    """A draft that always proposes token 0, which its target gives one half."""

    def __init__(self) -> None:
        super().__init__(3, 0)

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], dtype=torch.float64)
        return rows[0], rows[1]


def measured(models: Models, knobs: FlyKnobs, proposals: int, length: int) -> Law:
    scheme = partial(fly, knobs=knobs, greedy=False)
    return respond(scheme, Lossless(), models, uniform_shape(proposals, 0, 1), length).law


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_responses_have_the_law_of_the_definition_and_not_the_target_s(knobs: FlyKnobs) -> None:
    for vocabulary, seed, length in ((2, 1, 5), (3, 2, 4)):
        models = Models(vocabulary, seed)
        law = measured(models, knobs, 3, length)
        assert sum(law.values()) == pytest.approx(1, abs=EXACT)
        assert distance(law, law_of(models, knobs, 3, length)) < EXACT
        assert distance(law, product_law(lambda text, m=models: m(text)[0], vocabulary, length)) > 1e-3


@pytest.mark.parametrize("wrong", [kept_at_the_end, kept_by_a_shorter_window])
def test_other_windows_have_other_laws(wrong: RuleBook) -> None:
    models, knobs = Models(3, 2), FlyKnobs(1, 0.3)
    assert distance(measured(models, knobs, 3, 4), law_of(models, knobs, 3, 4, wrong)) > 1e-3


def test_the_code_s_counts_and_test_are_its_own() -> None:
    models = Models(3, 2)
    behind, drawn = FlyKnobs(1, 0.3, behind=2), FlyKnobs(1, math.inf, test="draws")
    assert distance(measured(models, behind, 3, 4), law_of(models, behind, 3, 4, kept_whatever_follows)) > 1e-3
    target = product_law(lambda text: models(text)[0], 3, 4)
    law = measured(models, drawn, 3, 4)
    assert distance(law, law_of(models, drawn, 3, 4)) < EXACT
    assert distance(law, target) > 1e-3  # no lossless end
    # one position, of which the draft is sure: kept by either of two draws, three times in four
    sure = respond(partial(fly, knobs=drawn, greedy=False), Lossless(), SureOfToken0(), uniform_shape(1, 0, 1), 2).law
    first = sum(chance for text, chance in sure.items() if text[0] == 0)
    assert first == pytest.approx(0.75, abs=EXACT)


def test_the_code_s_knobs_are_read_and_need_its_room() -> None:
    code = "fly:window=5,behind=6,test=draws"
    assert read_scheme(code)[1] == FlyKnobs(5, 0.3, 3, 6, "draws")
    with pytest.raises(ValueError, match="would overrule nothing: it needs 7 proposals"):
        Request.from_dict({"verification": code, "num_speculative_tokens": 6})
    assert Request(verification=code).draft_length.max_draft_tokens > 6


@pytest.mark.parametrize("knobs", [FlyKnobs(3, 0.0), FlyKnobs(1, math.inf)], ids=str)
def test_a_window_without_room_or_an_infinite_threshold_is_lossless(knobs: FlyKnobs) -> None:
    models = Models(3, 3)
    assert distance(measured(models, knobs, 3, 4), product_law(lambda text: models(text)[0], 3, 4)) < EXACT


def cost(scheme: Scheme, rule: AcceptanceRule, models: Models, length: int = 5) -> tuple[float, float]:
    """Return tokens a step, and the total variation of responses to the target's."""
    law, steps_taken, unfinished = defaultdict(float), 0.0, defaultdict(float, {(): 1.0})
    while unfinished:
        text = min(unfinished, key=len)
        chance = unfinished.pop(text)
        for step in steps(scheme, rule, models, text, uniform_shape(4, 0, 1), limit=length - len(text) - 1):
            whole, weight = (*text, *step.tokens), chance * step.probability
            steps_taken += weight
            (law if len(whole) == length else unfinished)[whole] += weight
    target = product_law(lambda text: models(text)[0], models.vocabulary, length)
    moved = sum(abs(law[text] - chance) for text, chance in target.items()) / 2
    return length / steps_taken, moved


@pytest.mark.slow
def test_it_beats_a_clamped_ratio_in_steps_and_in_law_on_one_pair_and_loses_both_on_another() -> None:
    look_ahead = partial(fly, knobs=FlyKnobs(1, 0.3), greedy=False)
    for seed, width, better in ((4, 0.8, True), (5, 2.5, False)):
        ours = cost(look_ahead, Lossless(), Models(3, seed))
        theirs = cost(VERIFICATIONS["token"].function, parse_rule(f"clamped:width={width}"), Models(3, seed))
        assert (ours[0] > theirs[0]) is better
        assert (ours[1] < theirs[1]) is better


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_lossless_end_gives_the_lossless_tokens_and_other_knobs_fewer_steps(temperature: float) -> None:
    pair, shared = load_pair(draft="bundled:worded"), {"temperature": temperature, "num_speculative_tokens": 8}
    fewer = 0
    for seed in range(2):
        asked = shared | {"seed": seed, "max_new_tokens": 24}
        ways = {how: generate(pair, EXAMPLES[seed].prompt, verification=how, **asked) for how in (
            "token", "fly:threshold=inf", "fly:window=2,threshold=0")}  # fmt: skip
        lossless, end, relaxed = ways.values()
        assert end.token_ids == lossless.token_ids
        fewer += relaxed.metrics.relaxed
    assert fewer > 0


def test_only_the_lossless_rule_goes_with_it_and_chains_alone() -> None:
    for settings in ({"rule": "clamped:width=1"}, {"budget": 1.0}, {"protect": "digits"}):
        with pytest.raises(ValueError, match="fly verification relaxes by itself, and nobody knows what that costs"):
            Request.from_dict({"verification": "fly"} | settings)
    with pytest.raises(ValueError, match="fly verification is for chains; use verification='token'"):
        Request.from_dict({"verification": "fly", "tree": "static=2.2"})
    with pytest.raises(ValueError, match="window must be at least 1, but is 0"):
        Request.from_dict({"verification": "fly:window=0"})
    with pytest.raises(ValueError, match="unknown parameter 'width'"):
        Request.from_dict({"verification": "fly:width=2"})


def test_steps_must_be_longer_than_its_window() -> None:
    for window, proposals in ((8, 8), (6, 1), (100, 99)):
        asked = {"verification": f"fly:window={window}", "num_speculative_tokens": proposals}
        with pytest.raises(ValueError, match=f"would overrule nothing: .* is {proposals}: give at least {window + 1}"):
            Request.from_dict(asked)
        Request.from_dict(asked | {"num_speculative_tokens": window + 1})
        Request.from_dict(asked | {"num_speculative_tokens": 0})  # the target alone
        Request.from_dict(asked | {"verification": f"fly:window={window},threshold=inf"})  # who wants nothing relaxed
    assert Request(verification="fly").draft_length.max_draft_tokens > FlyKnobs().window
    usual = with_default_proposals({"verification": "fly"}, automatic=True)
    assert Request.from_dict(usual) == Request(verification="fly")


def test_nobody_takes_it_for_lossless() -> None:
    request = Request.from_dict({"verification": "fly:window=2", "max_new_tokens": 16, "seed": 0})
    config = RunConfig("word_problems", "bundled", "bundled:draft", "transformers", 2, request)
    assert (config.rule, config.label) == ("fly:window=2", "fly:window=2 ×6")
    assert PairEngine(load_pair()).answer(EXAMPLES[0].prompt, request).audited is None
    with pytest.raises(ValueError, match="which under fly:window=2 nobody knows"):
        stream_trace(load_pair(), EXAMPLES[0].prompt, request)
