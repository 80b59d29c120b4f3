"""Verification of a ragged batch in engines' layout: rows of all requests one after another, each request its own rule.

The work is done by one Triton kernel, which reads logits and draft probabilities once and writes only its decisions. It
has been checked with Triton's interpreter; it has not been timed on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.rules import Cactus, Ensemble, Lenience, Lossless, RelaxedGreedy, TopK, Typical, as_rule
from cactus_decoding.types import AcceptanceRule

_LOSSLESS, _CACTUS, _ENSEMBLE, _LENIENCE, _GIVEN, _SAMPLE, _FIRST, _EQUAL = range(8)
_NO_TOKEN = -1
_LARGEST_RATIO = 1e30
"""Stands for infinity, which times zero would be no number."""


class FlatVerification(NamedTuple):
    """What was decided for a flat batch.

    Attributes:
        token_ids: accepted tokens, then the recovered or bonus token, then -1, ``[requests, largest k + 1]``.
        num_accepted: ``[requests]``.
        relaxed: true for accepted tokens that the lossless test would have rejected, ``[rows]``.
    """

    token_ids: Tensor
    num_accepted: Tensor
    relaxed: Tensor


def verify_flat(
    rules: Sequence[AcceptanceRule | str],
    target_logits: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    cumulative_drafts: Tensor,
    bonus_token_ids: Tensor,
    seeds: Tensor,
    *,
    uniforms: Tensor | None = None,
    block: int = 4096,
) -> FlatVerification:
    r"""Accept a prefix of each request's drafted tokens and draw the token that follows it, in one kernel launch.

    Decisions are those of `cactus_decoding.verify` for the same uniform numbers, up to rounding to float32; recovered
    tokens have the same law, but are drawn by another method, from the request's seed.

    Args:
        rules: one for each request.
        target_logits: rows of all requests one after another, after temperature and all masks, ``[rows, vocabulary]``.
        draft_probs: the rows that the drafted tokens were drawn from, likewise; None for deterministic drafts.
        draft_token_ids: ``[rows]``.
        cumulative_drafts: how many rows there are up to and including each request, ``[requests]``.
        bonus_token_ids: the token to follow where all are accepted, drawn by the caller, ``[requests]``.
        seeds: a fresh one for each request and step, ``[requests]``, at least 0.
        uniforms: numbers in [0, 1) to accept by, ``[rows]``; drawn from the seeds if None.
        block: entries that a program reads at a time, a power of two.

    Raises:
        ImportError: without triton.
        ValueError: for shapes that do not fit.
        TypeError: for a rule that depends on the drafted token in a way of its own and recovers from other rows than
            the target's.
    """
    from cactus_decoding.kernels.triton_kernel import verify_kernel

    rows, vocabulary = target_logits.shape
    requests = len(cumulative_drafts)
    _check(rules, target_logits, draft_probs, draft_token_ids, cumulative_drafts, bonus_token_ids, seeds, uniforms)
    device = target_logits.device
    ends = cumulative_drafts.to(device, torch.int32)
    counts = ends.diff(prepend=ends.new_zeros(1))
    columns = int(counts.max()) + 1 if requests else 1
    kinds, knobs, numbers = encode([as_rule(rule) for rule in rules], target_logits, draft_probs, draft_token_ids, ends)
    result = FlatVerification(
        torch.full((requests, columns), _NO_TOKEN, dtype=torch.int64, device=device),
        torch.zeros(requests, dtype=torch.int32, device=device),
        torch.zeros(rows, dtype=torch.int8, device=device),
    )
    nothing = target_logits.new_empty(1)
    verify_kernel[(requests,)](
        target_logits.contiguous(),
        nothing if draft_probs is None else draft_probs.contiguous(),
        draft_token_ids.to(torch.int64),
        ends,
        bonus_token_ids.to(torch.int64),
        kinds,
        knobs,
        numbers,
        seeds.to(torch.int64),
        nothing if uniforms is None else uniforms,
        *result,
        vocabulary,
        columns,
        HAS_DRAFT=draft_probs is not None,
        HAS_UNIFORMS=uniforms is not None,
        BLOCK=block,
    )
    return result._replace(relaxed=result.relaxed.bool())


def encode(
    rules: Sequence[AcceptanceRule],
    target_logits: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    ends: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the kernel knows of rules: a code and two knobs for each request, two numbers for each row.

    Cactus in closed form, the static ensemble and lenience need no more than their knobs. For the others the rows of
    their requests, and only those, are made probabilities first.
    """
    device = target_logits.device
    kinds = torch.zeros(len(rules), dtype=torch.int32)
    knobs = torch.ones(len(rules), 2, dtype=torch.float32)
    numbers = torch.zeros(max(len(target_logits), 1), 2, dtype=torch.float32, device=device)
    bounds = [0, *ends.tolist()]
    for request, rule in enumerate(rules):
        match rule:
            case Lossless():
                continue
            case Cactus(solver="taylor", divergence="kl"):
                kinds[request], knobs[request] = (
                    _CACTUS,
                    torch.tensor([rule.delta, min(rule.max_ratio, _LARGEST_RATIO)]),
                )
                continue
            case Ensemble():
                kinds[request], knobs[request, 0] = _ENSEMBLE, rule.weight
                continue
            case Lenience():
                kinds[request], knobs[request, 0] = _LENIENCE, rule.lenience
                continue
        rows = slice(bounds[request], bounds[request + 1])
        draft = None if draft_probs is None else draft_probs[rows]
        kinds[request], numbers[rows] = _row_numbers(rule, target_logits[rows], draft, draft_token_ids[rows])
    return kinds.to(device), knobs.to(device), numbers


