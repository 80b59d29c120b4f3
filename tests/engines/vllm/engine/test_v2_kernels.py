"""The V2 runner's own kernels behind the plug-in, interpreted: few draws, and a law that each must follow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_run import ENGINE_ENVIRONMENT
from interpreted_kernels import BUDGET, CASES, DEPTH, GREEDY_RULES, METERED, METERED_RULES, STEPS, problem
from support.chi_square import rejects

from cactus_decoding import audit, parse_rule


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    path = tmp_path_factory.mktemp("kernels") / "results.json"
    script = Path(__file__).with_name("interpreted_kernels.py")
    subprocess.run([sys.executable, str(script), str(path)], env=os.environ | ENGINE_ENVIRONMENT, check=True)
    return json.loads(path.read_text())


def law(rule: str | None, one_hot: bool, drafted: list[int]) -> torch.Tensor:
    target, draft = (logits.double().softmax(-1) for logits in problem())
    token = torch.tensor(drafted[0]) if one_hot else None
    return audit(rule or "lossless", target, None if one_hot else draft, draft_token_ids=token).output_probs


def test_the_kernels_emit_the_audited_law_and_no_other(everything) -> None:
    for (rule, one_hot), (drafted, tokens, _) in zip(CASES, everything["laws"], strict=True):
        emitted = torch.tensor(tokens)
        assert not rejects(emitted[::2], law(rule, one_hot, drafted)), rule
        assert not rejects(emitted[1::2], law(None, one_hot, drafted)), "requests without a rule, in the same batch"
        if (rule, one_hot) == ("cactus:delta=1", True):
            assert rejects(emitted[::2], law(None, one_hot, drafted))


def test_requests_without_a_rule_are_stock_to_the_last_bit(everything) -> None:
    for (rule, one_hot), result in zip(CASES, everything["laws"], strict=True):
        assert result[1][1::2] == everything["laws"][CASES.index((None, one_hot))][1][1::2], rule


@pytest.mark.parametrize("rule", METERED_RULES)
def test_budgets_hold_and_counters_count(rule: str, everything: dict[str, list]) -> None:
    run = everything["metered"][METERED_RULES.index(rule)]
    target, draft = (logits.double().softmax(-1) for logits in problem())
    cost = audit(rule, target, draft).kl.item()  # of every position: all have the same rows
    metered = torch.arange(METERED) % 2 == 0
    budget = torch.where(metered, BUDGET, torch.inf).double()
    spent, positions, accepted = torch.zeros(METERED, dtype=torch.float64), 0, 0
    for step in range(STEPS):
        if step == 1:
            spent[0] = torch.inf  # it came back with tokens, and nobody knows what it had spent
        got, before = torch.tensor(run["got"][step]), spent.clone()
        for depth in range(DEPTH):
            relaxed = (depth < got) & (before + cost * (depth + 1) <= budget)
            positions += int(relaxed.sum())
            accepted += int((relaxed & (depth < got - 1)).sum())
            spent += torch.where(relaxed & metered, cost, 0.0)
    assert torch.allclose(torch.tensor(run["spent"]).double()[metered], spent[metered], atol=1e-6)
    assert (spent[metered][1:] <= BUDGET).all()
    assert (spent[metered][1:] > 0).all()
    counted = run["counted"]
    assert counted["cactus_verified_positions"] == counted["cactus_audited_positions"] == positions
    assert counted["cactus_accepted_tokens"] == accepted
    assert counted["cactus_audited_nats"] == pytest.approx(positions * cost, rel=1e-5)
    assert 0 < counted["cactus_relaxed_tokens"] < accepted


def test_greedy_requests_follow_their_rule_or_take_the_likeliest_token(everything: dict[str, list]) -> None:
    target = problem()[0]
    likeliest, probs = int(target.argmax()), target.softmax(-1)
    for place, (drafted, emitted) in enumerate(everything["greedy"]):
        rule, relaxed = parse_rule(GREEDY_RULES[place // 2]), 0
        for request in range(0, len(drafted), 2):  # the others sample
            expected = []
            for depth, token in enumerate(drafted[request]):
                bound = rule.bind_position(DEPTH - depth, target.max().item())
                kept = token == likeliest
                if request % 4 == 0:
                    kept = bound.accepts(probs, torch.tensor([token])).item()
                    relaxed += kept and token != likeliest
                expected.append(token if kept else likeliest)
                if not kept:
                    break
            else:
                expected.append(likeliest)
            assert emitted[request] == expected
        assert relaxed
