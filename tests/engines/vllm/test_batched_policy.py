"""What an engine's step decides about all positions at once is what `Policy.decide` says of one after another."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.decisions import plan
from support.tables import all_of
from torch import Tensor

from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.relaxation import FittedPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.relaxed_logits import relax_greedily
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.engines.vllm import step as stepping
from cactus_decoding.engines.vllm.counters import BudgetMeter
from cactus_decoding.engines.vllm.state import FollowedResponse, append_padding_token
from cactus_decoding.engines.vllm.step import Group, Layout, Protected, RelaxedStep, afforded, allowed

CPU, VOCABULARY, DEPTH, REQUESTS = torch.device("cpu"), 6, 4, 3
DIGITS = torch.tensor([0, 3])
WORDS = Vocabulary(("a", "<", ">", "b", "c", "d"))
PHASES = (Phases(), Phases(1), Phases(3), Phases(0, ("<", ">")), Phases(1, ((4,), (1, 5))))
RULES = ("cactus:delta=1", "clamped:width=2", "ensemble:weight=0.6", "lenience:lenience=0.3")
GREEDY_RULES = (
    "relaxed_greedy:margin=1.5",
    "relaxed_greedy:margin=0.5,per=remaining",
    "mars:ratio=0.4",
    "mars:ratio=0.6,logits=raw",
    "big_little:rollback=2",
)


class DraftProbs:
    def __init__(self, probs: Tensor) -> None:
        self._probs, self.width = probs, probs.shape[1]

    def rows(self, some: Tensor) -> Tensor:
        return self._probs[some]

    def of_tokens(self, some: Tensor, token_ids: Tensor) -> Tensor:
        return self._probs[some, token_ids]


def decided_at_once(rule, logits, probs, drafted, budgets, spent, policy, texts) -> list[list[tuple]]:
    """Return of each request's positions whether they are relaxed, protected, fell back, and what they would cost."""
    rows = torch.arange(REQUESTS * DEPTH)
    followed = [FollowedResponse(policy.phases, append_padding_token(WORDS), [], text) for text in texts]
    proposed = zip(followed, drafted.view(REQUESTS, DEPTH).tolist(), strict=True)
    phases = torch.tensor([response.relaxable(own) for response, own in proposed]).flatten()
    layout = Layout(
        [Group(rule, rows)],
        rows // DEPTH,
        rows % DEPTH,
        DEPTH,
        torch.tensor(budgets),
        torch.arange(REQUESTS),
        [Protected(rows, DIGITS, torch.full((len(rows),), policy.protection.threshold))],
        phases,
    )
    meter = BudgetMeter(CPU, REQUESTS)
    meter.spent.copy_(torch.tensor(spent))
    step = RelaxedStep(layout, meter, None, logits, drafted, None if probs is None else DraftProbs(probs))
    (change,) = step._changes
    columns = [change.allowed, change.protected, change.fell_back, step._table.flatten()]
    whole = list(zip(*(column.tolist() for column in columns), strict=True))
    return [whole[i * DEPTH : (i + 1) * DEPTH] for i in range(REQUESTS)]


def check(seed, spelling, budget, used, threshold, phases, drawn) -> None:
    rule, generator = parse_rule(spelling), torch.Generator().manual_seed(seed)
    greedy = isinstance(rule, GreedyRule)
    logits = 2 * torch.randn(REQUESTS * DEPTH, VOCABULARY, generator=generator).double()
    probs = (logits + torch.randn(logits.shape, generator=generator)).softmax(-1)
    drafted = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    spent = [used * budget * share for share in (0.0, 0.5, 1.0)]
    rows = probs if drawn else None
    mask = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill_(0, DIGITS, True)
    policy = FittedPolicy(WORDS, phases, Protection("digits", threshold), mask)
    texts = torch.randint(VOCABULARY, (REQUESTS, REQUESTS), generator=generator).tolist()
    texts = [text[:length] for length, text in enumerate(texts)]
    found = decided_at_once(rule, logits, rows, drafted, [budget] * REQUESTS, spent, policy, texts)
    for request, positions in enumerate(found):
        own = slice(request * DEPTH, (request + 1) * DEPTH)
        expected = plan(
            rule, logits[own] if greedy else logits[own].softmax(-1), probs[own] if drawn else None, drafted[own],
            limit=budget, spent=spent[request], fitted=policy, text=texts[request],
        )  # fmt: skip
        for at, (relaxed, protected, fell_back, nats) in enumerate(positions):
            assert protected == expected.protected[at]
            assert nats == pytest.approx(expected.costs[at], abs=1e-9)
            if greedy or nats > 1e-12:  # where nothing is given up, nothing can fall back
                assert fell_back == expected.fell_back[at]
                assert relaxed == (not protected and not fell_back)


CASES = st.tuples(
    st.integers(0, 10**6),
    st.sampled_from(RULES + GREEDY_RULES),
    st.sampled_from((0.01, 0.1, 0.5, 3.0)),
    st.sampled_from((0.0, 0.5, 1.0)),
    st.sampled_from((0.0, 0.1, 0.3, 0.6, 1.0)),
    st.sampled_from(PHASES),
    st.booleans(),
)


