"""Block verification: decide on a step's proposals jointly, and so accept more of them for the same relaxed target."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cactus_decoding.rules import as_rule
from cactus_decoding.sampling.drawing import draw
from cactus_decoding.types import AcceptanceRule, Verification
from cactus_decoding.verification.plain import check_arguments, draw_uniforms, residual


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

    With h_i the relaxed target's row and n_i the drafted token at position i, a prefix of i tokens weighs

    .. math:: w_0 = 1, \qquad w_i = \min(w_{i-1} h_i(n_i) / p_i(n_i),\ 1)

    and passes with probability :math:`Z_i / (Z_i + 1 - w_i)`, where :math:`Z_i = \sum_x (w_i h_{i+1}(x) -
    p_{i+1}(x))_+`; all k tokens pass with probability :math:`w_k`. After the longest prefix that passes, of i < k
    tokens, the next one is drawn in proportion to :math:`(w_i h_{i+1} - p_{i+1})_+`; after k, from the target's last
    row. Followed by whatever continues from h, the emitted tokens have the law of h, as with `verify`; no more tokens
    are accepted by any test that sees a step's proposals once, and never fewer on average than by `verify`.

    Args, returns and errors are those of `verify`, except that the rule must have a relaxed target that does not depend
    on the drafted token. A relaxed token is one that the same test would not have kept with the target for h and the
    same uniform numbers.

    Raises:
        ValueError: also for a rule whose h depends on the drafted token.

    Source: block verification, Sun et al., ICLR 2025 (arXiv 2403.10444), there for h = q.

    Example:
        >>> rows = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
        >>> verify_block("lossless", rows, rows[:1], torch.tensor([0]), torch.Generator().manual_seed(0))
        Verification(num_accepted=tensor(1), next_token=tensor(1), relaxed=tensor([False]))
    """
    rule = as_rule(rule)
    unbatched = isinstance(draft_token_ids, Tensor) and draft_token_ids.ndim == 1
    target, draft, ids, used = check_arguments(
        target_probs, draft_probs, draft_token_ids, num_draft_tokens, generator, validate=validate
    )
    batch, width = ids.shape
    uniforms = draw_uniforms(target, width, generator)
    if draft is None:  # a deterministic draft is a random one that puts all its mass on one token
        draft = one_hot(ids, target.shape[-1])
    before, draft = target[:, :-1].double(), draft.double()
    relaxed_rows = relaxed_target_of(rule, before, draft)
    weights, passes = prefix_tests(relaxed_rows, draft, ids, used)
    num_accepted = _count_passed(passes, uniforms, used)
    lossless = _count_passed(prefix_tests(before, draft, ids, used)[1], uniforms, used)

    row = torch.arange(batch, device=target.device)
    next_weights = target[row, num_accepted].double()
    if width:
        position = num_accepted.clamp(max=width - 1)
        recovery = residual(relaxed_rows[row, position], draft[row, position], weights[row, position])
        next_weights = torch.where((num_accepted < used).unsqueeze(1), recovery, next_weights)
    place = torch.arange(width, device=target.device)
    relaxed = (place < num_accepted.unsqueeze(1)) & (place >= lossless.unsqueeze(1))
    result = Verification(num_accepted, draw(next_weights, uniforms[:, -1]), relaxed)
    return Verification(*(part.squeeze(0) for part in result)) if unbatched else result


def relaxed_target_of(
    rule: AcceptanceRule, target_probs: Tensor, draft_probs: Tensor, what: str = "block verification"
) -> Tensor:
    """Return the rows h of a rule, or raise `ValueError` if its h depends on the drafted token."""
    rows = rule.relaxed_target(target_probs, draft_probs)
    if rows is None:
        raise ValueError(
            f"{what} needs a rule whose relaxed target does not depend on the drafted token, such as "
            f"lossless or clamped, but the rule is {rule!s}"
        )
    return rows


def prefix_tests(rows: Tensor, draft_probs: Tensor, token_ids: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight w_i of each prefix, ``[batch, k + 1]``, and the probability that it passes, ``[batch, k]``.

    Args:
        rows: the relaxed target h, ``[batch, k, vocabulary]``.
        draft_probs: the draft's rows likewise.
        token_ids: drafted tokens, ``[batch, k]``.
        used: how many of the k columns each sequence uses, ``[batch]``.
    """
    batch, width = token_ids.shape
    weights, passes = rows.new_ones(batch, width + 1), rows.new_zeros(batch, width)
    for i in range(width):
        token = token_ids[:, i : i + 1]
        h, p = rows[:, i].gather(1, token).squeeze(1), draft_probs[:, i].gather(1, token).squeeze(1)
        # a token of draft probability zero is never drafted; the guard only keeps NaN away
        weight = torch.where(p > 0, weights[:, i] * h / p, 0.0).clamp(max=1.0)
        weights[:, i + 1] = passes[:, i] = weight
        if i + 1 < width:
            left = (weight.unsqueeze(1) * rows[:, i + 1] - draft_probs[:, i + 1]).clamp(min=0).sum(1)
            # weight 1 passes even where h = p leaves no residual
            inner = torch.where(weight < 1, left / (left + 1 - weight), 1.0)
            passes[:, i] = torch.where(used == i + 1, weight, inner)
    return weights, passes


def _count_passed(passes: Tensor, uniforms: Tensor, used: Tensor) -> Tensor:
    """Return the length of the longest prefix that passes, ``[batch]``."""
    places = torch.arange(1, passes.shape[1] + 1, device=passes.device)
    # strictly less: with u = 0 a prefix of weight zero must still fail
    passed = (uniforms[:, :-1] < passes) & (places <= used.unsqueeze(1))
    return torch.where(passed, places, 0).amax(1) if passes.shape[1] else torch.zeros_like(used)
