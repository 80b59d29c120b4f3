"""Block verification: decide on a step's proposals jointly, and so accept more of them for the same relaxed target."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.rules import Lossless, as_rule
from cactus_decoding.types import AcceptanceRule, Proposal, StepRows, Verification
from cactus_decoding.verification.batched import check_arguments, draw_uniforms
from cactus_decoding.verification.joint import joint
from cactus_decoding.verification.schemes import check_relaxed_target
from cactus_decoding.verification.tree import RandomNumbers, Tree


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

    It is `joint` on chains, one sequence after another.

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
    check_relaxed_target(rule, "block verification")
    unbatched = isinstance(draft_token_ids, Tensor) and draft_token_ids.ndim == 1
    target, draft, ids, used = check_arguments(
        target_probs, draft_probs, draft_token_ids, num_draft_tokens, generator, validate=validate
    )
    uniforms = draw_uniforms(target, ids.shape[1], generator).cpu()
    num_accepted, next_token, relaxed = [], [], torch.zeros(ids.shape, dtype=torch.bool)
    for row, count in enumerate(used.tolist()):
        proposal = Proposal(ids[row, :count].tolist(), None if draft is None else draft[row, :count])
        tree = Tree(StepRows(target[row, : count + 1], proposal.token_ids, proposal, _as_given, _as_given))
        numbers = RandomNumbers(torch.cat([uniforms[row, :count], uniforms[row, -1:]]), count)
        walk = joint(tree, lambda position: rule, numbers)
        marked = walk.compared_with(joint(tree, lambda position: Lossless(), numbers.again()))
        num_accepted.append(len(walk.path))
        next_token.append(walk.next_token)
        for trial in marked.trials:
            relaxed[row, trial.node] = trial.relaxed
    parts = [part.to(target.device) for part in (torch.tensor(num_accepted), torch.tensor(next_token), relaxed)]
    return Verification(*(part.squeeze(0) for part in parts)) if unbatched else Verification(*parts)


def _as_given(rows: Tensor, token_ids: list[int]) -> Tensor:
    """Return probabilities as they are."""
    return rows
