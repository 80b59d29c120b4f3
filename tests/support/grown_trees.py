"""Trees that the package's own shapes grow, with every token that the draft could draw; and a wrong way to grow one."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.core.divergences.rows import without
from cactus_decoding.core.drafting.suffix_index import SuffixIndex
from cactus_decoding.core.drafting.trees.growing import GrowingTree, grow
from cactus_decoding.core.drafting.trees.shape import TreeShape
from support.tree_enumeration import Children, Choices, LazyTree, Models


class GrownTree(LazyTree):
    """A tree that is whole before it is looked at: each level is settled, then drawn, then the next one."""

    def __init__(self, models: Models, text: tuple[int, ...], shape: TreeShape, choices: Choices, limit: int) -> None:
        super().__init__(models, text, shape, choices, limit)
        if limit := min(limit, shape.max_draft_tokens):
            self._take(grow(shape, SuffixIndex(text).continuations(limit), limit, self._read, self._choose))
        self._finish()

    def draft(self, node: int) -> Tensor:
        return self._models((*self._text, *self.tokens_to(node)))[1]

    def _read(self, tree: GrowingTree, nodes: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.stack([self._models((*self._text, *tree.tokens_to(node)))[1] for node in nodes])
        return rows.log(), rows

    def _choose(self, _: Tensor, probs: Tensor, count: int, num_drawn: int, given: Tensor) -> tuple[Tensor, Tensor]:
        """Do what `choose_children` does, with every outcome of its draws."""
        chosen = [self._children_of(*each, count, num_drawn) for each in zip(probs, given.tolist(), strict=True)]
        return torch.tensor([tokens for tokens, _ in chosen]), torch.tensor([drawn for _, drawn in chosen])

    def _children_of(self, draft: Tensor, given: list[int], count: int, num_drawn: int) -> tuple[list[int], list[bool]]:
        likeliest = [token for token in draft.argsort(descending=True).tolist() if token not in given]
        tokens = given + likeliest[: count - num_drawn]
        drawn = [False] * len(tokens)
        for _ in range(num_drawn):
            law = without(draft, torch.tensor(tokens, dtype=torch.long))
            drawn.append(bool(law.sum() > 0))
            left = (token for token in likeliest if token not in tokens)
            tokens.append(self._choices.token(law) if drawn[-1] else next(left))
        return tokens, drawn

    def _take(self, tree: GrowingTree) -> None:
        """Take over what has grown."""
        self.token_ids, self.parents = tree.token_ids, tree.parents
        for node in tree.rows:
            nodes = [i for i, parent in enumerate(tree.parents) if parent == node]
            nodes.sort(key=lambda i: tree.drawn[i])
            tokens = [tree.token_ids[i] for i in nodes]
            num_fixed = sum(not tree.drawn[i] for i in nodes)
            self._children[node] = Children(nodes, tokens, num_fixed)

    def _finish(self) -> None:
        """Leave the tree as it is."""

    def children(self, node: int) -> Children | None:
        return self._children.get(node)

    def _drop(self, node: int, index: int) -> None:
        """Leave out one child of a node, and what is behind it."""
        children = self._children[node]
        assert children is not None
        self._children.pop(children.nodes[index], None)
        nodes = [each for i, each in enumerate(children.nodes) if i != index]
        tokens = [each for i, each in enumerate(children.token_ids) if i != index]
        num_fixed = children.num_fixed - (index < children.num_fixed)
        left = children._replace(nodes=nodes, token_ids=tokens, num_fixed=num_fixed)
        self._children[node] = left if nodes else None

    def _drawn(self) -> list[tuple[int, int]]:
        """Return the nodes with a drawn child, and which it is."""
        return [
            (node, len(each.nodes) - 1)
            for node, each in self._children.items()
            if each is not None and each.num_fixed < len(each.nodes)
        ]


class UnlikelyDrawsDropped(GrownTree):
    """Wrong: a drawn child of less than a third of the draft's row is dropped."""

    def _finish(self) -> None:
        for node, index in self._drawn()[::-1]:
            children = self._children[node]
            assert children is not None
            if self.draft(node)[children.token_ids[index]] < 1 / 3:
                self._drop(node, index)
