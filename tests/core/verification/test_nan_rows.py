"""A row of the target that is no law is an error in every way to verify, at every temperature."""

from __future__ import annotations

import math

import pytest
import torch
from support.tables import all_of
from torch import Tensor

from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.trees.growing import choose_children
from cactus_decoding.core.request import Request
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingFn, SamplingParams
from cactus_decoding.core.sampling.rows import check_drawn
from cactus_decoding.core.schemes import VERIFICATIONS
from cactus_decoding.core.types import LogitsToProbs, Proposal
from cactus_decoding.core.verification.walk import Verifier
from cactus_decoding.engines.llama_cpp.sampling import LlamaSampling

NO_LAWS = {"nan": (math.nan,), "infinity": (math.inf,), "both": (math.inf, math.nan), "nothing": ()}
"""What stands in a row that is no law, of whose other logits none is infinite but where nothing is allowed."""
WAYS = [
    (name, rule)
    for name, scheme in VERIFICATIONS.items()
    for rule in ("lossless", "clamped:width=1", "ensemble:weight=0.5")
    if rule == "lossless" or not scheme.lossy  # which take no other rule
    if (name, rule) != ("coupled", "ensemble:weight=0.5")  # which may draw another token than the likeliest
]


def without_law(kind: str, row: Tensor) -> Tensor:
    """Return a row with numbers that make it no law behind its likeliest tokens."""
    row = row.clone() if NO_LAWS[kind] else torch.full_like(row, -math.inf)
    for place, value in enumerate(NO_LAWS[kind]):
        row[3 - place] = value
    return row


@all_of("where", [0, 1])
@all_of("kind", NO_LAWS)
@all_of("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocabulary", [4, LARGE_VOCABULARY + 5])
@pytest.mark.parametrize(("verification", "rule"), WAYS)
def test_a_target_row_of_nan_is_named(
    verification: str, rule: str, vocabulary: int, temperature: float, kind: str, where: int
) -> None:
    trees = not VERIFICATIONS[verification].chains
    sampling = SamplingParams(temperature)
    request = Request(rule=rule, verification=verification, tree="static=1.1" if trees else None, sampling=sampling)
    for lazily in (None, sampling):
        verifier = request.verifier(SamplingFn(sampling), lambda x, _: x.softmax(-1), lazily)
        check_named(verifier, vocabulary, kind, where, trees=trees)


def check_named(verifier: Verifier, vocabulary: int, kind: str, where: int, *, trees: bool) -> None:
    """Verify two proposals that would be kept, then with a row that is no law."""
    logits = torch.zeros(3, vocabulary, dtype=torch.float64)
    logits[0, 1], logits[1, 2] = 90.0, 90.0  # what is drafted would be kept
    draft = torch.full((2, vocabulary), 1 / vocabulary, dtype=torch.float64)
    proposal = Proposal([1, 2], draft, [-1, 0] if trees else None)
    as_the_loop(verifier, logits, proposal, 2)
    logits[where] = without_law(kind, logits[where])
    with pytest.raises(ValueError, match=f"the target's logits after {where + 1} tokens give no probabilities"):
        as_the_loop(verifier, logits, proposal, where)


def as_the_loop(verifier: Verifier, logits: Tensor, proposal: Proposal, kept: int) -> None:
    """Verify a step; the lazy walk keeps nothing at a row of NaN, and the loop refuses what it draws there."""
    generator = torch.Generator().manual_seed(0)
    _, outcome = verifier(verifier.begin(), logits, [0, 1, 2], proposal, generator)
    assert len(outcome.path) == kept
    check_drawn("target", outcome.next_token, logits, 1 + outcome.num_accepted)


@all_of("kind", NO_LAWS)
@pytest.mark.parametrize("rule", ["relaxed_greedy:margin=200", "mars:ratio=0.1", "big_little:rollback=200"])
def test_rules_for_temperature_0_name_it_too(rule: str, kind: str) -> None:
    greedy = SamplingParams(0.0)
    verifier = Request(rule, sampling=greedy).verifier(SamplingFn(greedy), lambda x, _: x.softmax(-1), greedy)
    for where in (0, 1):
        check_named(verifier, 4, kind, where, trees=False)


@all_of("kind", NO_LAWS)
@all_of("temperature", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("cuts", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("vocabulary", [5, LARGE_VOCABULARY + 5])
def test_such_a_row_is_nan_from_end_to_end(vocabulary: int, cuts: dict, temperature: float, kind: str) -> None:
    cuts = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | cuts
    sampling = SamplingParams(temperature, **cuts)
    theirs = LlamaSampling(sampling)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        usual = torch.randn(vocabulary, generator=torch.Generator().manual_seed(0)).to(dtype)
        broken = without_law(kind, usual)
        rows = torch.stack([usual, broken])
        for probs in (sampling(rows), theirs(rows, [1, 2])):
            assert probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert probs.is_contiguous()
            assert probs.sum(-1)[0].item() == pytest.approx(1, abs=1e-4)
            assert probs[1].isnan().all()
        if sampling.truncates:
            token_ids, probs = sampling.sparse_row(broken)
            assert token_ids.tolist() == [*range(vocabulary)]
            assert probs.isnan().all()


class Row:
    """A draft model whose only row is given."""

    name, max_length, length, device, longest = "row", None, 0, torch.device("cpu"), None
    read_as = None

    def __init__(self, row: Tensor) -> None:
        self.row, self.vocabulary_size = row, len(row)

    def append(self, token_ids: list[int], rows: int, **inputs: object) -> Tensor:
        return self.row.expand(rows, -1)

    def read_on(self, token_ids: list[int]) -> int:
        return 0

    def reset(self) -> None:
        """Forget nothing."""


@all_of("kind", NO_LAWS)
@all_of("temperature", [0.0, 1.0])
def test_a_draft_s_row_of_nan_is_named(temperature: float, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    to_probs: LogitsToProbs = SamplingFn(SamplingParams(temperature))
    monkeypatch.setattr("cactus_decoding.core.drafting.model.with_cache", lambda model: model)
    usual = torch.tensor([0.0, 40.0, 0.0, 0.0])
    assert ModelDrafter(Row(usual)).propose([0, 1], 2, to_probs, None).token_ids == [1, 1]
    with pytest.raises(ValueError, match="the draft's logits after 2 tokens give no probabilities"):
        ModelDrafter(Row(without_law(kind, usual))).propose([0, 1], 2, to_probs, None)


@all_of("kind", NO_LAWS)
@all_of("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_drawn", [0, 1, 2])
def test_a_tree_gets_no_children_from_a_draft_s_row_of_nan(num_drawn: int, temperature: float, kind: str) -> None:
    usual = torch.tensor([0.0, 4.0, 1.0, 2.0])
    rows = torch.stack([usual, without_law(kind, usual)])
    token_ids, _ = choose_children(rows, SamplingParams(temperature)(rows), 2, num_drawn, None)
    assert token_ids[0].max() < 4
    assert token_ids[1].tolist() == [4, 4]  # which `check_drawn` refuses