@given(CASES)
def test_a_step_decides_as_the_policy_does(case) -> None:
    check(*case)


def _admits_the_first_that_does_not_fit(costs: Tensor, spent: Tensor, budgets: Tensor) -> Tensor:
    return afforded(costs, spent, budgets + costs.amax())


def _lets_the_rule_judge_everywhere(layout, logits, totals) -> Tensor:
    return torch.ones(len(logits), dtype=torch.bool)


def _keeps_nothing(rule, logits, token_ids):
    return relax_greedily(parse_rule("relaxed_greedy:margin=0"), logits, token_ids)


def _never_binds(step, rule, rows, logits):
    return [(rule.bind_position(1, 0.0), torch.arange(len(rows)))]


def _forgets_phases(layout, *args) -> Tensor:
    return allowed(replace(layout, relaxable=None), *args)


def check_many() -> None:
    for seed in range(20):
        check(
            seed,
            (RULES + GREEDY_RULES)[seed % (len(RULES) + len(GREEDY_RULES))],
            0.1,
            0.5,
            0.3,
            PHASES[seed % len(PHASES)],
            seed % 2 == 0,
        )


@all_of(
    "owner, name, wrong",
    [
        (stepping, "afforded", _admits_the_first_that_does_not_fit),
        (stepping, "allowed", _lets_the_rule_judge_everywhere),
        (stepping, "allowed", _forgets_phases),
        (stepping, "relax_greedily", _keeps_nothing),
        (RelaxedStep, "_bound", _never_binds),
    ],
)
def test_wrong_steps_are_told_apart(monkeypatch, owner, name, wrong) -> None:
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError):
        check_many()
    monkeypatch.undo()


MARKED = Vocabulary(("<", "t>", "</", "x", "<t>", "</t>", "a<t", ">"))
MARKS = ("<t>", "</t>")
FOLLOWED = (Phases(3), Phases(0, MARKS), Phases(4, MARKS))


def tokens(seed: int, count: int) -> list[int]:
    return torch.randint(len(MARKED.texts), (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_step_by_step_it_says_what_the_whole_text_says() -> None:
    both = set()
    for seed in range(30):
        prompt, text = tokens(seed, 6), tokens(100 + seed, 24)
        for phases in FOLLOWED:
            whole = phases.relaxable(phases.begin(prompt, MARKED), text, MARKED)
            output_ids: list[int] = []
            response = FollowedResponse(phases, append_padding_token(MARKED), prompt, output_ids)
            for begin in range(0, len(text), 3):  # as many as were drafted are added
                assert response.relaxable(text[begin : begin + 3]) == whole[begin : begin + 3]
                output_ids += text[begin : begin + 3]
            both |= set(whole)
    assert both == {False, True}


def test_a_response_that_was_taken_out_and_is_back_goes_on_where_it_was() -> None:
    prompt, text = tokens(1, 5), tokens(2, 12)
    for phases in FOLLOWED:
        through = FollowedResponse(phases, append_padding_token(MARKED), prompt, list(text))
        again = FollowedResponse(phases, append_padding_token(MARKED), prompt, output_ids := list(text))
        further = tokens(3, 6)
        assert through.relaxable(further) == again.relaxable(further)
        output_ids += [7, 7]
        again.relaxable(further)
        del output_ids[len(text) :]  # what was sampled is taken back
        assert through.relaxable(further) == again.relaxable(further)


def test_what_is_not_known_yet_is_lossless_and_what_is_no_token_says_nothing() -> None:
    response = FollowedResponse(Phases(1, MARKS), append_padding_token(MARKED), [4, 999], output_ids := [])
    assert response.relaxable([3, 999, 5, 3]) == [False, True, True, False]
    output_ids += [3, -1]
    assert response.relaxable([3, 3]) == [False, False]
    output_ids[1] = 3
    assert response.relaxable([3, 3]) == [True, True]


def test_a_mark_is_found_in_tokens_that_are_parts_of_characters() -> None:
    words = Vocabulary(("«", "\ufffd", "\ufffd"), fragments={1: b"\xc2", 2: b"\xbb"})
    response = FollowedResponse(Phases(0, ("«", "»")), append_padding_token(words), [0], [])
    assert response.relaxable([0, 1, 2, 0]) == [True, True, True, False]


def test_a_response_is_settled_once_all_that_follows_may_be_relaxed() -> None:
    counted = FollowedResponse(Phases(2), append_padding_token(None), [1], output_ids := [])
    assert counted.relaxable([5, 5, 5]) == [False, False, True]
    assert not counted.settled
    output_ids += [5, 5]
    assert counted.relaxable([5]) == [True]
    assert counted.settled
    del output_ids[1:]
    assert not counted.settled
    assert not FollowedResponse(Phases(0, MARKS), append_padding_token(MARKED), [4], []).settled
