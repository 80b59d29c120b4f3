"""What vLLM's own sampler emits for requests that protect tokens or have phases, against the audit's exact law.

Each chi-square test rejects a right sampler with probability 1e-6; their number is that of the kinds of requests, times
two positions and two kinds of drafts. The generator's seed is fixed.
"""

from __future__ import annotations

import math

import pytest
import torch
from stock_sampler import Cut, admit, metadata, params, prepare, processors, sample
from support.chi_square import rejects

from cactus_decoding import audit
from cactus_decoding.core.policy.importance import Importance
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.vllm.v1 import batch_rules

prepare()

WORDS = ("<a>", "</a>", " 3", "7", "x", "y", "not", "w", ", ", "{")
"""Behind the second, which is the prompt, marks that it opens are open."""
ROWS = torch.tensor(
    [
        [0.04, 0.04, 0.30, 0.20, 0.12, 0.10, 0.06, 0.05, 0.05, 0.04],  # digits 0.5, json 0.59, negations 0.06
        [0.04, 0.04, 0.01, 0.01, 0.30, 0.24, 0.08, 0.08, 0.12, 0.08],  # digits 0.02, json 0.22, negations 0.08
        [0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10],  # behind both drafted tokens
    ]
)
"""What the target gives the tokens at each position of a step."""
DRAFT = torch.tensor([0.05, 0.05, 0.10, 0.35, 0.05, 0.20, 0.05, 0.05, 0.05, 0.05])
ONE_HOT = torch.tensor([3, 5])
"""What is drafted where the draft is no model."""
CLAMPED, CACTUS = "clamped:width=1", "cactus:delta=0.5"
KINDS: tuple[tuple[str | None, dict, tuple[str, str]], ...] = (
    (None, {}, ("lossless", "lossless")),
    (CLAMPED, {}, (CLAMPED, CLAMPED)),
    (CLAMPED, {"protect": "digits", "protect_threshold": 0.1}, ("lossless", CLAMPED)),
    (CLAMPED, {"protect": "digits"}, ("lossless", "lossless")),
    (CLAMPED, {"protect": "digits", "protect_threshold": 0.55}, (CLAMPED, CLAMPED)),
    (CLAMPED, {"protect": "json", "protect_threshold": 0.55}, ("lossless", CLAMPED)),
    (CACTUS, {"protect": "negation", "protect_threshold": 0.07}, (CACTUS, "lossless")),
    (CACTUS, {"protect": "negation|digits", "protect_threshold": 0.2}, ("lossless", CACTUS)),
    (CACTUS, {"lossless_tokens": 1}, ("lossless", CACTUS)),
    (CACTUS, {"lossless_tokens": 2}, ("lossless", "lossless")),
    (CACTUS, {"relax_within": ["</a>", "<b>"]}, (CACTUS, CACTUS)),
    (CACTUS, {"relax_within": ["<b>", "</b>"]}, ("lossless", "lossless")),
    (CACTUS, {"relax_within": ["7", "</a>"]}, ("lossless", CACTUS)),  # where 7 is what is drafted
    (CACTUS, {"relax_within": ["</a>", "7"], "protect": "json"}, ("lossless", "lossless")),
    (CLAMPED, {"max_importance": 0.4}, ("lossless", CLAMPED)),  # importance is 0.54 to 0.63, then 0.19 to 0.23
    (CACTUS, {"max_importance": 0.1}, ("lossless", "lossless")),
    (CACTUS, {"max_importance": 0.7, "protect": "digits", "protect_threshold": 0.1}, ("lossless", CACTUS)),
    (CACTUS, {"importance": "none"}, (CACTUS, CACTUS)),
)
"""Requests' rules and policies, and which rule judges each position."""
READS_THE_DRAFTED = 12
REQUESTS = 8_000


@pytest.fixture(scope="module", params=[True, False], ids=["one_hot", "probabilistic"])
def emitted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """Return whether drafts are deterministic, what was drafted, and what became of it, requests of a kind in turns."""
    one_hot, count = request.param, len(KINDS) * REQUESTS
    torch.manual_seed(11)
    if one_hot:
        drafted = ONE_HOT.expand(count, 2)
    else:
        drafted = torch.multinomial(DRAFT, 2 * count, replacement=True).view(count, 2)
    weights = torch.zeros(2, len(WORDS))
    weights[0, [2, 3]], weights[1, 3] = 3.0, 0.5  # digits, of which the draft may propose a seven
    file = tmp_path_factory.mktemp("importance") / "importance.safetensors"
    Importance(*weights, -1.5, Vocabulary(WORDS).fingerprint).save(file)
    server = {
        "acceptance_rule": "lossless",
        "importance": str(file),
        "max_importance": 1.0,
        "acceptance_metrics": False,
    }
    logitsprocs = processors(server, words=WORDS)
    asked = [params(rule, **policy) for rule, policy, _ in KINDS]
    admit(logitsprocs, [asked[number % len(KINDS)] for number in range(count)])
    rows = ROWS.log().expand(count, 3, -1).clone()
    probs = None if one_hot else DRAFT.expand(count, 2, -1)
    return one_hot, drafted, sample(rows, probs, drafted, metadata(logitsprocs, [Cut()] * count))


def tokens_of(kind: int, emitted: tuple[bool, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return what requests of a kind got; where one reads what was drafted, those that drafted a seven."""
    _, drafted, tokens = emitted
    own = slice(kind, None, len(KINDS))
    return tokens[own][drafted[own][:, 0] == 3] if kind == READS_THE_DRAFTED else tokens[own]


def follows(rules: tuple[str, str], kind: int, emitted: tuple[bool, torch.Tensor, torch.Tensor]) -> bool:
    """Say whether what requests of a kind got has the exact laws of two rules, one for each position."""
    one_hot, tokens = emitted[0], tokens_of(kind, emitted)
    for position, rule in enumerate(rules):
        here = tokens if position == 0 else tokens[tokens[:, 1] >= 0]
        if kind == READS_THE_DRAFTED and position == 0 and not one_hot:
            continue  # what was drafted was looked at
        draft = {"draft_token_ids": ONE_HOT[position]} if one_hot else {"draft_probs": DRAFT}
        if rejects(here[:, position], audit(rule, ROWS[position], **draft).output_probs):
            return False
    return True


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=[f"{rule}-{policy}" for rule, policy, _ in KINDS])
def test_requests_of_one_batch_follow_the_law_of_their_own_protection(kind: int, emitted) -> None:
    assert follows(KINDS[kind][2], kind, emitted)


@pytest.mark.parametrize("kind", range(1, len(KINDS)), ids=[f"{rule}-{policy}" for rule, policy, _ in KINDS[1:]])
def test_other_laws_are_refuted(kind: int, emitted) -> None:
    rule, _, judging = KINDS[kind]
    others = {(one, other) for one in ("lossless", rule) for other in ("lossless", rule)} - {judging}
    if kind == READS_THE_DRAFTED and not emitted[0]:
        others = {(judging[0], "lossless")}
    for other in others:
        assert not follows(other, kind, emitted), other


def test_without_anything_asked_for_no_row_is_held_back() -> None:
    logitsprocs = processors(words=WORDS)
    admit(logitsprocs, [params(CLAMPED), params(None), params(CACTUS, budget=1.0)])
    rules = batch_rules(metadata(logitsprocs, [Cut()] * 3))
    layout = rules.layout([2, 2, 2], 2, None)  # what was drafted is not looked at
    assert (layout.protected, layout.relaxable, rules.reads_tokens) == ([], None, False)
    assert math.isinf(rules.requests[0].threshold)
