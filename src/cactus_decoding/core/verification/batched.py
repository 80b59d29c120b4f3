"""Verification of many chains at once, as tensors: the reference, and the path for GPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.core.checks import (
    check_device,
    check_floats,
    check_generator,
    check_integers,
    check_probabilities,
    check_token_ids,
)
from cactus_decoding.core.rules import as_rule
from cactus_decoding.core.rules.base import draft_probability_of, probability_of
from cactus_decoding.core.sampling.rows import draw
from cactus_decoding.core.types import AcceptanceRule, Decision, Proposal, StepRows, Verdict, Verification, Visit
from cactus_decoding.core.verification.joint import joint
from cactus_decoding.core.verification.tree import (
    RandomNumbers,
    Tree,
    Walk,
    check_relaxed_target,
    residual,
    with_relaxed,
)


def verify(
    rule: AcceptanceRule | str,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    generator: torch.Generator | None = None,
    *,
    num_draft_tokens: Tensor | None = None,
    validate: bool = True,
) -> Verification:
    """Accept a prefix of each sequence's drafted tokens and draw the token that follows it.

    With u uniform in [0, 1), drafted token n is accepted when ``u * p(n) < h(n)``. After the first rejection the next
    token is drawn in proportion to :math:`(s q - p)_+`; if nothing was rejected, from the target's last distribution.

    Args:
        rule: an acceptance rule or its spelling.
        target_probs: the target's probabilities, ``[batch, k + 1, vocabulary]``; those at i follow i drafted tokens.
        draft_probs: the probabilities that the drafted tokens were really drawn from, ``[batch, k, vocabulary]``, or
            None for a deterministic draft.
        draft_token_ids: drafted tokens, ``[batch, k]``.
        generator: source of the random numbers; torch's default one if None. ``k + 1`` float64 numbers are drawn for
            each sequence, whatever the rule, so that rules can be compared on the same numbers.
        num_draft_tokens: how many of the k columns each sequence uses, ``[batch]``; all, if None. Entries beyond are
            ignored, except that probabilities there must be valid and token ids in range.
        validate: check that probabilities sum to 1 and ids are in range. The decoding loop skips this, as it made them.

    Returns:
        A `Verification`. Without the batch dimension in the arguments there is none in the result either.

    Raises:
        TypeError: for an argument that is not a tensor of the right kind.
        ValueError: for shapes that do not fit, NaN, probabilities that do not sum to 1, or ids out of range.

    Sources: Leviathan et al. (arXiv 2211.17192); Hao and Mou (arXiv 2604.04987).

    Example:
        >>> rows = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
        >>> verify("lossless", rows, rows[:1], torch.tensor([0]), torch.Generator().manual_seed(0))
        Verification(num_accepted=tensor(1), next_token=tensor(1), relaxed=tensor([False]))
    """
    rule = as_rule(rule)
    unbatched = isinstance(draft_token_ids, torch.Tensor) and draft_token_ids.ndim == 1
    target_probs, draft_probs, draft_token_ids, used = check_arguments(
        target_probs, draft_probs, draft_token_ids, num_draft_tokens, generator, validate=validate
    )
    uniforms = draw_uniforms(target_probs, draft_token_ids.shape[1], generator)
    result = _decide(rule, target_probs, draft_probs, draft_token_ids, used, uniforms)
    return Verification(*(part.squeeze(0) for part in result)) if unbatched else result


def verified_at_once(decision: Decision, rows: StepRows, numbers: RandomNumbers) -> Walk:
    """Do what `match` does on a chain that one rule judges everywhere, with all rows at once on their device."""
    proposal, device = rows.proposal, rows.logits.device
    count = len(proposal.token_ids)
    target = rows.target_along(count + 1)[None]
    draft = None if proposal.probs is None else proposal.probs[None]
    ids = torch.tensor([proposal.token_ids], dtype=torch.long, device=device)
    used, uniforms = torch.tensor([count], device=device), numbers.all.to(device)[None]
    result = _decide(decision.rule, target, draft, ids, used, uniforms)
    accepted, relaxed = int(result.num_accepted), result.relaxed[0].tolist()
    visits = [Visit(rows, node, decision, node < accepted, relaxed[node]) for node in range(min(accepted + 1, count))]
    return Walk([*range(accepted)], int(result.next_token), visits)


def _decide(
    rule: AcceptanceRule,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    used: Tensor,
    uniforms: Tensor,
) -> Verification:
    """Verify by given numbers, ``[batch, k + 1]``; the other arguments are those of `check_arguments`."""
    batch, width = draft_token_ids.shape
    device = target_probs.device
    drafted = torch.arange(width, device=device) < used.unsqueeze(1)

    before = target_probs[:, :-1]
    candidate = draft_token_ids.unsqueeze(-1)
    verdict = rule.judge(before, draft_probs, candidate)
    relaxed_prob = verdict.relaxed_prob.squeeze(-1)
    needed = uniforms[:, :-1] * draft_probability_of(draft_probs, candidate).squeeze(-1)
    # strictly less: with u = 0 a token of probability zero must still be rejected
    accepted = (needed < relaxed_prob) & drafted
    accepted = accepted.cumprod(1).bool()
    relaxed = accepted & ~(needed < probability_of(before, candidate).squeeze(-1))

    num_accepted = accepted.sum(1)
    rejected = num_accepted < used
    weights = target_probs[torch.arange(batch, device=device), num_accepted].double()
    if width:
        position = num_accepted.clamp(max=width - 1)
        recovery = _residual_at(verdict, before, draft_probs, draft_token_ids, position)
        weights = torch.where(rejected.unsqueeze(1), recovery, weights)
    return Verification(num_accepted, draw(weights, uniforms[:, -1]), relaxed)


def draw_uniforms(target_probs: Tensor, width: int, generator: torch.Generator | None) -> Tensor:
    """Draw the numbers that decide, ``[batch, width + 1]`` in [0, 1): one a proposal, and one for the next token."""
    batch, device = len(target_probs), target_probs.device
    return torch.rand(batch, width + 1, dtype=torch.float64, generator=generator, device=device)


def _residual_at(
    verdict: Verdict,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    position: Tensor,
) -> Tensor:
    """Return recovery weights at one position of each sequence, ``[batch, vocabulary]``, in float64."""
    row = torch.arange(len(position), device=position.device)
    target = verdict.recovers_from(target_probs)[row, position].double()
    if draft_probs is None:
        draft = torch.zeros_like(target).scatter_(1, draft_token_ids[row, position].unsqueeze(1), 1.0)
    else:
        draft = draft_probs[row, position].double()
    return residual(target, draft, verdict.residual_scale.squeeze(-1)[row, position])


def check_arguments(
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    num_draft_tokens: Tensor | None,
    generator: torch.Generator | None,
    *,
    validate: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Check the arguments of `verify`, and return them as a batch, with how many columns each sequence uses."""
    target = check_floats("target_probs", target_probs, "probs")
    draft = None if draft_probs is None else check_floats("draft_probs", draft_probs, "probabilities")
    ids = check_integers("draft_token_ids", draft_token_ids)
    used = None if num_draft_tokens is None else check_integers("num_draft_tokens", num_draft_tokens)
    for name, value in (("draft_probs", draft), ("draft_token_ids", ids)):
        check_device(name, value, target.device)
    check_generator(generator, target.device)

    if ids.ndim == 1:
        target, ids = target.unsqueeze(0), ids.unsqueeze(0)
        draft = None if draft is None else draft.unsqueeze(0)
        if used is not None:
            if used.numel() != 1:
                raise ValueError(f"num_draft_tokens must be one number, but its shape is {list(used.shape)}")
            used = used.reshape(1)
    if ids.ndim != 2:
        raise ValueError(f"draft_token_ids must be [batch, k] or [k], but its shape is {list(ids.shape)}")
    (batch, width), shape = ids.shape, list(target.shape)
    if target.ndim != 3 or shape[:2] != [batch, width + 1]:
        raise ValueError(f"target_probs must be [{batch}, {width + 1}, vocabulary], but its shape is {shape}")
    if draft is not None and list(draft.shape) != [batch, width, shape[2]]:
        raise ValueError(f"draft_probs must be [{batch}, {width}, {shape[2]}], but its shape is {list(draft.shape)}")
    if used is not None:
        if list(used.shape) != [batch]:
            raise ValueError(f"num_draft_tokens must be [{batch}], but its shape is {list(used.shape)}")
        check_token_ids("num_draft_tokens", used, width + 1)

    if validate:
        check_probabilities("target_probs", target)
        if draft is not None:
            check_probabilities("draft_probs", draft)
        check_token_ids("draft_token_ids", ids, shape[2])
    used = torch.full((batch,), width, device=target.device) if used is None else used.to(target.device)
    return target, draft, ids.long(), used


