"""The Triton kernel that verifies a ragged batch, one program per request; `flat_batch` is how it is called.

Importing it needs triton. It has been checked with Triton's interpreter only, and neither run nor timed on a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What a rule's code stands for; `flat_batch.encode` turns rules into codes.
LOSSLESS = tl.constexpr(0)  # h = q, s = 1
CACTUS = tl.constexpr(1)  # knob: delta, and the largest g / q as the second
ENSEMBLE = tl.constexpr(2)  # knob: weight
LENIENCE = tl.constexpr(3)  # knob: lenience
GIVEN = tl.constexpr(4)  # numbers of the row: h, s
SAMPLE = tl.constexpr(5)  # numbers of the row: accept if q > first, recover from q where q >= second
FIRST = tl.constexpr(6)  # likewise, but recover the first of the most likely
EQUAL = tl.constexpr(7)  # likewise, but recover from all with q >= second alike


@triton.jit
def _row_summary(logits, row, vocabulary, BLOCK: tl.constexpr):
    """Return a row's maximum and the sum of exp(logit - maximum), in one pass."""
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        tokens = first + lanes
        values = tl.load(logits + row * vocabulary + tokens, mask=tokens < vocabulary, other=float("-inf"))
        values = values.to(tl.float32)
        raised = tl.maximum(largest, values)
        base = tl.where(raised == float("-inf"), 0.0, raised)  # as long as a lane has seen excluded tokens only
        total = total * tl.exp(largest - base) + tl.exp(values - base)
        largest = raised
    most = tl.max(largest, 0)
    return most, tl.sum(total * tl.exp(largest - most), 0)


@triton.jit
def _numbers(kind, knob, knob2, first, second, q, p):
    """Return h(n) and s of a drafted token."""
    relaxed, scale = q, q * 0 + 1.0
    if kind == CACTUS:
        lifted = tl.minimum(q + tl.sqrt(2.0 * knob * q * (1.0 - q)), 1.0)
        relaxed = tl.where(q > 0.0, tl.minimum(lifted, knob2 * q), 0.0)
        scale = tl.where(q < 1.0, (1.0 - relaxed) / tl.maximum(1.0 - q, 1e-30), 1.0)
    elif kind == ENSEMBLE:
        relaxed = tl.where(q > 0.0, knob * p + (1.0 - knob) * q, 0.0)
    elif kind == LENIENCE:
        relaxed = q / knob
        scale = 1.0 / (q * 0 + knob)
    elif kind == GIVEN:
        relaxed = q * 0 + first
        scale = q * 0 + second
    elif kind >= SAMPLE:
        relaxed = tl.where(q > first, q * 0 + 1.0, 0.0)
        scale = q * 0 + float("inf")
    return relaxed, scale


@triton.jit
def _recover(
    logits, draft, row, drafted, most, total, kind, floor, scale, seed, vocabulary,
    HAS_DRAFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return a token in proportion to (s q - p)+, or to q where that is nothing, in one pass: the winner of a race.

    Token x arrives after a time that is exponential with its weight as the rate; the first to arrive is token x with a
    probability in proportion to the weight. The race for q is run beside it, for the case that there are no weights.
    """
    lanes = tl.arange(0, BLOCK)
    on_target = tl.minimum(scale, 1.0)
    on_draft = 1.0 / tl.maximum(scale, 1.0)
    best = tl.zeros([BLOCK], tl.float32)
    winner = tl.zeros([BLOCK], tl.int32)
    spare_best = tl.zeros([BLOCK], tl.float32)
    spare_winner = tl.zeros([BLOCK], tl.int32)
    for first in range(0, vocabulary, BLOCK):
        tokens = first + lanes
        inside = tokens < vocabulary
        values = tl.load(logits + row * vocabulary + tokens, mask=inside, other=float("-inf")).to(tl.float32)
        q = tl.exp(values - most) / total
        if HAS_DRAFT:
            p = tl.load(draft + row * vocabulary + tokens, mask=inside, other=0.0).to(tl.float32)
        else:
            p = tl.where(tokens == drafted, 1.0, 0.0)
        weights = on_target * q - on_draft * p
        # where the two are equal, what is left is rounding, and must not pass for a residual
        weights = tl.where(weights > 2e-6 * on_draft * p, weights, 0.0)
        if kind >= SAMPLE:
            kept = (q >= floor) & (q > 0.0)
            weights = tl.where(kept, q, 0.0)
            if kind == EQUAL:
                weights = tl.where(kept, 1.0, 0.0)
        patience = -tl.log(tl.maximum(tl.rand(seed, tokens), 1e-10))  # exponential
        patience = tl.maximum(patience, 1e-10)
        if kind == FIRST:
            patience = patience * 0 + 1.0  # no race: the largest wins, the first of equals
        ahead = weights / patience > best
        best = tl.where(ahead, weights / patience, best)
        winner = tl.where(ahead, tokens, winner)
        ahead = q / patience > spare_best
        spare_best = tl.where(ahead, q / patience, spare_best)
        spare_winner = tl.where(ahead, tokens, spare_winner)
    if tl.max(best, 0) == 0.0:
        best = spare_best
        winner = spare_winner
    return tl.min(tl.where(best == tl.max(best, 0), winner, vocabulary), 0)


@triton.jit
def verify_kernel(
    logits, draft, draft_token_ids, ends, bonus_token_ids, kinds, knobs, numbers, seeds, uniforms,
    token_ids, num_accepted, relaxed,
    vocabulary, columns,
    HAS_DRAFT: tl.constexpr, HAS_UNIFORMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Verify one request's proposals in order; rows after the first rejection are not read."""
    request = tl.program_id(0)
    end = tl.load(ends + request)
    start = tl.load(ends + request - 1, mask=request > 0, other=0)
    kind = tl.load(kinds + request)
    knob, knob2 = tl.load(knobs + 2 * request), tl.load(knobs + 2 * request + 1)
    seed = tl.load(seeds + request)
    row = start.to(tl.int64)
    rejected = start * 0
    while (rejected == 0) & (row < end):
        most, total = _row_summary(logits, row, vocabulary, BLOCK)
        drafted = tl.load(draft_token_ids + row)
        q = tl.exp(tl.load(logits + row * vocabulary + drafted).to(tl.float32) - most) / total
        p = q * 0 + 1.0
        if HAS_DRAFT:
            p = tl.load(draft + row * vocabulary + drafted).to(tl.float32)
        if HAS_UNIFORMS:
            uniform = tl.load(uniforms + row).to(tl.float32)
        else:  # of another stream than recovery, which counts up from 0
            uniform = tl.rand(seed, 0x40000000 + (row - start).to(tl.int32))
        first, second = tl.load(numbers + 2 * row), tl.load(numbers + 2 * row + 1)
        h, scale = _numbers(kind, knob, knob2, first, second, q, p)
        needed = uniform * p
        if needed < h:
            tl.store(token_ids + request * columns + (row - start), drafted)
            tl.store(relaxed + row, (needed >= q).to(tl.int8))
            row += 1
        else:
            recovered = _recover(
                logits, draft, row, drafted, most, total, kind, second, scale, seed, vocabulary, HAS_DRAFT, BLOCK
            )
            tl.store(token_ids + request * columns + (row - start), recovered)
            rejected = rejected + 1
    if rejected == 0:
        tl.store(token_ids + request * columns + (end - start), tl.load(bonus_token_ids + request))
    tl.store(num_accepted + request, (row - start).to(tl.int32))
