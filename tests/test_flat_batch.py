"""The Triton kernel in Triton's interpreter: exact decisions for given numbers, and the law of what it emits.

Each chi-square test fails by chance with probability 1e-6 over the choice of its seed; there are fewer than 20 of them.
"""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from chi_square import rejects
from rules_under_test import SPELLINGS, Altered, RejectsEverything
from torch import Tensor

from cactus_decoding.audit import audit
from cactus_decoding.kernels.flat_batch import FlatVerification, verify_flat
from cactus_decoding.rules import as_rule, parse_rule
from cactus_decoding.types import AcceptanceRule

COUNTS = (3, 0, 5, 1, 2)
VOCABULARY = 300  # not a multiple of the block: the last one is partly masked
BLOCK = 128
BONUS = torch.arange(len(COUNTS)) + VOCABULARY


def flat_case(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return logits (some tokens excluded), draft rows, drafted tokens and uniform numbers of a ragged batch."""
    generator = torch.Generator().manual_seed(seed)
    rows = sum(COUNTS)
    logits = torch.randn(rows, VOCABULARY, generator=generator) * 3
    draft = (logits + torch.randn(rows, VOCABULARY, generator=generator)).softmax(-1)
    drafted = torch.multinomial(draft, 1, generator=generator).squeeze(1)
    excluded = torch.rand(rows, VOCABULARY, generator=generator) < 0.3
    uniforms = torch.rand(rows, generator=generator, dtype=torch.float64)
    return logits.masked_fill(excluded, -math.inf), draft, drafted, uniforms


def ends() -> Tensor:
    return torch.tensor(COUNTS).cumsum(0)


def run(
    rules: list[AcceptanceRule | str], case: tuple[Tensor, ...], seed: int = 0, fixed: bool = False
) -> FlatVerification:
    logits, draft, drafted, uniforms = case
    seeds = torch.arange(len(COUNTS)) + 1000 * seed
    return verify_flat(
        rules, logits, None if fixed else draft, drafted, ends(), BONUS, seeds, uniforms=uniforms, block=BLOCK
    )


def check_decisions(given: FlatVerification, rules: list[AcceptanceRule], case: tuple[Tensor, ...], fixed: bool) -> int:
    """Compare with the definition in float64, one row at a time; return how many tokens were relaxed."""
    logits, draft, drafted, uniforms = case
    probs = logits.double().softmax(-1)
    seen = 0
    for request, (rule, count) in enumerate(zip(rules, COUNTS, strict=True)):
        start = int(ends()[request]) - count
        emitted: list[int] = []
        for row in range(start, start + count):
            token = drafted[row : row + 1]
            p = None if fixed else draft[row].double()
            h, _ = rule.judge(probs[row], p, token)
            needed = uniforms[row] * (1.0 if p is None else p[token])
            assert abs(needed - h) > 1e-6 * (needed + h), "too close to call in float32: choose another seed"
            if not needed < h:
                break
            relaxed = bool(needed >= probs[row, token])
            assert given.relaxed[row] == relaxed
            seen += relaxed
            emitted.append(int(token))
        assert given.num_accepted[request] == len(emitted)
        tokens = given.token_ids[request].tolist()
        assert tokens[: len(emitted)] == emitted
        if len(emitted) == count:
            assert tokens[count] == BONUS[request]
        else:
            recovered = tokens[len(emitted)]
            assert 0 <= recovered < VOCABULARY
            assert probs[start + len(emitted), recovered] > 0
            assert not given.relaxed[start + len(emitted) : start + count].any()
        assert all(token == -1 for token in tokens[len(emitted) + 1 :])
    return seen


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_decisions_are_those_of_the_rule_for_the_same_numbers(spelling: str) -> None:
    rules = [parse_rule(spelling)] * len(COUNTS)
    for seed in range(2):
        case = flat_case(seed)
        check_decisions(run(rules, case), rules, case, fixed=False)
    case = flat_case(5)
    check_decisions(run(rules, case, fixed=True), rules, case, fixed=True)


def test_each_request_has_its_own_rule() -> None:
    spellings = ["cactus:delta=1", "lossless", "clamped:width=1", "ensemble:weight=0.5", "top_k:k=3"]
    rules = [parse_rule(spelling) for spelling in spellings]
    relaxed = 0
    for seed in range(6):
        case = flat_case(seed)
        relaxed += check_decisions(run(rules, case), rules, case, fixed=False)
    assert relaxed


def test_check_of_decisions_catches_a_wrong_knob() -> None:
    right, wrong = parse_rule("cactus:delta=0.5"), parse_rule("cactus:delta=2")
    cases = [flat_case(seed) for seed in range(6)]
    given = [run([wrong] * len(COUNTS), case) for case in cases]
    with pytest.raises(AssertionError):
        _ = [
            check_decisions(*each, fixed=False) for each in zip(given, [[right] * len(COUNTS)] * 6, cases, strict=True)
        ]


def test_rows_after_the_first_rejection_are_not_read() -> None:
    logits, draft, drafted, uniforms = flat_case(0)
    uniforms[[0, 3, 8, 9]] = 1 - 2**-20
    drafted[[0, 3]] = logits[[0, 3]].argmin(-1)  # excluded: rejected at once
    expected = run(["lossless"] * len(COUNTS), (logits, draft, drafted, uniforms))
    assert expected.num_accepted[[0, 2]].tolist() == [0, 0]
    for rows in (slice(1, 3), slice(4, 8)):
        logits[rows], draft[rows] = math.nan, math.nan
    given = run(["lossless"] * len(COUNTS), (logits, draft, drafted, uniforms))
    for name, value in expected._asdict().items():
        assert torch.equal(getattr(given, name), value), name


def test_tokens_depend_on_the_seeds_and_on_nothing_else() -> None:
    case = flat_case(2)
    rules: list[AcceptanceRule | str] = ["lossless"] * len(COUNTS)
    assert torch.equal(run(rules, case, 1).token_ids, run(rules, case, 1).token_ids)
    assert any(not torch.equal(run(rules, case, 1).token_ids, run(rules, case, seed).token_ids) for seed in range(2, 8))


TARGET = torch.tensor([0.0, 0.35, 0.25, 0.05, 0.12, 0.13, 0.1, 0.0], dtype=torch.float64)
DRAFT = torch.tensor([0.15, 0.1, 0.45, 0.12, 0.0, 0.13, 0.05, 0.0], dtype=torch.float64)
STEEP_TARGET = torch.tensor([0.1, 0.45, 0.45], dtype=torch.float64)
STEEP_DRAFT = torch.tensor([0.7, 0.28, 0.02], dtype=torch.float64)
DRAWS = 800  # the interpreter takes milliseconds for each


def first_tokens(
    rule: AcceptanceRule | str, seed: int, target: Tensor = TARGET, draft: Tensor = DRAFT, block: int = 8
) -> Tensor:
    """Draft a token for each of many requests, verify it with the kernel's own numbers, and return the first token."""
    generator = torch.Generator().manual_seed(seed)
    drafted = torch.multinomial(draft, DRAWS, replacement=True, generator=generator)
    seeds = torch.randint(2**62, (DRAWS,), generator=generator)
    result = verify_flat(
        [as_rule(rule)] * DRAWS,
        target.log().float().expand(DRAWS, -1),
        draft.float().expand(DRAWS, -1),
        drafted,
        torch.arange(1, DRAWS + 1),
        torch.zeros(DRAWS, dtype=torch.int64),
        seeds,
        block=block,
    )
    return result.token_ids[:, 0]


LAWS = ["lossless", "cactus:delta=0.2", "lenience:lenience=0.6", "clamped:width=0.7", "top_k:k=2,residual=mask"]


@pytest.mark.slow
@pytest.mark.parametrize("spelling", LAWS)
def test_first_token_has_the_audited_law(spelling: str) -> None:
    expected = torch.where(TARGET > 0, audit(spelling, TARGET, DRAFT).output_probs, 0.0)
    block = 4 if spelling == "lossless" else 8  # with 4, the race is between lanes and between blocks
    assert not rejects(first_tokens(spelling, LAWS.index(spelling), block=block), expected)


def test_greedy_recovery_takes_the_first_of_the_most_likely() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0, 5.0, -1.0]])
    uniform = torch.tensor([0.5], dtype=torch.float64)
    for rule in ("typical:threshold=0.9,alpha=100", "typical:threshold=0.9,alpha=100,recovery=sample"):
        found = {
            int(
                verify_flat(
                    [rule], logits, None, torch.tensor([2]), torch.tensor([1]), torch.tensor([9]), torch.tensor([seed]),
                    uniforms=uniform, block=4,
                ).token_ids[0, 0]
            )
            for seed in range(20)
        }  # fmt: skip
        assert found == ({1, 3} if "sample" in rule else {1})


