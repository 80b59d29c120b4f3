"""One verification step with some positions relaxed: change the logits, let vLLM sample, change them back, count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.counters import Counters
from cactus_decoding.integrations.vllm.meter import BudgetMeter, allowed_positions, nats_of_visited
from cactus_decoding.integrations.vllm.nats import Spending, spending
from cactus_decoding.integrations.vllm.relaxed_logits import Relaxed, changes_one_logit, relax_rows, relax_tokens
from cactus_decoding.integrations.vllm.state import Layout
from cactus_decoding.rules.base import Rule


@dataclass(frozen=True, eq=False)
class Change:
    """New logits for some rows: whole rows, or one token in each.

    Attributes:
        rule: whose.
        rows: which, ``[rows]``.
        tokens: the drafted token of each, ``[rows]``.
        before, after: logits, ``[rows]`` or ``[rows, vocabulary]``.
        relaxed: what they come from.
    """

    rule: Rule
    rows: Tensor
    tokens: Tensor
    before: Tensor
    after: Tensor
    relaxed: Relaxed

    def write(self, logits: Tensor, allowed: Tensor | None) -> None:
        """Put the new logits in, in the allowed rows."""
        new = self.after
        if allowed is not None:
            new = torch.where(allowed if new.dim() == 1 else allowed.unsqueeze(1), new, self.before)
        self._put(logits, new)

    def restore(self, logits: Tensor) -> None:
        """Put the old logits back."""
        self._put(logits, self.before)

    def _put(self, logits: Tensor, values: Tensor) -> None:
        if values.dim() == 2:
            logits.index_copy_(0, self.rows, values)
        else:
            logits.index_put_((self.rows, self.tokens), values)


def change(
    rule: Rule, rows: Tensor, target_logits: Tensor, draft_probs: Tensor | None, draft_token_ids: Tensor
) -> Change:
    """Return what a rule changes in some rows of a step's logits.

    Args:
        rule: an expressible acceptance rule.
        rows: positions, ``[rows]``.
        target_logits: of the whole step, ``[positions, vocabulary]``, after temperature, top-k and top-p.
        draft_probs: likewise, or None for a deterministic draft.
        draft_token_ids: ``[positions]``; a negative one is padding that the sampler rejects.
    """
    given = draft_token_ids[rows].long()
    tokens = given.clamp(min=0)
    if changes_one_logit(rule, draft_probs):
        before = target_logits[rows, tokens]
        relaxed = relax_tokens(rule, before, target_logits[rows].logsumexp(-1))
        return Change(rule, rows, tokens, before, torch.where(given >= 0, relaxed.logits, before), relaxed)
    assert draft_probs is not None
    before = target_logits[rows]
    relaxed = relax_rows(rule, before, draft_probs[rows], tokens)
    return Change(rule, rows, tokens, before, relaxed.logits, relaxed)


def sample_relaxed(
    sample: Callable[[], Tensor],
    layout: Layout,
    meter: BudgetMeter,
    counters: Counters | None,
    target_logits: Tensor,
    draft_probs: Tensor | None,
    draft_token_ids: Tensor,
    padding: int,
) -> Tensor:
    """Call vLLM's sampler on relaxed logits, leave the logits as they were, and return what it sampled.

    No random number is drawn here, and without budgets, audits and root-finding nothing waits for the device.

    Args:
        sample: the sampler, on ``target_logits`` as they are when it is called.
        layout: which positions are relaxed, by which rule.
        meter: budgets.
        counters: what to count, or None.
        target_logits: ``[positions, vocabulary]``.
        draft_probs: likewise, or None for a deterministic draft.
        draft_token_ids: ``[positions]``.
        padding: what fills the sampler's output, ``[requests, num_speculative_tokens + 1]``, after the last token.
    """
    changes = [change(rule, rows, target_logits, draft_probs, draft_token_ids) for rule, rows in layout.groups]
    sizes = [len(rows) for _, rows in layout.groups]
    counting = counters is not None and counters.enabled
    spent: list[Spending] | None = None
    if counting or layout.metered is not None:
        audited = [counters.audited(size) if counters is not None and counting else None for size in sizes]
        spent = [
            spending_of(one, target_logits, draft_probs, layout.metered is not None, part)
            for one, part in zip(changes, audited, strict=True)
        ]

    allowed: Tensor | None = None
    if layout.metered is not None and spent is not None:
        costs = torch.cat([*(s.emitted for s in spent), target_logits.new_zeros(1, dtype=torch.float64)])[layout.places]
        _, slots, budgets = layout.metered
        paid = allowed_positions(costs, meter.spent[slots], budgets)
        allowed = torch.ones(sum(sizes) + 1, dtype=torch.bool, device=target_logits.device)
        allowed = allowed.index_put((layout.places,), paid)[:-1]

    parts: list[Tensor | None] = [None] * len(changes) if allowed is None else list(allowed.split(sizes))
    for one, part in zip(changes, parts, strict=True):
        one.write(target_logits, part)
    output = sample()
    for one in changes:
        one.restore(target_logits)

    if spent is not None:
        num_sampled = (output != padding).sum(1)
        if layout.metered is not None:
            indices, slots, _ = layout.metered
            meter.spent.index_add_(0, slots, nats_of_visited(costs, paid, num_sampled[indices]))
        if counters is not None and counting:
            left = num_sampled[layout.requests] - 1 - layout.depths  # 0 at the rejected position, less after it
            counters.add(changes_rules(changes), spent, left.split(sizes), parts)
    return output


def spending_of(
    one: Change, target_logits: Tensor, draft_probs: Tensor | None, metered: bool, audited: Tensor | None
) -> Spending:
    """Return what a change costs; see `spending` for ``audited``.

    Args:
        one: the change.
        target_logits: of the whole step, not relaxed.
        draft_probs: likewise, or None for a deterministic draft.
        metered: whether what is emitted must be known of every row.
        audited: indices into the change's rows.
    """
    drafted = None if draft_probs is None else draft_probs[one.rows, one.tokens].double()

    def rows_of(some: Tensor) -> tuple[Tensor, Tensor]:
        assert draft_probs is not None
        return target_logits[one.rows[some]], draft_probs[one.rows[some]]

    needed = torch.arange(len(one.rows), device=one.rows.device) if metered else audited
    return spending(one.rule, one.relaxed, drafted, rows_of, needed, audited)


def changes_rules(changes: list[Change]) -> list[Rule]:
    """Return the rule of each change."""
    return [one.rule for one in changes]
