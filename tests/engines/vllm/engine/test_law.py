"""What vLLM's own sampler emits under the plug-in, against the audit's exact law.

Each chi-square test rejects a right sampler with probability 1e-6, and so does each test of an acceptance count.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import cache

import pytest
import torch
from stock_sampler import Cut, admit, metadata, params, prepare, processors, sample
from support.chi_square import rejects
from support.engine_rules import SPELLINGS

from cactus_decoding import SamplingParams, audit, parse_rule
from cactus_decoding.core.rules.base import probability_of

prepare()

RULES = (
    "lossless",
    "cactus:delta=0",
    "cactus:delta=0.05",
    "cactus:delta=1",
    "cactus:delta=0.5,solver=exact",
    "cactus:delta=0.3,solver=exact,divergence=chi_square",
    "cactus:delta=2,max_ratio=1.5",
    "ensemble:weight=0.4",
    "lenience:lenience=0.5",
    "clamped:width=0.8",
    "clamped:max_kl=0.05",
    "fuzzy:threshold=0.5",
    "kl_gate:threshold=1.0",
    "cascade:alpha=2",
    "ears:tolerance=0.5",
)
CUTS = (Cut(), Cut(0.6), Cut(1.4, top_k=6), Cut(1.0, top_p=0.85), Cut(0.8, top_k=7, top_p=0.9))
VOCABULARY, REQUESTS, DRAFTED = 10, 10_000, 2
ONE_IN_A_MILLION = 4.8917
"""The normal law has two tails of 1e-6 in all beyond this."""


@cache
def problem(cut: Cut) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the target's logits and what a cut makes of them as probabilities, and the draft's probabilities."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(VOCABULARY, generator=generator) * 1.5
    # like vLLM's draft models: at the request's temperature, but without its top-k and top-p
    draft = (logits * 0.5 + torch.randn(VOCABULARY, generator=generator)).div(cut.temperature).softmax(-1)
    return logits, SamplingParams(cut.temperature, cut.top_k, cut.top_p)(logits), draft


def emitted(rule: str | None, cut: Cut, one_hot: bool, seed: int = 3, requests: int = REQUESTS) -> tuple:
    """Return drafted tokens ``[requests, 2]`` and what the sampler made of them ``[requests, 3]``."""
    logits, target, draft = problem(cut)
    torch.manual_seed(seed)
    if one_hot:
        drafted = target.argsort(descending=True)[1].expand(requests, DRAFTED)
    else:
        drafted = torch.multinomial(draft, requests * DRAFTED, replacement=True).view(requests, DRAFTED)
    logitsprocs = processors()
    admit(logitsprocs, [params(rule, cut.temperature)] * requests)
    rows = logits.expand(requests, DRAFTED + 1, VOCABULARY).clone()
    probs = None if one_hot else draft.expand(requests, DRAFTED, VOCABULARY)
    return drafted, sample(rows, probs, drafted, metadata(logitsprocs, [cut] * requests))


def law(rule: str, cut: Cut, one_hot: bool, drafted: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the emitted token's exact law and the acceptance."""
    _, target, draft = problem(cut)
    result = audit(rule, target, None if one_hot else draft, draft_token_ids=drafted[0, 0] if one_hot else None)
    return result.output_probs / result.output_probs.sum(), result.acceptance.item()


def check_law(rule: str | None, expected: str, cut: Cut, one_hot: bool) -> None:
    drafted, tokens = emitted(rule, cut, one_hot)
    probs, acceptance = law(expected, cut, one_hot, drafted)
    first_kept = tokens[:, 1] >= 0
    both_kept = tokens[:, 2] >= 0
    assert not rejects(tokens[:, 0], probs)
    assert not rejects(tokens[first_kept, 1], probs)
    assert not rejects(tokens[both_kept, 2], problem(cut)[1].double() / problem(cut)[1].double().sum())
    assert not wrong_count(int(first_kept.sum()), REQUESTS, acceptance)
    assert not wrong_count(int(both_kept.sum()), int(first_kept.sum()), acceptance)


def wrong_count(accepted: int, tried: int, probability: float) -> bool:
    """Say whether a count refutes a probability."""
    spread = math.sqrt(tried * probability * (1 - probability))
    return abs(accepted - tried * probability) > ONE_IN_A_MILLION * spread + 0.5


@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_vllm_emits_the_audited_law(rule: str, cut: Cut, one_hot: bool) -> None:
    check_law(rule, rule, cut, one_hot)


@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("lossless", "cactus:delta=0")])
def test_the_law_of_lossless_sampling_is_refuted(rule: str, one_hot: bool) -> None:
    never_opens = one_hot and rule.startswith("kl_gate")  # the KL from a one-hot row is infinite
    with nullcontext() if never_opens else pytest.raises(AssertionError):
        check_law(rule, "lossless", Cut(), one_hot)


def test_every_rule_that_fits_the_step_is_tried() -> None:
    assert {parse_rule(rule).name for rule in RULES} == {parse_rule(rule).name for rule in SPELLINGS}


@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
@pytest.mark.parametrize("rule", ["cactus:delta={}", "cactus:delta={},solver=exact"])
def test_five_percent_more_delta_is_noticed(rule: str, one_hot: bool) -> None:
    requests = 200_000
    drafted, tokens = emitted(rule.format(0.2 * 1.05), Cut(), one_hot, requests=requests)
    accepted = int((tokens[:, 1] >= 0).sum())
    assert wrong_count(accepted, requests, law(rule.format(0.2), Cut(), one_hot, drafted)[1])
    assert not wrong_count(accepted, requests, law(rule.format(0.2 * 1.05), Cut(), one_hot, drafted)[1])


def test_no_rule_emits_what_the_target_excludes() -> None:
    cut = Cut(1.4, top_k=3)
    for rule in RULES:
        _, tokens = emitted(rule, cut, one_hot=False, requests=5_000)
        assert (probability_of(problem(cut)[1], tokens[:, 0].long()) > 0).all()


def test_requests_with_different_rules_share_a_batch() -> None:
    cut = Cut(0.8, top_k=7, top_p=0.9)
    logits, _, draft = problem(cut)
    torch.manual_seed(5)
    rules = [None, *RULES]
    requests = len(rules) * 5_000
    drafted = torch.multinomial(draft, requests * DRAFTED, replacement=True).view(requests, DRAFTED)
    logitsprocs = processors()
    admit(logitsprocs, [params(rules[index % len(rules)], cut.temperature) for index in range(requests)])
    rows = logits.expand(requests, DRAFTED + 1, VOCABULARY).clone()
    tokens = sample(rows, draft.expand(requests, DRAFTED, -1), drafted, metadata(logitsprocs, [cut] * requests))
    for index, rule in enumerate(rules):
        probs, acceptance = law(rule or "lossless", cut, False, drafted)
        own = tokens[index :: len(rules)]
        assert not rejects(own[:, 0], probs), rule
        assert not wrong_count(int((own[:, 1] >= 0).sum()), len(own), acceptance), rule