def _row_numbers(
    rule: AcceptanceRule, target_logits: Tensor, draft_probs: Tensor | None, draft_token_ids: Tensor
) -> tuple[int, Tensor]:
    """Return a rule's code and the two numbers of each of a request's rows, ``[rows, 2]``."""
    probs = target_logits.float().softmax(-1)
    candidates = draft_token_ids.long().unsqueeze(1)
    verdict = rule.judge(probs, draft_probs, candidates)
    pair = torch.cat([verdict.relaxed_prob, verdict.residual_scale], dim=1).float()
    if isinstance(rule, Typical | TopK | RelaxedGreedy):
        first = torch.where(verdict.relaxed_prob > 0, -1.0, 2.0)  # any q is above -1, and none above 2
        lowest = torch.where(rule.recovery_target(probs) > 0, probs, torch.inf).amin(-1, keepdim=True)
        lowest *= 1 - 1e-6  # the kernel's q may be rounded the other way
        greedy = isinstance(rule, RelaxedGreedy) or (isinstance(rule, Typical) and rule.recovery == "greedy")
        alike = isinstance(rule, TopK) and rule.residual == "mask"
        return _FIRST if greedy else _EQUAL if alike else _SAMPLE, torch.cat([first, lowest], dim=1).float()
    if not torch.equal(rule.recovery_target(probs), probs):
        raise TypeError(f"{rule.spelling} recovers from other rows than the target's, which the kernel cannot do")
    return _GIVEN, pair


def _check(
    rules: Sequence[object],
    target_logits: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    cumulative_drafts: Tensor,
    bonus_token_ids: Tensor,
    seeds: Tensor,
    uniforms: Tensor | None,
) -> None:
    rows, requests = len(target_logits), len(cumulative_drafts)
    shapes = {
        "draft_token_ids": (draft_token_ids, [rows]),
        "draft_probs": (draft_probs, list(target_logits.shape)),
        "bonus_token_ids": (bonus_token_ids, [requests]),
        "seeds": (seeds, [requests]),
        "uniforms": (uniforms, [rows]),
    }
    for name, (value, shape) in shapes.items():
        if value is not None and list(value.shape) != shape:
            raise ValueError(f"{name} must be {shape}, but its shape is {list(value.shape)}")
    if len(rules) != requests:
        raise ValueError(f"there must be a rule for each of {requests} requests, but there are {len(rules)}")
    if requests and int(cumulative_drafts[-1]) != rows:
        raise ValueError(f"cumulative_drafts must end with {rows} rows, but ends with {int(cumulative_drafts[-1])}")
