"""Budgets, block verification and relaxed greedy acceptance on the command line."""

from __future__ import annotations

import json

import pytest

from cactus_decoding import Budget, generate, load_pair

QUESTION = "Lily picks 9 pears and eats 2. She buys 3 bags of 4 pears. How many pears does she have now?"
PROMPT = f"Question: {QUESTION}\nAnswer:"
SPENDER = ("--rule", "clamped:width=2")


def test_json_says_what_was_spent_and_left(run):
    code, out, err = run("generate", QUESTION, *SPENDER, "--budget", "0.02", "--seed", "3", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    expected = generate(load_pair(), PROMPT, rule="clamped:width=2", budget=0.02, seed=3)
    assert result["token_ids"] == expected.token_ids
    assert result["budget_left"] == expected.budget_left == 0.02 - result["metrics"]["nats"]
    assert result["metrics"]["fell_back"] == expected.metrics.fell_back > 0
    assert result["arguments"]["budget_nats"] == 0.02


def test_the_shift_and_the_length_to_spread_it_over(run):
    arguments = (*SPENDER, "--max-shift", "0.1", "--expected-tokens", "60", "--seed", "3", "--json")
    result = json.loads(run("generate", QUESTION, *arguments)[1])
    budget = Budget(max_shift=0.1, expected_tokens=60)
    expected = generate(load_pair(), PROMPT, rule="clamped:width=2", budget=budget, seed=3)
    assert result["token_ids"] == expected.token_ids
    assert result["arguments"]["budget_nats"] == budget.limit


def test_an_infinite_budget_measures_and_is_strict_json(run):
    out = run("generate", QUESTION, *SPENDER, "--budget", "inf", "--seed", "3", "--json")[1]
    result = json.loads(out, parse_constant=pytest.fail)
    assert result["budget_left"] is None
    assert result["metrics"]["nats"] > 0


def test_the_table_shows_the_budget_only_where_there_is_one(run):
    with_budget = run("generate", QUESTION, *SPENDER, "--max-shift", "0.1", "--seed", "3")[2]
    for words in ("spent nats", "left nats", "of 0.02: moves no event by more than 0.1", "fallen back"):
        assert words in with_budget
    assert "spent nats" not in run("generate", QUESTION, *SPENDER, "--seed", "3")[2]
    measured = run("generate", QUESTION, "--rule", "relaxed_greedy:margin=1", "--temperature", "0", "--seed", "3")[2]
    assert "spent nats" in measured
    assert "left nats" not in measured


def test_blocks(run):
    result = json.loads(run("generate", QUESTION, "--verification", "block", "--seed", "3", "--json")[1])
    expected = generate(load_pair(), PROMPT, verification="block", seed=3)
    assert result["token_ids"] == expected.token_ids
    assert result["arguments"]["verification"] == "block"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "1"], "the lossless rule spends nothing of a budget: give --rule"),
        (["--budget", "-1", *SPENDER], "'--budget'"),
        (["--budget", "nan", *SPENDER], "'--budget'"),
        (["--max-shift", "2", *SPENDER], "'--max-shift'"),
        (["--budget", "1", "--max-shift", "0.1", *SPENDER], "exclude each other"),
        (["--expected-tokens", "9", *SPENDER], "give --budget or --max-shift too"),
        (["--expected-tokens", "0", "--budget", "1", *SPENDER], "'--expected-tokens'"),
        (["--expected-tokens", "9", "--budget", "inf", *SPENDER], "spreads a finite budget"),
        (["--expected-tokens", "9", "--budget", "1", "--rule", "cactus:delta=1"], "must be clamped:width=..."),
        (["--verification", "joint"], "verification must be one of token, block, but is 'joint'"),
        (["--verification", "block", "--rule", "typical"], "does not depend on the drafted token"),
        (["--verification", "block", "--draft", "ngram", *SPENDER], "needs a draft model"),
        (["--rule", "relaxed_greedy:margin=1"], "set the temperature to 0"),
        (["--rule", "relaxed_greedy:margin=-1"], "margin must be in [0, inf), but is -1.0"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(run, arguments, message):
    code, out, err = run("generate", QUESTION, *arguments)
    errors = [line for line in err.splitlines() if "warning" not in line]
    assert (code, out) == (2, "")
    assert message in errors[0]
    assert len(errors) == 1
