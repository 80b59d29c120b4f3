"""Both models' rows of one step, of a chain or of a tree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cactus_decoding.types.proposals import LogitsToProbs, Proposal


class StepRows:
    """Both models' rows of one step, made when they are asked for.

    Args:
        logits: the target's, ``[proposals + 1, vocabulary]``; row i follows the first i proposals.
        token_ids: all the tokens, the proposals at their end.
        proposal: what was proposed.
        to_probs: from logits to the rows that are sampled from.
        untempered: from logits to the rows before temperature and truncation.
        target_probs: what ``to_probs`` made of all the logits, where that is known already.
    """

    __slots__ = ("_target_probs", "_to_probs", "_token_ids", "_untempered", "logits", "proposal")

    def __init__(
        self,
        logits: Tensor,
        token_ids: list[int],
        proposal: Proposal,
        to_probs: LogitsToProbs,
        untempered: LogitsToProbs,
        target_probs: Tensor | None = None,
    ) -> None:
        self.logits, self.proposal = logits, proposal
        self._token_ids, self._target_probs = token_ids, target_probs
        self._to_probs, self._untempered = to_probs, untempered

    def target(self, count: int | None = None) -> Tensor:
        """Return the first ``count`` of the target's rows as they are sampled from, or all, ``[count, vocabulary]``."""
        count = len(self.logits) if count is None else count
        known = self._target_probs
        if known is None:
            known = self._rows(self._to_probs, 0, count)
        elif len(known) < count:  # visits may be read one after another
            known = torch.cat([known, self._rows(self._to_probs, len(known), count)])
        self._target_probs = known
        return known[:count]

    def untempered(self, count: int | None = None) -> Tensor:
        """Return the same before temperature and truncation; at temperature 0, the token that is chosen has no equal.

        Logits may differ where their probabilities are rounded to the same number, and the first token that attains
        the greatest logit is the one that is chosen. So its equals here become less likely by the least there is.
        """
        rows = self._rows(self._untempered, 0, len(self.logits) if count is None else count)
        return _without_equals(rows, self.target(len(rows)))

    def target_of(self, node: int) -> Tensor:
        """Return the target's row that a proposal was judged in, as it is sampled from, ``[vocabulary]``."""
        return self.target(node + 1)[node]

    def untempered_of(self, node: int) -> Tensor:
        """Return the same before temperature and truncation."""
        return self.untempered(node + 1)[node]

    def draft(self, node: int) -> Tensor | None:
        """Return the row that a proposal was drawn from, ``[vocabulary]``; None where it is deterministic."""
        return None if self.proposal.probs is None else self.proposal.probs[node]

    def _rows(self, to_probs: LogitsToProbs, start: int, stop: int) -> Tensor:
        return to_probs(self.logits[start:stop], self._token_ids[: len(self._token_ids) - len(self.logits) + stop])


def _without_equals(rows: Tensor, target: Tensor) -> Tensor:
    best = target.argmax(-1, keepdim=True)
    greatest = rows.gather(-1, best)
    equals = (rows == greatest).scatter_(-1, best, False)
    return torch.where(equals, torch.nextafter(greatest, torch.zeros_like(greatest)), rows)


class TreeRows(StepRows):
    """Both models' rows of a step that proposes a tree: row 0 follows the text, row i + 1 the proposal at place i.

    Each row is made by itself, and only when it is asked for. The arguments are those of `StepRows`.
    """

    __slots__ = ("_made",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._made: dict[int, Tensor] = {}

    def target_behind(self, node: int) -> Tensor:
        """Return the target's row behind a proposal, or with -1 behind the text, as it is sampled from."""
        if node not in self._made:
            self._made[node] = self._to_probs(self.logits[node + 1 : node + 2], self._text(node))[0]
        return self._made[node]

    def untempered_behind(self, node: int) -> Tensor:
        """Return the same before temperature and truncation; see `StepRows.untempered`."""
        row = self._untempered(self.logits[node + 1 : node + 2], self._text(node))
        return _without_equals(row, self.target_behind(node)[None])[0]

    def target(self, count: int | None = None) -> Tensor:
        """Return the rows behind the text and the first ``count - 1`` proposals, or all, ``[count, vocabulary]``."""
        count = len(self.logits) if count is None else count
        return torch.stack([self.target_behind(node) for node in range(-1, count - 1)])

    def untempered(self, count: int | None = None) -> Tensor:
        """Return the same before temperature and truncation."""
        count = len(self.logits) if count is None else count
        return torch.stack([self.untempered_behind(node) for node in range(-1, count - 1)])

    def target_of(self, node: int) -> Tensor:
        """Return the target's row that a proposal was judged in, as it is sampled from, ``[vocabulary]``."""
        return self.target_behind(self._parents[node])

    def untempered_of(self, node: int) -> Tensor:
        """Return the same before temperature and truncation."""
        return self.untempered_behind(self._parents[node])

    def draft(self, node: int) -> Tensor | None:
        """Return the law of a proposal beside its siblings, ``[vocabulary]``; None where it was not drawn."""
        proposal, parents, drawn = self.proposal, self._parents, self._drawn
        whole = self.draft_behind(parents[node])
        if whole is None or not drawn[node]:
            return None
        row = whole.to(torch.float64, copy=True)
        for other, token_id in enumerate(proposal.token_ids):
            if parents[other] == parents[node] and (not drawn[other] or other < node):
                row[token_id] = 0.0
        return row / row.sum()

    def parent(self, node: int) -> int:
        """Return the place of the proposal that one follows, -1 for the text."""
        return self._parents[node]

    def drawn(self, node: int) -> bool:
        """Say whether a proposal was drawn, or else is a function of the text before it alone."""
        return self._drawn[node]

    def draft_behind(self, node: int) -> Tensor | None:
        """Return the draft's whole row behind a proposal that has children, or with -1 behind the text, if any."""
        if self.proposal.probs is None:
            return None
        return self.proposal.probs[sorted(set(self._parents)).index(node)]

    def fixed_behind(self, node: int) -> list[int]:
        """Return the tokens that are proposed there as a function of the text alone, in their order."""
        nodes = zip(self._parents, self._drawn, self.proposal.token_ids, strict=True)
        return [token_id for parent, drawn, token_id in nodes if parent == node and not drawn]

    def any_drawn_behind(self, node: int) -> bool:
        """Say whether any of the proposals behind one, or with -1 behind the text, was drawn."""
        return any(drawn for parent, drawn in zip(self._parents, self._drawn, strict=True) if parent == node)

    @property
    def _drawn(self) -> list[bool]:
        """Of each proposal, whether it was drawn."""
        proposal = self.proposal
        return [proposal.probs is not None] * len(proposal.token_ids) if proposal.drawn is None else proposal.drawn

    @property
    def _parents(self) -> list[int]:
        parents = self.proposal.parents
        return list(range(-1, len(self.proposal.token_ids) - 1)) if parents is None else parents

    def _text(self, node: int) -> list[int]:
        """Return all the tokens before the row behind a proposal."""
        before = len(self._token_ids) - len(self.proposal.token_ids)
        return [*self._token_ids[:before], *self.proposal.tokens_to(node)]