@pytest.mark.slow
def test_without_a_residual_the_target_is_emitted() -> None:
    assert not rejects(first_tokens(RejectsEverything(), 3, TARGET, TARGET), TARGET)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"residual_scale": math.inf}, {"acceptance_factor": 1.5}])
def test_law_check_catches_wrong_rules(wrong: dict[str, float]) -> None:
    right = parse_rule("clamped:width=1")
    expected = audit(right, STEEP_TARGET, STEEP_DRAFT).output_probs
    assert not rejects(first_tokens(right, 5, STEEP_TARGET, STEEP_DRAFT), expected)
    assert rejects(first_tokens(Altered(right, **wrong), 5, STEEP_TARGET, STEEP_DRAFT), expected)


def test_shapes_that_do_not_fit_and_rules_that_the_kernel_cannot_do_are_refused() -> None:
    logits, draft, drafted, uniforms = flat_case(0)
    with pytest.raises(ValueError, match=r"draft_token_ids must be \[11\]"):
        run(["lossless"] * len(COUNTS), (logits, draft, drafted[1:], uniforms))
    with pytest.raises(ValueError, match="a rule for each of 5 requests, but there are 1"):
        run(["lossless"], (logits, draft, drafted, uniforms))

    class RecoversElsewhere(RejectsEverything):
        def recovery_target(self, target_probs: Tensor) -> Tensor:
            return target_probs.flip(-1)

    with pytest.raises(TypeError, match="recovers from other rows"):
        run([RecoversElsewhere()] * len(COUNTS), (logits, draft, drafted, uniforms))


COMPILE = """
import os
os.environ["TRITON_INTERPRET"] = "0"
os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cactus_decoding.kernels.triton_kernel import verify_kernel
types = dict(logits="*bf16", draft="*fp32", draft_token_ids="*i64", ends="*i32", bonus_token_ids="*i64", kinds="*i32",
             knobs="*fp32", numbers="*fp32", seeds="*i64", uniforms="*fp64", token_ids="*i64", num_accepted="*i32",
             relaxed="*i8", vocabulary="i32", columns="i32", HAS_DRAFT="constexpr", HAS_UNIFORMS="constexpr",
             BLOCK="constexpr")
constants = {"HAS_DRAFT": True, "HAS_UNIFORMS": False, "BLOCK": 1024}
source = ASTSource(verify_kernel, signature=types, constexprs=constants)
print(sorted(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm))
"""


@pytest.mark.slow
def test_the_kernel_compiles_for_a_gpu() -> None:
    # the interpreter accepts more than the compiler does
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ptx" in done.stdout
