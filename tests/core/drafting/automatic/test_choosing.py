"""What a step proposes: what pays by given times, within a stake that cannot be overdrawn."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cactus_decoding.core.drafting.automatic.choosing import SHARE, LengthChooser
from cactus_decoding.core.drafting.automatic.experience import STAKE, DraftChances, Experience
from cactus_decoding.core.drafting.suffix_index import Match
from cactus_decoding.core.drafting.timing import PassTimes

LAPTOP = PassTimes(
    ((1, 0.105), (2, 0.163), (3, 0.248), (4, 0.263), (8, 0.512), (12, 0.820), (16, 0.754)), draft=0.040, reading=0.01
)
"""One core of a processor with AVX2 over 1.5 and 0.5 billion weights of four bits."""
MEMORY_BOUND = PassTimes(((1, 1.0), (2, 1.01), (4, 1.03), (8, 1.08), (16, 1.2)), draft=0.1, reading=0.01)
NOTHING = Match(0, [], [])
COPY = Match(8, list(range(15)), [8.0 + i for i in range(15)])
SURE, UNSURE = torch.tensor([8.0, 0.0]), torch.tensor([0.1, 0.0])


def fresh(times: PassTimes, *, drafts: bool = True, **given: int) -> LengthChooser:
    return LengthChooser(Experience(times, 15), 15, drafts=drafts, **given)


class Run:
    def __init__(self, times: PassTimes, *, drafts: bool = True) -> None:
        self.chooser, self.times = fresh(times, drafts=drafts), times
        self.seconds, self.tokens, self.ways = 0.0, 0, list[str]()

    def step(self, kept: int, match: Match = NOTHING, row: torch.Tensor = SURE, unread: int = 0) -> None:
        """Take one of whose proposals up to so many are kept."""
        limit = self.chooser.begin_step()
        choice = self.chooser.choose(match, limit, limit, unread, first=False)
        drafted = choice.count
        if choice.way == "draft":
            goes_on, drafted = True, 0
            while goes_on and drafted < choice.count:
                goes_on = self.chooser.should_continue(row)
                self.seconds += self.times.draft
                drafted += goes_on or self.chooser.unsure == "propose"
            self.seconds += self.times.catching_up(choice.reading)
        self.chooser.end_draft(drafted)
        accepted = min(kept, drafted)
        self.chooser.end_step(accepted)
        self.chooser.learn_copies(match, [*match.token_ids[:kept], -1])
        self.seconds += self.times.of(drafted + 1)
        self.tokens += accepted + 1
        self.ways.append(choice.way)

    @property
    def lost(self) -> float:
        """Tokens that plain sampling would have brought besides."""
        return self.seconds / self.times.of(1) - self.tokens


steps = st.lists(
    st.tuples(
        st.integers(0, 15), st.sampled_from([NOTHING, COPY, Match(1, [7], [1.0])]), st.booleans(), st.integers(0, 30)
    ),
    max_size=80,
)
some_times = st.builds(
    lambda widths, draft, reading, pair: PassTimes(
        tuple(zip((1, 2, 3, 4, 8, 16), widths, strict=True)), draft, reading, pair=pair
    ),
    st.lists(st.floats(0.1, 5), min_size=6, max_size=6),
    st.floats(0, 2),
    st.floats(0, 0.5),
    st.floats(0, 3),
)


def worst_loss(run: Run, taken: list[tuple[int, Match, bool, int]]) -> float:
    """Return how far the run was ever behind plain sampling and its allowance."""
    worst = 0.0
    for kept, match, sure, unread in taken:
        run.step(kept, match, SURE if sure else UNSURE, unread)
        worst = max(worst, run.lost - SHARE * run.tokens)
    return worst


@settings(max_examples=100, deadline=None)
@given(some_times, steps)
def test_no_response_loses_more_than_its_stake(times: PassTimes, taken: list[tuple[int, Match, bool, int]]) -> None:
    assert worst_loss(Run(times), taken) <= STAKE + 1e-9


def test_a_chooser_with_a_larger_stake_loses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    dear, behind = PassTimes(((1, 1.0), (16, 8.0))), list(range(15))
    taken = [(0, Match(size, behind, [size + i for i in behind]), True, 0) for size in (64, 16)]
    assert worst_loss(Run(dear), taken) <= STAKE
    for module in ("choosing", "experience"):
        monkeypatch.setattr(f"cactus_decoding.core.drafting.automatic.{module}.STAKE", 50.0)
    assert worst_loss(Run(dear), taken) > STAKE + 0.5


def test_a_laptop_does_not_draft_what_is_often_refused() -> None:
    run = Run(LAPTOP)
    for i in range(200):
        run.step(i % 2)
    assert run.ways.count("draft") <= 30
    assert run.lost <= STAKE + SHARE * run.tokens


def test_a_machine_that_waits_for_memory_drafts_much() -> None:
    run = Run(MEMORY_BOUND)
    for _ in range(50):
        run.step(7)
    assert run.ways.count("draft") > 45
    assert run.lost < -150


@pytest.mark.parametrize(("seconds", "left_out"), [(0.1, 0), (0.002, 2), (0.001, 5), (1e-5, 7)])
def test_short_steps_are_chosen_for_now_and_then_while_nothing_is_proposed(seconds: float, left_out: int) -> None:
    chooser = fresh(PassTimes(((1, seconds), (16, 1.2 * seconds))), drafts=False)
    limits = []
    for _ in range(3 * (left_out + 1)):
        limits.append(chooser.begin_step())
        if limits[-1]:
            assert chooser.choose(NOTHING, 15, 15, 0, first=False).way == "nothing"
        chooser.end_draft(0)
        chooser.end_step(0)
    assert limits == 3 * [15, *left_out * [0]]
    for _ in range(3):  # what pays is gone on with
        chooser.begin_step()
        assert chooser.choose(COPY, 15, 15, 0, first=False).way == "copy"
        chooser.end_draft(15)
        chooser.end_step(15)
        assert chooser.begin_step() == 15


def test_a_draft_of_which_nothing_is_known_proposes_few() -> None:
    chooser, counts = fresh(MEMORY_BOUND), []
    for _ in range(6):
        counts.append(chooser.choose(NOTHING, chooser.begin_step(), 15, 1, first=False).count)
        for _ in range(counts[-1]):
            chooser.should_continue(SURE)
        chooser.end_draft(counts[-1])
        chooser.end_step(counts[-1])
    assert counts == [3, 15, 15, 15, 15, 15]


def test_a_draft_that_is_asked_in_vain_is_left_alone() -> None:
    chooser, asked = fresh(MEMORY_BOUND), 0
    for _ in range(100):
        asked += chooser.choose(NOTHING, chooser.begin_step(), 15, 1, first=False).way == "draft"
        chooser.end_draft(0)
        chooser.end_step(0)
    assert 1 <= asked <= 40


def test_what_a_step_takes_beside_passes_keeps_copies_from_paying() -> None:
    for more, ways in ((0.0, {"copy"}), (1.0, {"nothing"})):
        slower = tuple((width, seconds + more * (width > 1)) for width, seconds in MEMORY_BOUND.target)
        run = Run(replace(MEMORY_BOUND, target=slower), drafts=False)
        for _ in range(8):
            run.step(0, Match(1, [7], [1.5]))
        assert set(run.ways[-1:]) <= ways | {"nothing"}
        assert ("copy" in run.ways) is (more == 0.0)


def test_one_refusal_says_little_and_many_say_all() -> None:
    chances = DraftChances(DraftChances())
    for count, least, most in ((0, 0.96, 0.98), (1, 0.8, 0.9), (30, 0.0, 0.2)):
        for _ in range(count):
            chances.learn([0.99], 1, 0)
        assert least < chances.of(0.99) < most


def told(shares: list[float], rates: list[float]) -> DraftChances:
    """Return what is known of a draft with so many rows of each kind, of which so many are kept."""
    chances = DraftChances()
    chances.rows = [*shares]
    chances.rates.weighted = [(rate, 1.0) for rate in rates]
    return chances


ALIKE = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
RATES = [0.1, 0.2, 0.3, 0.45, 0.7, 0.97]


def test_a_draft_that_is_always_sure_and_right_brings_a_token_for_each_of_its_passes() -> None:
    sure = told(ALIKE, [1.0] * 6)
    for begin, worth in ((0, 1.5), (1, 1.0), (2, 0.5)):
        assert sure.worth(1.0, 0.25, [1.0, 1.25, 1.5, 1.75], 3, begin) == pytest.approx(worth)
    assert sure.worth(1.0, 0.5, [1.0, 2.0, 3.0, 4.0], 3) == pytest.approx(-0.5)


def test_a_pass_of_the_draft_takes_its_time_whether_or_not_tokens_before_it_are_kept() -> None:
    """Two passes for 1/2 + 1/4 tokens; if the second one cost nothing after a rejection, there would be a third."""
    assert told(ALIKE, [0.5] * 6).worth(1.0, 0.2, [1.0] * 5, 4) == pytest.approx(0.5 + 0.25 - 2 * 0.2)


def by_enumeration(shares: list[float], rates: list[float], rate: float, draft: float, longer: list[float]) -> float:
    """Return the worth of the best plan: every kind of every row, for every number of rows and kinds to go on after."""
    usual = rate * sum(longer) / len(longer)
    proposed = {kind for kind, each in enumerate(rates) if each >= usual}
    best = float("-inf")
    for rows, first in product(range(1, len(longer) + 1), range(len(rates) + 1)):
        worth = 0.0
        for kinds in product(range(len(rates)), repeat=rows):
            chance, kept = prod(shares[kind] for kind in kinds), 1.0
            for each, kind in zip(longer, kinds, strict=False):
                worth -= chance * rate * draft
                if kind not in proposed:
                    break
                kept *= rates[kind]
                worth += chance * (kept - rate * each)
                if kind < first:
                    break
        best = max(best, worth)
    return best


@pytest.mark.parametrize("draft", [0.05, 0.36, 0.9])
@pytest.mark.parametrize("longer", [[0.35, 0.28, 0.05, 0.05], [0.0, 0.0, 0.0, 0.0], [0.53, 0.66, 0.34, 0.6]])
def test_what_a_draft_is_worth_is_what_the_best_plan_brings(draft: float, longer: list[float]) -> None:
    shares = [0.02, 0.05, 0.08, 0.1, 0.15, 0.6]
    chances, passes = told(shares, RATES), [1 + sum(longer[:n]) for n in range(5)]
    for rate in (1.0, 1.5):
        expected = by_enumeration(shares, RATES, rate, draft, longer)
        assert chances.worth(rate, draft, passes, 4) == pytest.approx(expected, abs=1e-12)


def test_where_rows_are_unsure_a_token_is_not_worth_its_place() -> None:
    dear = PassTimes(((1, 1.0), (2, 1.4), (3, 1.8), (4, 2.2)), draft=0.05)
    for row, unsure in ((torch.zeros(5), "discard"), (SURE, "propose")):
        chooser = fresh(dear)
        assert chooser.choose(NOTHING, chooser.begin_step(), 15, 1, first=False).way == "draft"
        assert chooser.should_continue(row) is (unsure == "propose")
        assert chooser.unsure == unsure


def test_where_a_prompt_is_long_the_draft_reads_its_end() -> None:
    for reads_ends, way, reading in ((True, "draft", 150), (False, "nothing", 0)):
        chooser = fresh(MEMORY_BOUND, reads_ends=reads_ends)
        choice = chooser.choose(NOTHING, chooser.begin_step(), 15, 1000, first=True)
        assert choice.way == way
        assert choice.reading == pytest.approx(reading, abs=15)


def test_no_more_is_drafted_than_a_window_holds() -> None:
    chooser = fresh(MEMORY_BOUND)
    assert chooser.choose(NOTHING, chooser.begin_step(), 2, 1, first=False).count == 2
    assert chooser.choose(NOTHING, chooser.begin_step(), 0, 1, first=False).way == "nothing"


def test_a_copy_is_taken_as_soon_as_the_text_repeats_itself() -> None:
    run = Run(LAPTOP, drafts=False)
    for _ in range(100):
        run.step(0, Match(1, [5] * 15, [1.0 + i for i in range(15)]))
    assert set(run.ways[-50:]) == {"nothing"}  # a single token in common says little
    for i in range(12):
        run.step(15, Match(4 + i, list(range(15)), [4.0 + i + j for j in range(15)]))
    assert run.ways[-8:] == ["copy"] * 8
    assert run.lost < -12
