"""What coupled verification promises: every response of the real loop on two tokens, enumerated.

A relaxed rule keeps the promises of budgets only if no step's number of proposals depends on what an earlier step
drafted after a rejection: that was drawn by the noise of places which are still to be drawn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.coupled_enumeration import MEASURED, CoupledResponses, Rows, Tables, enumerate_coupled
from support.pass_times import PASS_TIMES
from support.tables import all_of
from support.tree_enumeration import distance, product_law

from cactus_decoding import Budget, Request
from cactus_decoding.core.drafting.lengths import ConfidenceStop, FixedLength, StatelessLength, confidence
from cactus_decoding.core.drafting.lookup import NgramDrafter, SuffixDrafter
from cactus_decoding.core.drafting.registry import as_draft_length, as_tree
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.request import with_default_proposals
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.core.types import Drafter, DraftLength

ROUNDING = 1e-9
RULES = (
    "clamped:width=1",
    "clamped:width=4",
    "ensemble:weight=0.5",
    "ensemble:weight=1",
    "lenience:lenience=0.6",
    "ears:tolerance=0.5",
)
FIXED = ("0", "1", "2", "3", "2.1", "1.1.1", "2.2,drawn=2", "1.1,lookup=2")
DRAFTERS: tuple[Callable[[], Drafter] | None, ...] = (None, None, None, NgramDrafter, SuffixDrafter)  # None: a model
BUDGETS = (MEASURED, Budget(nats=0.05), Budget(nats=0.4), Budget(nats=1.0))
CLAMPED = "clamped:width=1"


def length_of(text: str) -> DraftLength:
    return as_draft_length(text) if text.isdecimal() else as_tree(text if text[0].isalpha() else f"static={text}")


class Handing(StatelessLength):
    """A draft length that obeys `DraftLength`: it stops where the draft is unsure, and after a step that kept nothing
    it proposes nothing, if that step drafted as much as it may."""

    fixed, unsure, max_draft_tokens = False, "discard", 3

    def __init__(self, threshold: float = 0.7) -> None:
        self._threshold, self._next, self._drafted = threshold, self.max_draft_tokens, 0

    def begin_step(self) -> int:
        return self._next

    def should_continue(self, logits: torch.Tensor) -> bool:
        return confidence(logits) >= self._threshold

    def end_draft(self, num_drafted: int) -> None:
        self._drafted = num_drafted

    def end_step(self, num_accepted: int) -> None:
        full = not num_accepted and self._drafted == self.max_draft_tokens
        self._next = 0 if full else self.max_draft_tokens


def holds(found: CoupledResponses, budget: Budget) -> bool:
    """Whether the divergence of responses is within what they are charged, and that within the budget."""
    assert sum(found.law.values()) == pytest.approx(1, abs=ROUNDING)
    return found.kl <= found.charged + ROUNDING and found.most_charged <= budget.limit


def instance(seed: int) -> tuple[CoupledResponses, Budget]:
    """Enumerate one of all combinations of a pair, a rule, fixed proposals, a drafter, a budget and a phase."""
    chance, tables = random.Random(seed), Tables(seed, 4)
    rule, length, drafter = chance.choice(RULES), length_of(chance.choice(FIXED)), chance.choice(DRAFTERS)
    budget = chance.choice(BUDGETS)
    if rule == CLAMPED and chance.random() < 0.3:
        budget = Budget(nats=0.3, expected_tokens=4)
    phases, tokens = Phases(chance.choice((0, 0, 0, 0, 1))), chance.choice((3, 3, 3, 4))
    fitted = RelaxationPolicy(phases=phases).fit(None, 2)
    return enumerate_coupled(
        tables.target, tables.draft, rule, lambda: length, tokens, budget=budget, drafter=drafter, fitted=fitted
    ), budget


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 2012), marks=pytest.mark.slow)], ids=["12", "2000"]
)
def test_responses_move_by_no_more_than_they_are_charged_where_numbers_are_fixed(seeds: range) -> None:
    found = [instance(seed) for seed in seeds]
    assert [seed for seed, (each, budget) in zip(seeds, found, strict=True) if not holds(each, budget)] == []
    assert sum(each.kl > 0.01 for each, _ in found) > len(found) / 3  # and they are moved


def row(first: float) -> torch.Tensor:
    return torch.tensor([first, 1 - first], dtype=torch.float64)


def told_beforehand() -> tuple[Rows, Rows]:
    """Return a pair whose draft tells what its second and its fourth token will be.

    At even places the target rejects what the draft is sure of, and cannot afford anything else. At odd ones the draft
    is less sure of token 0 than the target. What it draws there, after a token that is rejected, decides whether it
    goes on: if it is 0, all three proposals are made.
    """

    def target(text: tuple[int, ...]) -> torch.Tensor:
        return row(0.999 if len(text) % 2 else 0.0)

    def draft(text: tuple[int, ...]) -> torch.Tensor:
        written = all(text[::2])
        return row(0.9 if len(text) % 2 else 1.0 if written or text[-1] == 0 else 0.5)

    return target, draft


def test_what_was_drafted_after_a_rejection_must_not_decide_how_much_is_proposed() -> None:
    def respond(length: Callable[[], DraftLength], tokens: int) -> CoupledResponses:
        return enumerate_coupled(*told_beforehand(), "ensemble:weight=1", length, tokens, budget=budget)

    budget = Budget(nats=0.4)
    told = respond(Handing, 4)
    assert told.kl == pytest.approx(10 * told.charged)
    assert not holds(told, budget)
    assert respond(Handing, 6).kl > 1.5 * budget.limit
    for tokens in (4, 6):
        assert holds(respond(lambda: Handing(threshold=0.95), tokens), budget)  # it stops before what tells anything
        for length in (1, 2, 3):
            fixed = respond(lambda length=length: FixedLength(length), tokens)
            assert fixed.kl > 0.3
            assert holds(fixed, budget)


def test_auto_handed_that_on(tmp_path: Path) -> None:
    """Its pass times are such that after a step which drafted more in vain, another draft does not pay."""
    profile = tmp_path / "times.json"
    target = [[1, 1.0], [2, 1.88], [3, 2.08], [4, 2.48], [8, 4.08]]
    profile.write_text(json.dumps({"times": {"target": target, "draft": 0.1, "reading": 0.001}}))
    later = 4  # tokens on which both agree, so that speculation has paid

    def shifted(rows: Rows) -> Rows:
        return lambda text: rows(text[later:]) if len(text) >= later else row(0.0)

    pair = [shifted(rows) for rows in told_beforehand()]
    told = enumerate_coupled(
        *pair, "ensemble:weight=1", lambda: as_draft_length(f"auto:profile={profile}"), later + 4, budget=BUDGETS[2]
    )
    assert told.kl > 5 * told.charged > 0.1
    assert not holds(told, BUDGETS[2])


LENGTHS: dict[str, Callable[[], DraftLength]] = {
    "one that hands on what it drafted": Handing,
    "auto": lambda: as_draft_length(f"auto:profile={PASS_TIMES}"),
    "confidence": lambda: ConfidenceStop(3, 0.7),
    "best_first": lambda: as_tree("best_first,nodes=4"),
}


@all_of("name", LENGTHS)
def test_lossless_responses_are_the_target_s_whatever_is_proposed(name: str) -> None:
    for tables in (Tables(seed, 5) for seed in range(2)):
        found = enumerate_coupled(tables.target, tables.draft, "lossless", LENGTHS[name], 4)
        assert distance(found.law, product_law(tables.target, 2, 4)) < 1e-12


def test_two_tokens_need_one_uniform_number() -> None:
    """What `EnumeratedNoise` says of the noise: the token depends on one number, at which every row has its bar."""
    noise, bars = SharedNoise(3), torch.linspace(0, 1, 41, dtype=torch.float64).tolist()
    for place in range(50):
        times = -torch.log1p(-torch.tensor(noise.uniforms(place, 2)))
        number = float(times[0] / times.sum())
        assert [noise.token(row(bar), place) for bar in bars] == [int(bar < number) for bar in bars]


VARY: tuple[dict[str, Any], ...] = (
    {"num_speculative_tokens": "auto"},
    {"num_speculative_tokens": "confidence"},
    {"num_speculative_tokens": Handing()},
    {"tree": "best_first"},
)


@all_of("proposals", VARY)
def test_relaxed_rules_take_fixed_numbers_only(proposals: dict[str, Any]) -> None:
    Request.from_dict({"verification": "coupled", **proposals})
    Request.from_dict({"verification": "token", "rule": CLAMPED, **proposals})
    for more in ({}, {"budget": 0.1}, {"temperature": 0}):
        with pytest.raises(ValueError, match=r"coupled verification of a relaxed rule needs a fixed number .*'token'$"):
            Request.from_dict({"verification": "coupled", "rule": CLAMPED, **more, **proposals})


@all_of("text", FIXED)
def test_relaxed_rules_take_every_number_that_is_fixed(text: str) -> None:
    Request.from_dict({"verification": "coupled", "rule": CLAMPED}).proposing(length_of(text))


def test_by_default_relaxed_rules_propose_a_fixed_number() -> None:
    for rule, number in ((None, "auto"), ("lossless", "auto"), (CLAMPED, None)):
        given = with_default_proposals({"verification": "coupled", "rule": rule}, automatic=True)
        assert given.get("num_speculative_tokens") == number
    assert with_default_proposals({"rule": CLAMPED}, automatic=True)["num_speculative_tokens"] == "auto"
    assert str(Request.from_dict(given).draft_length) == "6"
