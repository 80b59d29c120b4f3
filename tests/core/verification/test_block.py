"""Block verification: the emitted law by enumeration, acceptance against token-wise verification, and the sampler."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from functools import partial

import pytest
import torch
from support.block_tests import prefix_tests
from support.chi_square import FALSE_ALARM, rejects
from support.exact_enumeration import Law, fates, make_rows, markov_pair, product_law
from support.exact_responses import Pair, block_outcomes, kl_of_laws, respond, target_law
from support.rules_under_test import SPELLINGS

from cactus_decoding import NgramDrafter, generate, load_pair, parse_rule, verify, verify_block
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.zoo.word_problems import word_problems

PAIR = Pair(*markov_pair())
ROW = torch.ones(1, 1)
BLOCK_RULES = [text for text in SPELLINGS if parse_rule(text).relaxed_target(ROW, ROW) is not None]
OTHERS = [text for text in SPELLINGS if text not in BLOCK_RULES]


# --- the emitted law ---


@pytest.mark.parametrize("proposals", [1, 2, 3, 5])
def test_lossless_responses_have_the_target_s_law(proposals: int) -> None:
    for pair in (PAIR, Pair(*make_rows(3, 3, seed=12)), Pair(*make_rows(2, 2, seed=13))):
        law = respond(parse_rule("lossless"), pair, proposals=proposals, length=5, block=True).law
        for tokens, probability in target_law(pair, 5).items():
            assert law.get(tokens, 0.0) == pytest.approx(probability, rel=0, abs=1e-12)


def first_tokens(law: Law, count: int) -> Law:
    shorter: Law = defaultdict(float)
    for tokens, probability in law.items():
        shorter[tokens[:count]] += probability
    return shorter


@pytest.mark.parametrize("spelling", BLOCK_RULES)
@pytest.mark.parametrize("proposals", [2, 3])
def test_verified_tokens_have_the_relaxed_target_s_law(spelling: str, proposals: int) -> None:
    # the first tokens of a response, as many as are proposed, are verified in any case: no bonus token is among them
    rule = parse_rule(spelling)
    relaxed = rule.relaxed_target(*PAIR)
    law = first_tokens(respond(rule, PAIR, proposals=proposals, length=proposals + 2, block=True).law, proposals)
    token_wise = first_tokens(respond(rule, PAIR, proposals=proposals, length=proposals + 2).law, proposals)
    for tokens, probability in product_law(relaxed, 0, proposals).items():
        assert law.get(tokens, 0.0) == pytest.approx(probability, rel=0, abs=1e-12)
        assert token_wise.get(tokens, 0.0) == pytest.approx(probability, rel=0, abs=1e-12)


@pytest.mark.parametrize("spelling", BLOCK_RULES)
def test_budgets_hold_for_blocks_too(spelling: str) -> None:
    expected = target_law(PAIR, 5)
    for proposals, limit in itertools.product((1, 2, 4), (0.05, 0.3, math.inf)):
        responses = respond(parse_rule(spelling), PAIR, proposals=proposals, length=5, limit=limit, block=True)
        assert kl_of_laws(responses.law, expected) <= responses.mean_spent + 1e-12
        assert responses.most_spent <= limit


# --- the test itself ---


def papers_tests(h: list[list[float]], p: list[list[float]], path: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Return weights and probabilities to pass, written down once more from the definition."""
    weights, passes = [1.0], []
    for i, token in enumerate(path):
        weights.append(min(weights[-1] * h[i][token] / p[i][token], 1.0))
        if i + 1 == len(path):
            passes.append(weights[-1])
        else:
            left = sum(max(weights[-1] * a - b, 0.0) for a, b in zip(h[i + 1], p[i + 1], strict=True))
            passes.append(left / (left + 1 - weights[-1]) if left + 1 - weights[-1] > 0 else 1.0)
    return weights, passes


