"""Verification from logits on the CPU: no more rows, and no more of a row, than the outcome depends on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cactus_decoding.arguments.checks import check_probabilities, check_token_ids, shown
from cactus_decoding.rules import Lossless, as_rule
from cactus_decoding.sampling.params import LARGE_VOCABULARY, SamplingParams
from cactus_decoding.sampling.sparse_probs import LazyRows, SparseProbs
from cactus_decoding.types import AcceptanceRule, Verification
from cactus_decoding.verification.plain import check_kinds, check_shapes, one_count, residual, verify

_LOSSLESS = Lossless()
_FEW_SEQUENCES = 4
"""Sequences up to which short rows are gone through one by one; more of them are verified side by side."""


def verify_logits(
    rule: AcceptanceRule | str,
    target_logits: Tensor,
    sampling: SamplingParams,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    generator: torch.Generator | None = None,
    *,
    num_draft_tokens: Tensor | None = None,
    validate: bool = True,
) -> Verification:
    r"""Do what ``verify(rule, sampling(target_logits), draft_probs, draft_token_ids, generator)`` does, but sooner.

    On the CPU, rows after the first rejection are never read; a row is reduced to the tokens that top-k, top-p and
    min-p leave; the rule is asked only where the lossless test fails, if it says that it accepts whatever that test
    does (`Rule.never_stricter_than_lossless`), and about the target's support only, if that is all it looks at
    (`Rule.needs_support_only`). Where nothing is cut, a row's exponentials and their sum bound the drafted token's
    probability, and mostly decide (`Rule.surely_accepts`): a softmax, and a root, is worked out only where the next
    token is drawn or the bounds leave it open. Elsewhere, and for many short rows, it calls `verify` itself.

    The same random numbers are drawn. Everything decided from them is the same to the last bit, with two exceptions:
    the clamped ratio's bounds, which are solved for to 1e-12 along another path, and entropies of typical acceptance,
    which are added up without their zeros.

    Args:
        rule: an acceptance rule or its spelling.
        target_logits: ``[batch, k + 1, vocabulary]``, as the model gives them; or without the batch.
        sampling: how they become probabilities.
        draft_probs: ``[batch, k, vocabulary]``, or None for a deterministic draft.
        draft_token_ids: ``[batch, k]``.
        generator: source of the random numbers, ``k + 1`` float64 numbers for each sequence.
        num_draft_tokens: how many of the k columns each sequence uses, ``[batch]``; all, if None.
        validate: check that rows of the draft are distributions and ids in range. The loop does not ask for it.

    Returns:
        A `Verification`. Where a row holds NaN its next token is the vocabulary's size, which is no token.

    Raises:
        TypeError, ValueError: as `verify` does, for shapes that do not fit.

    Sources: Leviathan et al. (arXiv 2211.17192); Hao and Mou (arXiv 2604.04987).

    Example:
        >>> logits = torch.tensor([[0.0, 9.0], [9.0, 0.0]])
        >>> verify_logits("lossless", logits, SamplingParams(temperature=0), None, torch.tensor([1]))
        Verification(num_accepted=tensor(1), next_token=tensor(0), relaxed=tensor([False]))
    """
    rule = as_rule(rule)
    if not isinstance(sampling, SamplingParams):
        raise TypeError(f"sampling must be SamplingParams, but is {shown(sampling)}")
    target_logits, draft_probs, draft_token_ids, num_draft_tokens = check_kinds(
        "target_logits", target_logits, draft_probs, draft_token_ids, num_draft_tokens, generator
    )
    if validate:
        check_token_ids("draft_token_ids", draft_token_ids, target_logits.shape[-1])
        if draft_probs is not None:
            check_probabilities("draft_probs", draft_probs)
    sequences = len(draft_token_ids) if draft_token_ids.ndim == 2 else 1
    worthwhile = target_logits.shape[-1] >= LARGE_VOCABULARY or sequences <= _FEW_SEQUENCES
    if target_logits.device.type != "cpu" or not worthwhile:
        if draft_token_ids.ndim != 1:
            check_shapes("target_logits", target_logits, draft_probs, draft_token_ids, num_draft_tokens)
        probs = sampling(target_logits)
        return verify(
            rule, probs, draft_probs, draft_token_ids, generator, num_draft_tokens=num_draft_tokens, validate=False
        )
    if draft_token_ids.ndim == 1:
        target_logits, draft_token_ids = target_logits.unsqueeze(0), draft_token_ids.unsqueeze(0)
        draft_probs = None if draft_probs is None else draft_probs.unsqueeze(0)
        num_draft_tokens = None if num_draft_tokens is None else one_count(num_draft_tokens)
        one = verify_logits(
            rule,
            target_logits,
            sampling,
            draft_probs,
            draft_token_ids,
            generator,
            num_draft_tokens=num_draft_tokens,
            validate=False,
        )
        return Verification(*(part.squeeze(0) for part in one))
    check_shapes("target_logits", target_logits, draft_probs, draft_token_ids, num_draft_tokens)
    batch, width = draft_token_ids.shape
    uniforms = torch.rand(batch, width + 1, dtype=torch.float64, generator=generator)
    used = [width] * batch if num_draft_tokens is None else num_draft_tokens.tolist()
    num_accepted, next_token, relaxed = [], [], torch.zeros(batch, width, dtype=torch.bool)
    for row, count in enumerate(used):
        rows = LazyRows(target_logits[row, : count + 1], sampling)
        draft = None if draft_probs is None else draft_probs[row, :count]
        proposals = draft_token_ids[row, :count]
        accepted, token = _verify_one(lambda _: rule, rows, draft, proposals, uniforms[row], relaxed[row])
        num_accepted.append(accepted)
        next_token.append(token)
    return Verification(torch.tensor(num_accepted), torch.tensor(next_token), relaxed)


def verify_confined(
    rule: AcceptanceRule,
    target_logits: Tensor,
    sampling: SamplingParams,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    generator: torch.Generator | None,
    relaxable: Callable[[LazyRows, int], bool],
) -> tuple[Verification, list[bool]]:
    """Do what `verify_logits` does for one sequence on the CPU, by a rule at some positions, losslessly at the others.

    Args:
        rule: judges where it may.
        target_logits: ``[k + 1, vocabulary]``.
        sampling: as for `verify_logits`, as are the next three.
        draft_probs: ``[k, vocabulary]``, or None.
        draft_token_ids: ``[k]``.
        generator: likewise.
        relaxable: says of a position whether the rule may judge it; asked of each that is visited, in order.

    Returns:
        The verification, and what ``relaxable`` said of the visited positions.
    """
    said: list[bool] = []

    def judge_of(position: int) -> AcceptanceRule:
        said.append(relaxable(rows, position))
        return rule if said[-1] else _LOSSLESS

    rows, width = LazyRows(target_logits.detach(), sampling), len(draft_token_ids)
    relaxed = torch.zeros(width, dtype=torch.bool)
    uniforms = torch.rand(width + 1, dtype=torch.float64, generator=generator)
    accepted, token = _verify_one(judge_of, rows, draft_probs, draft_token_ids, uniforms, relaxed)
    return Verification(torch.tensor(accepted), torch.tensor(token), relaxed), said


def _verify_one(
    judge_of: Callable[[int], AcceptanceRule],
    rows: LazyRows,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    uniforms: Tensor,
    relaxed: Tensor,
) -> tuple[int, int]:
    """Verify one sequence's proposals in order: return how many are accepted and the next token, fill ``relaxed``.

    ``judge_of`` gives the rule of a position.
    """
    proposals, numbers = draft_token_ids.tolist(), uniforms.tolist()
    drafted = [1.0] * len(proposals)
    if draft_probs is not None:
        drafted = draft_probs.gather(1, draft_token_ids.long().unsqueeze(1)).squeeze(1).tolist()
    for position, token in enumerate(proposals):
        rule = judge_of(position)
        lossless_first = getattr(rule, "never_stricter_than_lossless", False)
        surely_accepts = getattr(rule, "surely_accepts", None) if lossless_first else None
        needed = numbers[position] * drafted[position]
        rough = None if surely_accepts is None else rows.roughly(position)
        if rough is not None and surely_accepts is not None:
            least, most = rough.bounds(token)
            if needed < least:
                continue
            draft = None if draft_probs is None else draft_probs[position]
            if needed >= most and surely_accepts(needed, rough, draft, token):
                relaxed[position] = True
                continue
        row_probs = rows.at(position)
        lossless = needed < row_probs.probability(token)
        if lossless and lossless_first:
            continue
        if getattr(rule, "needs_support_only", False):
            row_probs, place = row_probs.including(token)
        else:
            row_probs, place = SparseProbs(row_probs.vocabulary, row_probs.dense()), token
        candidate = torch.tensor([place])
        draft = None if draft_probs is None else row_probs.restrict(draft_probs[position])
        relaxed_prob, scale = rule.judge(row_probs.probs, draft, candidate)
        if needed < relaxed_prob.item():
            relaxed[position] = not lossless
            continue
        if draft is None:
            draft = torch.zeros_like(row_probs.probs).index_fill_(0, candidate, 1.0)
        weights = _residual(rule.recovery_target(row_probs.probs), draft, scale[0])
        return position, row_probs.draw(weights, uniforms[-1])
    row_probs = rows.at(len(proposals))
    return len(proposals), row_probs.draw(row_probs.probs, uniforms[-1])


def _residual(recovery_target: Tensor, draft_probs: Tensor, residual_scale: Tensor) -> Tensor:
    """Do what `residual` does in float64, for one row, in fewer passes where s is at most 1."""
    if not residual_scale <= 1:
        return residual(recovery_target.double(), draft_probs.double(), residual_scale)
    weights = recovery_target.to(torch.float64, copy=True).mul_(residual_scale).sub_(draft_probs).clamp_(min=0)
    return weights if weights.sum() > 0 else recovery_target.double()
