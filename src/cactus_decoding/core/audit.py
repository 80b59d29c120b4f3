"""What a rule really does: the exact distribution that it emits, averaged over the drafted token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.checks import check_device, check_probabilities, check_token_ids
from cactus_decoding.core.divergences.rows import count_up_to, kl_of_rows, normalised, sums_from, without
from cactus_decoding.core.rules import as_rule
from cactus_decoding.core.rules.base import Rule, row_rule
from cactus_decoding.core.types import AcceptanceRule, Verdict


@dataclass(frozen=True, eq=False)
class Audit:
    """Exact consequences of a rule for given target and draft probabilities, all in float64.

    Attributes:
        output_probs: the distribution of the emitted token, ``[..., vocabulary]``.
        acceptance: probability that the drafted token is accepted, ``[...]``.
        kl: KL(output || target) in nats, ``[...]``; infinite where a token that the target excludes is emitted.
        tv: total variation between output and target, in [0, 1], ``[...]``.
        max_log_ratio: log of the largest output(x) / target(x), in nats, ``[...]``.
        min_log_ratio: log of the smallest one over the target's support; minus infinity where a token is never emitted.
    """

    output_probs: Tensor
    acceptance: Tensor
    kl: Tensor
    tv: Tensor
    max_log_ratio: Tensor
    min_log_ratio: Tensor


def audit(
    rule: AcceptanceRule | str,
    target_probs: Tensor,
    draft_probs: Tensor | None = None,
    *,
    draft_token_ids: Tensor | None = None,
    fixed_token_ids: Tensor | None = None,
) -> Audit:
    r"""Return exactly what a rule emits when the draft proposes from ``draft_probs``, in O(V log V) per position.

    .. math:: out(x) = \min(p(x), h_x) + \sum_n (p(n) - h_n)_+ \frac{(s_n q(x) - p(x))_+}{\sum_i (s_n q(i) - p(i))_+}

    Args:
        rule: an acceptance rule or its spelling.
        target_probs: q, ``[..., vocabulary]``; divided by its sum in float64.
        draft_probs: p, ``[..., vocabulary]``, treated alike; None for a deterministic draft.
        draft_token_ids: the token that a deterministic draft proposes, ``[...]``.
        fixed_token_ids: in a tree, further tokens that are proposed in any case, ``[..., tokens]``. The drafted one is
            then drawn from ``draft_probs`` without them, or is the first of them where there is no ``draft_probs``. The
            acceptance is the probability that one of all these is kept.

    Raises:
        TypeError: for an argument that is no tensor of the right kind.
        ValueError: for NaN, probabilities that do not sum to 1, shapes that differ, or neither or both of the draft's
            arguments.

    Source: our derivation; the acceptance test is that of Leviathan et al. (arXiv 2211.17192).

    Example:
        >>> q = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> p = torch.tensor([0.9, 0.1], dtype=torch.float64)
        >>> result = audit("lossless", q, p)
        >>> [round(x, 12) for x in result.output_probs.tolist()], round(result.acceptance.item(), 12)
        ([0.5, 0.5], 0.6)
    """
    rule = as_rule(rule)
    target_probs = check_probabilities("target_probs", target_probs)
    if fixed_token_ids is not None:
        return _audit_beside(rule, target_probs, draft_probs, draft_token_ids, fixed_token_ids)
    if (draft_probs is None) == (draft_token_ids is None):
        raise ValueError("give either draft_probs or, for a deterministic draft, draft_token_ids")
    if draft_token_ids is not None:
        check_token_ids("draft_token_ids", draft_token_ids, target_probs.shape[-1])
        if draft_token_ids.shape != target_probs.shape[:-1]:
            given = list(draft_token_ids.shape)
            raise ValueError(f"draft_token_ids must be {list(target_probs.shape[:-1])}, but its shape is {given}")
        check_device("draft_token_ids", draft_token_ids, target_probs.device)
        draft_probs = functional.one_hot(draft_token_ids.long(), target_probs.shape[-1]).double()
    assert draft_probs is not None
    draft_probs = check_probabilities("draft_probs", draft_probs)
    check_device("draft_probs", draft_probs, target_probs.device)
    if draft_probs.shape != target_probs.shape:
        given = list(draft_probs.shape)
        raise ValueError(f"draft_probs must be {list(target_probs.shape)} as target_probs is, but its shape is {given}")

    return audit_rows(rule, normalised(target_probs), normalised(draft_probs))


def _audit_beside(
    rule: AcceptanceRule,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor | None,
    fixed_token_ids: Tensor,
) -> Audit:
    """Check the other arguments of `audit`, and audit positions where some tokens are proposed in any case."""
    check_token_ids("fixed_token_ids", fixed_token_ids, target_probs.shape[-1])
    check_device("fixed_token_ids", fixed_token_ids, target_probs.device)
    if draft_token_ids is not None:
        raise ValueError("give either draft_token_ids or fixed_token_ids, of which the first is then the drafted one")
    if fixed_token_ids.shape[:-1] != target_probs.shape[:-1]:
        wanted = [*target_probs.shape[:-1], "tokens"]
        raise ValueError(f"fixed_token_ids must be {wanted}, but its shape is {list(fixed_token_ids.shape)}")
    fixed, target = fixed_token_ids.long(), normalised(target_probs)
    if draft_probs is not None:
        draft_probs = check_probabilities("draft_probs", draft_probs)
        if draft_probs.shape != target.shape:
            raise ValueError(f"draft_probs must be {list(target.shape)}, but its shape is {list(draft_probs.shape)}")
        draft_probs = normalised(draft_probs)
    elif not fixed.shape[-1]:
        raise ValueError("give draft_probs, or at least one token that is proposed in any case")
    drawn = torch.zeros_like(target) if draft_probs is None else without(draft_probs, fixed)
    if fixed.shape[-1]:  # where nothing is left to draw, the first is the drafted one
        none_left = drawn.sum(-1, keepdim=True) == 0
        drawn = torch.where(none_left, torch.zeros_like(drawn).scatter(-1, fixed[..., :1], 1.0), drawn)
    return audit_beside(rule, target, draft_probs, drawn, fixed)


def audit_beside(
    rule: AcceptanceRule, target: Tensor, draft: Tensor | None, drawn: Tensor, fixed_token_ids: Tensor
) -> Audit:
    """Audit positions where some tokens are proposed in any case, for float64 rows that sum to 1.

    The judged token has the distribution ``drawn``: the draft's without the fixed tokens, or all on the first of these.
    """
    if (giving := row_rule(rule)) is None:
        return beside(audit_rows(rule, target, drawn), drawn, fixed_token_ids)
    relaxed = giving.relaxed_target_beside(target, draft, drawn, fixed_token_ids)
    return beside(audit_row(relaxed, target, drawn), drawn, fixed_token_ids)


def beside(result: Audit, drawn: Tensor, fixed_token_ids: Tensor) -> Audit:
    """Return the audit of a drafted token as that of a position where other tokens are proposed in any case."""
    # a drafted token counts already where it is accepted; other children are kept where they are recovered
    others = torch.zeros_like(drawn).scatter(-1, fixed_token_ids, 1.0) * (drawn == 0)
    return replace(result, acceptance=result.acceptance + (others * result.output_probs).sum(-1))


def _min_relaxed_prob(rule: AcceptanceRule, target: Tensor) -> Tensor | float:
    return rule.min_relaxed_prob(target) if isinstance(rule, Rule) else 0.0


def audit_rows(rule: AcceptanceRule, target: Tensor, draft: Tensor) -> Audit:
    """Do what `audit` does for float64 rows that sum to 1; only NaN is refused, with `ValueError`."""
    least = _min_relaxed_prob(rule, target)
    return audit_verdicts(lambda token_ids: rule.judge(target, draft, token_ids), target, draft, least)


def audit_row(relaxed: Tensor, target: Tensor, draft: Tensor) -> Audit:
    """Do the same for the test of an h, ``[..., vocabulary]``, that does not depend on the drafted token."""

    def judge(token_ids: Tensor) -> Verdict:
        kept = relaxed.expand_as(target).gather(-1, token_ids).double()
        return Verdict(kept, torch.ones_like(kept), relaxed)

    return audit_verdicts(judge, target, draft)


def audit_verdicts(
    judge: Callable[[Tensor], Verdict], target: Tensor, draft: Tensor, least: Tensor | float = 0.0
) -> Audit:
    """Do the same for what is said of tokens, ``[..., tokens]``; a token drafted less often than ``least`` is kept."""
    for name, rows in (("target_probs", target), ("draft_probs", draft)):
        if rows.numel() and bool(rows.amin().isnan()):
            raise ValueError(f"{name} must not contain NaN; allowed are probabilities in [0, 1]")
    columns = _columns_in_doubt(least, draft)
    relaxed_prob, residual_scale, recovery = judge(columns.expand(*target.shape[:-1], -1))
    start = target if recovery is None else recovery
    whole = len(columns) == draft.shape[-1]  # then there is nothing to pick out
    drafted = draft if whole else draft.index_select(-1, columns)
    accepted = torch.minimum(drafted, relaxed_prob)
    kept = accepted if whole else draft.index_copy(-1, columns, accepted)
    acceptance = kept.sum(-1)
    output = _recovered(start, draft, residual_scale, drafted - accepted).add_(kept)
    return _summarise(output, acceptance, target)


def acceptance(rule: AcceptanceRule, target: Tensor, draft: Tensor) -> Tensor:
    r"""Return how likely a drafted token is accepted, ``[...]``, as `audit_rows` does, and nothing else.

    .. math:: \sum_x \min(p(x), h_x(x))
    """
    columns = _columns_in_doubt(_min_relaxed_prob(rule, target), draft)
    relaxed_prob, *_ = rule.judge(target, draft, columns.expand(*target.shape[:-1], -1))
    drafted = draft.index_select(-1, columns)
    return draft.sum(-1) - (drafted - relaxed_prob).clamp_min(0).sum(-1)


def _columns_in_doubt(least: Tensor | float, draft: Tensor) -> Tensor:
    """Return the tokens that may be rejected in some row; the rule need not be asked about the others."""
    return (draft > least).reshape(-1, draft.shape[-1]).any(0).nonzero().squeeze(1)


def judge_every_token(rule: AcceptanceRule, target_probs: Tensor, draft_probs: Tensor) -> Verdict:
    every = torch.arange(target_probs.shape[-1], device=target_probs.device).expand(target_probs.shape)
    return rule.judge(target_probs, draft_probs, every)


def _recovered(target: Tensor, draft: Tensor, scale: Tensor, rejected: Tensor) -> Tensor:
    """Return the probability that each token is emitted by recovery, ``[..., vocabulary]``.

    The scales s are those of some tokens as the drafted one, ``[..., tokens]``; ``rejected`` is the probability that
    each of them is drafted and rejected, which is 0 for all others.
    """
    count = target.shape[:-1].numel()
    rows = [part.reshape(count, part.shape[-1]) for part in (target, draft, scale, rejected)]
    # only the scales of tokens that can be rejected matter
    columns = (rows[3] > 0).any(0).nonzero().squeeze(1)
    scale, rejected = (part.index_select(1, columns) for part in rows[2:])
    by_scale = _by_one_scale if bool((scale == scale[:, :1]).all()) else _by_many_scales
    recovered, left = by_scale(rows[0], rows[1], scale, rejected)
    if bool(left.any()):  # no residual: drawn from q itself
        recovered = recovered + left.unsqueeze(1) * rows[0] / rows[0].sum(-1, keepdim=True)
    return recovered.reshape(target.shape)


def _by_one_scale(target: Tensor, draft: Tensor, scale: Tensor, rejected: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is recovered from the residual and what is left over, where all tokens of a row have the same s."""
    if scale.shape[1] == 0:
        return torch.zeros_like(target), target.new_zeros(len(target))
    # for s > 1 the weights are divided by s: they give the same distribution, and an infinite s is no special case
    on_target, on_draft = scale[:, :1].clamp(max=1.0), 1 / scale[:, :1].clamp(min=1.0)
    weights = (target * on_target).sub_(draft * on_draft).clamp_(min=0)
    total, mass = weights.sum(-1, keepdim=True), rejected.sum(-1, keepdim=True)
    found = total > 0
    return weights.mul_(torch.where(found, mass / total, 0.0)), torch.where(found, 0.0, mass).squeeze(1)


