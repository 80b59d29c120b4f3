"""Both models' rows of one step."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.types.proposals import ROOT, LogitsToProbs, Proposal


class StepRows:
    """Both models' rows of one step; each is made by itself, when it is first asked for.

    Args:
        logits: the target's, ``[proposals + 1, vocabulary]``; row 0 follows the text, row i + 1 proposal i.
        token_ids: all the tokens, the proposals at their end.
        proposal: what was proposed.
        to_probs: from logits to the rows that are sampled from.
        untempered: from logits to the rows before temperature and truncation.
    """

    __slots__ = ("_made", "_to_probs", "_token_ids", "_untempered", "logits", "proposal")

    def __init__(
        self,
        logits: Tensor,
        token_ids: list[int],
        proposal: Proposal,
        to_probs: LogitsToProbs,
        untempered: LogitsToProbs,
    ) -> None:
        self.logits, self.proposal = logits, proposal
        self._token_ids, self._to_probs, self._untempered = token_ids, to_probs, untempered
        self._made: dict[int, Tensor] = {}

    def target_behind(self, node: int) -> Tensor:
        """Return the target's row behind a proposal, or with -1 behind the text, as it is sampled from."""
        if node not in self._made:
            self._made[node] = self._to_probs(self.logits[node + 1 : node + 2], self.text(node))[0]
        return self._made[node]

    def target_along(self, count: int) -> Tensor:
        """Return the target's rows behind the text and a chain's first proposals, ``[count, vocabulary]``."""
        return torch.stack([self.target_behind(node) for node in range(ROOT, count - 1)])

    def untempered_behind(self, node: int) -> Tensor:
        """Return the same before temperature and truncation; at temperature 0, the token that is chosen has no equal.

        Logits may differ where their probabilities are rounded to the same number, and the first token that attains
        the greatest logit is the one that is chosen. So its equals here become less likely by the least there is.
        """
        row = self._untempered(self.logits[node + 1 : node + 2], self.text(node))[0]
        best = self.target_behind(node).argmax(-1)
        greatest = row[best]
        equals = row == greatest
        equals[best] = False
        return torch.where(equals, torch.nextafter(greatest, torch.zeros_like(greatest)), row)

    def target_of(self, node: int) -> Tensor:
        """Return the target's row that a proposal was judged in, as it is sampled from, ``[vocabulary]``."""
        return self.target_behind(self.proposal.parents[node])

    def untempered_of(self, node: int) -> Tensor:
        """Return the same before temperature and truncation."""
        return self.untempered_behind(self.proposal.parents[node])

    def draft(self, node: int) -> Tensor | None:
        """Return the law of a proposal beside its siblings, ``[vocabulary]``; None where it was not drawn."""
        proposal, parent = self.proposal, self.proposal.parents[node]
        whole = proposal.row_behind(parent)
        if whole is None or not proposal.drawn[node]:
            return None
        siblings = proposal.children[parent]
        if len(siblings) == 1:
            return whole
        row = whole.to(torch.float64, copy=True)
        for other in siblings[: siblings.index(node)]:
            row[proposal.token_ids[other]] = 0.0
        return row / row.sum()

    def text(self, node: int) -> list[int]:
        """Return all the tokens before the row behind a proposal."""
        before = len(self._token_ids) - len(self.proposal.token_ids)
        return [*self._token_ids[:before], *self.proposal.tokens_to(node)]