def test_weights_and_passes_follow_their_definition() -> None:
    target, draft = make_rows(4, 12, seed=14)
    for i in range(0, 12, 3):
        h, p = target[i : i + 3], draft[i : i + 3]
        for path in itertools.product(range(4), repeat=3):
            if all(p[j, token] > 0 for j, token in enumerate(path)):
                ids = torch.tensor([path])
                weights, passes = prefix_tests(h[None], p[None], ids, torch.tensor([3]))
                expected = papers_tests(h.tolist(), p.tolist(), path)
                assert weights[0].tolist() == pytest.approx(expected[0], abs=1e-12)
                assert passes[0].tolist() == pytest.approx(expected[1], abs=1e-12)
                # a sequence that uses only two of the three columns is tested as if there were no third
                short = prefix_tests(h[None], p[None], ids, torch.tensor([2]))[1][0, :2].tolist()
                assert short == pytest.approx(papers_tests(h.tolist(), p.tolist(), path[:2])[1], abs=1e-12)


def expected_accepted(rule: AcceptanceRule, pair: Pair, proposals: int) -> tuple[float, float]:
    """Return the expected accepted tokens of a step, token-wise and as a block."""
    rows = rule.relaxed_target(*pair)
    kept = fates(rule, *pair)[0]
    one_by_one = jointly = 0.0
    for path in itertools.product(range(len(rows)), repeat=proposals):
        contexts = [0, *path[:-1]]
        drafted = math.prod(pair.draft[a, b].item() for a, b in zip(contexts, path, strict=True))
        if drafted == 0:
            continue
        reached = drafted
        for a, b in zip(contexts, path, strict=True):
            reached *= kept[a, b].item()
            one_by_one += reached
        h, p = rows[contexts], pair.draft[contexts]
        jointly += drafted * sum(n * chance for n, chance, _ in block_outcomes(h, p, path, pair.target[path[-1]]))
    return one_by_one, jointly


@pytest.mark.slow
def test_blocks_accept_no_less_on_a_thousand_random_pairs() -> None:
    choose = random.Random(15)
    more = 0
    for seed in range(1000):
        vocabulary, proposals = choose.choice([2, 3, 4]), choose.choice([2, 3])
        pair = Pair(*make_rows(vocabulary, vocabulary, seed))
        rule = parse_rule(choose.choice(["lossless", f"clamped:width={choose.uniform(0.1, 3)}"]))
        one_by_one, jointly = expected_accepted(rule, pair, proposals)
        assert jointly >= one_by_one - 1e-12
        more += jointly > one_by_one + 1e-6
    assert more > 500  # and more than that on most of them


# --- the sampler: false-alarm probability 1e-6 a test, fixed generators ---

DRAWS = 20_000
slow = partial(pytest.param, marks=pytest.mark.slow)


def drawn_outcomes(rule: str, generator: torch.Generator, *, jointly: bool = True) -> torch.Tensor:
    """Draft two tokens after token 0, verify, and number the outcomes (accepted, path, next token), ``[DRAWS]``."""
    first = torch.multinomial(PAIR.draft[0].expand(DRAWS, -1), 1, generator=generator)
    second = torch.multinomial(PAIR.draft[first[:, 0]], 1, generator=generator)
    ids = torch.cat([first, second], 1)
    contexts = torch.cat([torch.zeros_like(first), ids], 1)
    scheme = verify_block if jointly else verify
    result = scheme(rule, PAIR.target[contexts], PAIR.draft[contexts[:, :2]], ids, generator)
    return ((result.num_accepted * 4 + ids[:, 0]) * 4 + ids[:, 1]) * 4 + result.next_token


def law_of_outcomes(rule: str) -> torch.Tensor:
    """Return the law of the same numbers."""
    law = torch.zeros(3 * 4 * 4 * 4, dtype=torch.float64)
    rows = parse_rule(rule).relaxed_target(*PAIR)
    for a, b in itertools.product(range(4), repeat=2):
        drafted = PAIR.draft[0, a] * PAIR.draft[a, b]
        for accepted, chance, following in block_outcomes(rows[[0, a]], PAIR.draft[[0, a]], (a, b), PAIR.target[b]):
            for token in range(4):
                law[((accepted * 4 + a) * 4 + b) * 4 + token] += drafted * chance * following[token]
    return law