def _by_many_scales(target: Tensor, draft: Tensor, scale: Tensor, rejected: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same where s depends on the drafted token.

    Token x receives from the drafted tokens whose scale exceeds its ratio p / q; these are the last of the scales in
    ascending order. A drafted token gives to those x that are counted at or before its own place.
    """
    scales, by_scale = scale.sort(-1)
    rejected = rejected.gather(1, by_scale)
    on_target, on_draft = scales.clamp(max=1.0), 1 / scales.clamp(min=1.0)
    place = count_up_to(scales.contiguous(), draft / target.clamp(min=_MIN_POSITIVE))
    target_within, draft_within = (
        torch.zeros(len(rows), scales.shape[1] + 1, dtype=rows.dtype, device=rows.device)
        .scatter_add_(1, place, rows)
        .cumsum(1)[:, :-1]
        for rows in (target, draft)
    )
    total = on_target * target_within - on_draft * draft_within
    share = torch.where(total > 0, rejected / total, 0.0)
    left = torch.where(total > 0, 0.0, rejected).sum(-1)
    gained, lost = sums_from(share * on_target), sums_from(share * on_draft)
    gain, loss = gained.gather(1, place).mul_(target), lost.gather(1, place).mul_(draft)
    return gain.sub_(loss).clamp_(min=0), left


_MIN_POSITIVE = 5e-324  # the least positive float64: dividing by it instead of 0 gives infinity, and 0 for 0


def _summarise(output: Tensor, acceptance: Tensor, target: Tensor) -> Audit:
    difference = output - target
    slack = -difference.sum(-1)
    tv = difference.abs_().sum(-1) / 2
    quotient = output / target
    least, most = quotient.amin(-1), quotient.amax(-1)
    if bool((least > 0).all() & most.isfinite().all()):  # nothing is excluded: one logarithm a row will do
        kl = (quotient.log_().mul_(output).sum(-1) + slack).clamp(min=0)  # as `kl_of_rows`
        return Audit(output, acceptance, kl, tv, most.log(), least.log())
    inside = target > 0
    # a difference of logs, because the quotient overflows where the target's probability is subnormal
    log_ratio = torch.where(inside, output.log() - target.log(), torch.inf)
    return Audit(
        output_probs=output,
        acceptance=acceptance,
        kl=kl_of_rows(output, target),
        tv=tv,
        max_log_ratio=torch.where(inside | (output > 0), log_ratio, -torch.inf).amax(-1),
        min_log_ratio=torch.where(inside, log_ratio, torch.inf).amin(-1),
    )
