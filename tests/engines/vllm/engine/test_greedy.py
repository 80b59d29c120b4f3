"""Rules for temperature 0 in a real engine, token by token and count by count beside this package's own loop.

Both read float32. Greedy requests of all kinds, and sampled ones between them, are in one batch.
"""

import pytest
from engine_run import run_jobs
from greedy_answers import KINDS, LIMITS, MAX_TOKENS, NEAR, own_answer, prompts, sampling, without

from cactus_decoding.core.counters import REPORT_KEY, REPORTED

pytestmark = pytest.mark.engine

PROMPTS = 20
SAMPLED = (None, {"acceptance_rule": "cactus:delta=1"}, {"acceptance_rule": "clamped:width=2", "budget": 1.0})
WRONG: tuple[tuple[dict, dict], ...] = (
    ({"acceptance_rule": NEAR}, {}),
    ({"acceptance_rule": "relaxed_greedy:margin=0.1,per=remaining"}, {"acceptance_rule": "relaxed_greedy:margin=0.1"}),
    ({"acceptance_rule": "relaxed_greedy:margin=8,top=2"}, {"acceptance_rule": "relaxed_greedy:margin=8"}),
    ({"acceptance_rule": "mars:ratio=0.98,logits=raw"}, {"acceptance_rule": "mars:ratio=0.98"}),
    *((asked, without(asked, key)) for asked in KINDS for key in LIMITS if key in asked),
)
"""What is asked for, and what a rule that is not lifted, bound to its place or limited would do instead."""
REFUSED = (
    ({"acceptance_rule": NEAR}, 1.0, "relaxed_greedy is a rule for temperature 0"),
    ({"acceptance_rule": "mars:ratio=0.9", "budget": 1.0}, 0.5, "mars is a rule for temperature 0"),
    ({"acceptance_rule": "relaxed_greedy:margin=-1"}, 0.0, "margin must be"),
    ({"acceptance_rule": "relaxed_greedy"}, 0.0, "lacks margin"),
    ({"acceptance_rule": "big_little:rollback=inf"}, 0.0, "rollback must be"),
    ({"acceptance_rule": NEAR, "budget": -1.0}, 0.0, "budget must be"),
    ({"acceptance_rule": NEAR, "max_relaxed": 1}, 0.0, "max_relaxed does not work in vLLM"),
)


@pytest.fixture(scope="module")
def results() -> list[dict]:
    texts = prompts(PROMPTS)
    greedy = [sampling(asked) for _ in texts for asked in KINDS]
    sampled = [
        {"temperature": 1.0, "max_tokens": MAX_TOKENS, "ignore_eos": True, "seed": place, "extra_args": asked}
        for place, asked in enumerate(SAMPLED[place % len(SAMPLED)] for place in range(PROMPTS))
    ]
    mixed = {"prompts": [text for text in texts for _ in KINDS] + texts, "sampling": greedy + sampled}
    refused = [
        {"prompts": texts[:1], "sampling": {"temperature": temperature, "extra_args": asked}}
        for asked, temperature, _ in REFUSED
    ]
    return run_jobs([mixed, {"prompts": texts, "sampling": sampled}, *refused])


def answers_to(asked: dict, results: list[dict]) -> list[tuple[list[int], dict]]:
    own = slice(KINDS.index(asked), PROMPTS * len(KINDS), len(KINDS))
    return list(zip(results[0]["token_ids"][own], results[0]["metrics"][own], strict=True))


@pytest.mark.parametrize("asked", KINDS, ids=str)
def test_answers_and_reports_are_those_of_this_package_s_loop(asked: dict, results: list[dict]) -> None:
    for prompt, (tokens, metrics) in zip(prompts(PROMPTS), answers_to(asked, results), strict=True):
        expected, counts = own_answer(prompt, asked)
        assert tokens == expected
        if asked:  # vLLM's own verification counts nothing
            report = metrics[REPORT_KEY]
            assert [report[name] for name in REPORTED] == pytest.approx([counts[name] for name in REPORTED], abs=1e-3)


@pytest.mark.parametrize(("asked", "wrong"), WRONG, ids=str)
def test_a_rule_that_is_not_lifted_or_bound_or_limited_is_told_apart(asked: dict, wrong: dict, results) -> None:
    found = zip(prompts(PROMPTS), answers_to(asked, results), strict=True)
    assert any(tokens != own_answer(prompt, wrong)[0] for prompt, (tokens, _) in found)


def test_sampled_requests_beside_greedy_ones_answer_as_by_themselves(results: list[dict]) -> None:
    assert results[0]["token_ids"][PROMPTS * len(KINDS) :] == results[1]["token_ids"]


def test_wrong_values_and_the_other_temperature_are_refused(results: list[dict]) -> None:
    for (asked, _, said), result in zip(REFUSED, results[2:], strict=True):
        assert said in result["error"], asked