@pytest.mark.parametrize("rule", [slow("lossless"), "clamped:width=0.7", slow("ensemble:weight=0.3")])
def test_sampled_outcomes_have_the_enumerated_law(rule: str) -> None:
    assert FALSE_ALARM <= 1e-6
    assert not rejects(drawn_outcomes(rule, torch.Generator().manual_seed(16)), law_of_outcomes(rule))


@pytest.mark.parametrize(
    ("drawn", "expected", "jointly"),
    [
        slow("clamped:width=0.7", "lossless", True),
        ("clamped:width=0.735", "clamped:width=0.4", True),
        slow("lossless", "lossless", False),
    ],
)
def test_other_outcomes_are_told_apart(drawn: str, expected: str, jointly: bool) -> None:
    tokens = drawn_outcomes(drawn, torch.Generator().manual_seed(17), jointly=jointly)
    assert rejects(tokens, law_of_outcomes(expected))


def test_relaxed_tokens_are_those_beyond_the_lossless_prefix() -> None:
    target, draft = (rows[:3].unsqueeze(0) for rows in make_rows(6, 4, seed=18))
    target = torch.cat([target, target[:, :1]], 1)
    seen = 0
    for seed in range(60):
        ids = torch.multinomial(draft[0], 1, generator=torch.Generator().manual_seed(seed)).T
        same = [
            verify_block(rule, target, draft, ids, torch.Generator().manual_seed(seed))
            for rule in ("lossless", "clamped:width=2")
        ]
        lossless, clamped = (int(result.num_accepted) for result in same)
        assert same[0].relaxed.sum() == 0
        assert same[1].relaxed.sum() == max(clamped - lossless, 0)
        seen += clamped > lossless
    assert seen > 0


# --- in a response ---


@pytest.mark.parametrize("spelling", OTHERS)
def test_rules_that_look_at_the_drafted_token_are_refused(spelling: str) -> None:
    row = torch.full((2, 4), 0.25)
    with pytest.raises(ValueError, match="does not depend on the drafted token"):
        verify_block(spelling, row, row[:1], torch.tensor([0]))


@pytest.fixture(scope="module")
def pair():
    return load_pair()


@pytest.fixture(scope="module")
def prompt() -> str:
    return next(word_problems("validation", seed=4)).prompt


def test_blocks_at_temperature_zero_are_greedy(pair, prompt: str) -> None:
    greedy = generate(pair, prompt, temperature=0.0)
    assert generate(pair, prompt, temperature=0.0, verification="block").token_ids == greedy.token_ids
    rule = {"rule": "clamped:width=1", "budget": 0.1}
    assert generate(pair, prompt, temperature=0.0, verification="block", **rule).token_ids == greedy.token_ids


def test_lookup_drafts_are_verified_in_blocks_only_without_a_loss(pair, prompt: str) -> None:
    drafter, pair.drafter = pair.drafter, NgramDrafter()
    try:
        greedy = generate(pair, prompt, temperature=0.0)
        assert generate(pair, prompt, temperature=0.0, verification="block").token_ids == greedy.token_ids
        with pytest.raises(ValueError, match="needs a draft model and a fixed number of proposals"):
            generate(pair, prompt, rule="clamped:width=1", verification="block")
    finally:
        pair.drafter = drafter


@pytest.mark.parametrize("length", ["confidence:threshold=0.3", "adaptive"])
def test_steps_of_varying_length_are_verified_in_blocks_only_without_a_loss(pair, prompt: str, length: str) -> None:
    given = {"verification": "block", "num_speculative_tokens": length}
    greedy = generate(pair, prompt, temperature=0.0)
    assert generate(pair, prompt, temperature=0.0, **given).token_ids == greedy.token_ids
    with pytest.raises(ValueError, match="a fixed number of proposals"):
        generate(pair, prompt, rule="clamped:width=1", **given)


def test_other_words_for_verification_are_refused(pair, prompt: str) -> None:
    with pytest.raises(ValueError, match="traversal, coupled, fly, but is 'blocks'"):
        generate(pair, prompt, verification="blocks")
    with pytest.raises(ValueError, match="does not depend on the drafted token"):
        generate(pair, prompt, rule="cactus:delta=1", verification="block")