def verify_block(
    rule: AcceptanceRule | str,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    generator: torch.Generator | None = None,
    *,
    num_draft_tokens: Tensor | None = None,
    validate: bool = True,
) -> Verification:
    r"""Accept the longest prefix of each sequence's drafted tokens that passes a joint test; then draw the next token.

    With h_i the relaxed target's probabilities and n_i the drafted token at position i, a prefix of i tokens has the
    weight

    .. math:: w_0 = 1, \qquad w_i = \min(w_{i-1} h_i(n_i) / p_i(n_i),\ 1)

    and passes with probability :math:`Z_i / (Z_i + 1 - w_i)`, where :math:`Z_i = \sum_x (w_i h_{i+1}(x) -
    p_{i+1}(x))_+`; all k tokens pass with probability :math:`w_k`. After the longest prefix that passes, of i < k
    tokens, the next one is drawn in proportion to :math:`(w_i h_{i+1} - p_{i+1})_+`; after k tokens, from the target's
    last distribution. If decoding continues from h, the emitted tokens are distributed as h says, as with `verify`. On
    average never fewer tokens are accepted than by `verify`, and no test that sees a step's proposals once accepts
    more.

    It is `joint` on chains, one sequence after another.

    Args, returns and errors are those of `verify`, except that the rule must have a relaxed target that does not depend
    on the drafted token. A relaxed token is one that the same test, by the same uniform numbers, would not
    have kept with the target for h at that token's position alone.

    Raises:
        ValueError: also for a rule whose h depends on the drafted token.

    Source: block verification, Sun et al., ICLR 2025 (arXiv 2403.10444), there for h = q.

    Example:
        >>> rows = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
        >>> verify_block("lossless", rows, rows[:1], torch.tensor([0]), torch.Generator().manual_seed(0))
        Verification(num_accepted=tensor(1), next_token=tensor(1), relaxed=tensor([False]))
    """
    rule = as_rule(rule)
    check_relaxed_target(rule, "block verification")
    unbatched = isinstance(draft_token_ids, torch.Tensor) and draft_token_ids.ndim == 1
    target, draft, ids, used = check_arguments(
        target_probs, draft_probs, draft_token_ids, num_draft_tokens, generator, validate=validate
    )
    uniforms = draw_uniforms(target, ids.shape[1], generator).cpu()
    decision = Decision(rule)
    num_accepted, next_token, relaxed = [], [], torch.zeros(ids.shape, dtype=torch.bool)
    for row, count in enumerate(used.tolist()):
        proposal = Proposal(ids[row, :count].tolist(), None if draft is None else draft[row, :count])
        rows = target[row, : count + 1]
        tree = Tree(StepRows(rows, proposal.token_ids, proposal, lambda given, _: given, lambda given, _: given))
        numbers = RandomNumbers(torch.cat([uniforms[row, :count], uniforms[row, -1:]]), count)
        unused = numbers.again()
        walk = joint(tree, lambda position: decision, numbers)
        num_accepted.append(len(walk.path))
        next_token.append(walk.next_token)
        for visit in with_relaxed(walk, joint, tree, lambda position: decision, unused).visits:
            relaxed[row, visit.node] = visit.relaxed
    parts = [part.to(target.device) for part in (torch.tensor(num_accepted), torch.tensor(next_token), relaxed)]
    return Verification(*(part.squeeze(0) for part in parts)) if unbatched else Verification(*parts)
