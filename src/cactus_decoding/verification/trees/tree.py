"""A proposal as a tree: what is proposed to follow each of its tokens, and by which law."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cactus_decoding.types import ROOT, TreeRows
from cactus_decoding.verification.trees.law import Certainty, Law


class Children(NamedTuple):
    """What is proposed to follow one token: some *fixed* tokens, then some that are drawn.

    Attributes:
        nodes: places in the proposal, the fixed ones first, in the order in which they are tested; at least one.
        token_ids: their tokens, which all differ.
        num_fixed: how many are functions of the text alone.
        vocabulary: how many tokens there are in all.
        draft: the draft's row, whole; None where it has none.
    """

    nodes: list[int]
    token_ids: list[int]
    num_fixed: int
    vocabulary: int
    draft: Law | None

    @property
    def drafted(self) -> int:
        """Which of them a rule judges: the first that is drawn, or else the first, of which the draft is then sure."""
        return self.num_fixed if self.num_fixed < len(self.nodes) else 0

    @property
    def fixed_token_ids(self) -> Tensor:
        """The fixed tokens, ``[num_fixed]``."""
        return torch.tensor(self.token_ids[: self.num_fixed], dtype=torch.long)

    def law(self, index: int) -> Law:
        """Return the law that a child has given the text and the children drawn before it."""
        if index < self.num_fixed:
            return Certainty(self.token_ids[index], self.vocabulary)
        assert self.draft is not None
        return self.draft.without(self.token_ids[:index])

    def other_than(self, index: int, token_id: int) -> int | None:
        """Return the place of the child that is a token, if there is one and it is not the child of that index."""
        if token_id not in self.token_ids or self.token_ids[index] == token_id:
            return None
        return self.nodes[self.token_ids.index(token_id)]


class Tree(Protocol):
    """What a scheme sees of a proposal and of the target's rows; it asks for no more than it needs."""

    def children(self, node: int) -> Children | None:
        """Return what is proposed to follow a token; None behind a leaf."""
        ...

    def parent(self, node: int) -> int:
        """Return the place of the token that a token follows."""
        ...

    def tokens_to(self, node: int) -> list[int]:
        """Return the proposed tokens from the text to one of them, itself included."""
        ...

    def target(self, node: int) -> Law:
        """Return the target's law behind a token, as it is sampled from."""
        ...

    def untempered(self, node: int) -> Tensor:
        """Return the same before temperature and truncation, in the precision that it has."""
        ...


class ProposedTree:
    """The tree of a step.

    Args:
        rows: of both models, with the proposal that they belong to.
    """

    def __init__(self, rows: TreeRows) -> None:
        proposal = rows.proposal
        self._rows, self._proposal = rows, proposal
        parents = range(ROOT, len(proposal.token_ids) - 1) if proposal.parents is None else proposal.parents
        self._parents = parents
        drawn = [proposal.probs is not None] * len(proposal.token_ids) if proposal.drawn is None else proposal.drawn
        self._nodes: dict[int, tuple[list[int], list[int]]] = {}
        self._children: dict[int, Children] = {}
        for node, (parent, was_drawn) in enumerate(zip(parents, drawn, strict=True)):
            self._nodes.setdefault(parent, ([], []))[was_drawn].append(node)
        self._place = {parent: place for place, parent in enumerate(sorted(self._nodes))}
        self._targets: dict[int, Law] = {}

    def children(self, node: int) -> Children | None:
        """Return what is proposed to follow a token; None behind a leaf."""
        if node in self._nodes and node not in self._children:
            self._children[node] = self._described(node)
        return self._children.get(node)

    def _described(self, node: int) -> Children:
        fixed, drawn = self._nodes[node]
        probs, nodes = self._proposal.probs, [*fixed, *drawn]
        draft = None if probs is None else Law(probs[self._place[node]].cpu())
        token_ids = [self._proposal.token_ids[each] for each in nodes]
        return Children(nodes, token_ids, len(fixed), self._rows.logits.shape[-1], draft)

    def parent(self, node: int) -> int:
        """Return the place of the token that a token follows."""
        return self._parents[node]

    def tokens_to(self, node: int) -> list[int]:
        """Return the proposed tokens from the text to one of them, itself included."""
        return self._proposal.tokens_to(node)

    def untempered(self, node: int) -> Tensor:
        """Return the target's row behind a token before temperature and truncation."""
        return self._rows.untempered_behind(node).cpu()

    def target(self, node: int) -> Law:
        """Return the target's law behind a token, made when it is first asked for."""
        if node not in self._targets:
            self._targets[node] = Law(self._rows.target_behind(node).cpu())
        return self._targets[node]
