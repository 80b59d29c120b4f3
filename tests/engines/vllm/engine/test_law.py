"""What vLLM's own sampler emits under the plug-in, against the audit's exact law.

Requests of every rule share a batch. Each chi-square test rejects a right sampler with probability 1e-6, and so does
each test of an acceptance count.
"""

import math
from functools import cache

import pytest
import torch
from stock_sampler import Cut, admit, metadata, params, prepare, processors, sample
from support.chi_square import rejects
from support.engine_rules import SPELLINGS
from support.tables import all_of

from cactus_decoding import SamplingParams, audit, parse_rule

prepare()

RULES = (
    None,
    "lossless",
    "cactus:delta=0",
    "cactus:delta=0.05",
    "cactus:delta=0.2",
    "cactus:delta=0.1,solver=exact",
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
VOCABULARY, DRAFTED = 10, 2
REQUESTS = 2_500
"""Of each rule; the first cut has four times as many, which tell every rule from the lossless one."""
STEPS = 50
"""Steps that so many requests are: a batch stays, and proposals are drawn anew."""
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


@cache
def emitted(cut: Cut, one_hot: bool) -> dict[str | None, torch.Tensor]:
    """Return what the sampler made of the proposals of each rule's requests, ``[requests, 3]``, all in one batch."""
    logits, _, draft = problem(cut)
    torch.manual_seed(3)
    requests = len(RULES) * REQUESTS * (4 if cut == Cut() else 1) // STEPS
    logitsprocs, asked = processors(), [params(rule, cut.temperature) for rule in RULES]
    admit(logitsprocs, [asked[index % len(RULES)] for index in range(requests)])
    rows = logits.expand(requests, DRAFTED + 1, VOCABULARY)
    steps = []
    for _ in range(STEPS):
        if one_hot:
            probs, drafted = None, likeliest_but_one(cut).expand(requests, DRAFTED)
        else:
            probs = draft.expand(requests, DRAFTED, VOCABULARY)
            drafted = torch.multinomial(draft, requests * DRAFTED, replacement=True).view(requests, DRAFTED)
        steps.append(sample(rows.clone(), probs, drafted, metadata(logitsprocs, [cut] * requests)))
    tokens = torch.cat(steps)
    return {rule: tokens[index :: len(RULES)] for index, rule in enumerate(RULES)}


def likeliest_but_one(cut: Cut) -> torch.Tensor:
    return problem(cut)[1].argsort(descending=True)[1]


def follows(tokens: torch.Tensor, rule: str, cut: Cut, one_hot: bool) -> bool:
    """Say whether tokens, and how many proposals were kept, have the audited law of a rule."""
    _, target, draft = problem(cut)
    drafted = likeliest_but_one(cut) if one_hot else None
    result = audit(rule, target, None if one_hot else draft, draft_token_ids=drafted)
    law, bonus = (each / each.sum() for each in (result.output_probs, target.double()))
    acceptance = result.acceptance.item()
    first_kept, both_kept = tokens[:, 1] >= 0, tokens[:, 2] >= 0
    return not (
        rejects(tokens[:, 0], law)
        or rejects(tokens[first_kept, 1], law)
        or rejects(tokens[both_kept, 2], bonus)
        or wrong_count(int(first_kept.sum()), len(tokens), acceptance)
        or wrong_count(int(both_kept.sum()), int(first_kept.sum()), acceptance)
    )


def wrong_count(accepted: int, tried: int, probability: float) -> bool:
    spread = math.sqrt(tried * probability * (1 - probability))
    return abs(accepted - tried * probability) > ONE_IN_A_MILLION * spread + 0.5


@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
@all_of("cut", CUTS)
def test_vllm_emits_the_audited_law(cut: Cut, one_hot: bool) -> None:
    for rule, tokens in emitted(cut, one_hot).items():  # what the target excludes, no rule emits
        assert follows(tokens, rule or "lossless", cut, one_hot), rule


@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
def test_other_laws_are_refuted(one_hot: bool) -> None:
    found = emitted(Cut(), one_hot)
    for rule in (rule for rule in RULES if rule not in (None, "lossless", "cactus:delta=0")):
        never_opens = one_hot and rule.startswith("kl_gate")  # the KL from a one-hot row is infinite
        assert follows(found[rule], "lossless", Cut(), one_hot) == never_opens, rule
    assert not follows(found["cactus:delta=0.2"], "cactus:delta=0.28", Cut(), one_hot)
    assert not follows(found["cactus:delta=0.1,solver=exact"], "cactus:delta=0.15,solver=exact", Cut(), one_hot)


def test_every_rule_that_fits_the_step_is_tried() -> None:
    assert {parse_rule(rule).name for rule in RULES if rule} == {parse_rule(rule).name for rule in SPELLINGS}
