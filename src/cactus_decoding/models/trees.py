"""How a model reads a tree of tokens: each sees the text, those that lead to it, and itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.models.base import BaseCachedModel
from cactus_decoding.types import Proposal


def tree_inputs(length: int, parents: Sequence[int], first: int = 0) -> dict[str, Any]:
    """Return positions and mask of a tree's tokens, as `BaseCachedModel.append` takes them.

    Args:
        length: tokens of the text, which are in the cache.
        parents: of each token of the tree the place of the one it follows; -1 for the text.
        first: how many of the tree's tokens are in the cache too; those behind them are read.

    Example:
        >>> inputs = tree_inputs(1, [-1, -1, 0])
        >>> inputs["positions"], inputs["mask"].int().tolist()
        ([1, 1, 2], [[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]])
    """
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    read = paths[first:]
    mask = torch.zeros(len(read), length + len(parents), dtype=torch.bool)
    mask[:, :length] = True
    rows = [row for row, path in enumerate(read) for _ in path]
    mask[rows, [length + node for path in read for node in path]] = True
    return {"positions": [length + len(path) - 1 for path in read], "mask": mask}


def path_places(length: int, path: Sequence[int]) -> list[int]:
    """Return the places of a text and of a path through the tree behind it, as `BaseCachedModel.keep` takes them.

    Example:
        >>> path_places(2, [0, 3])
        [0, 1, 2, 5]
    """
    return [*range(length), *(length + node for node in path)]


def append_proposal(model: BaseCachedModel, text: list[int], proposal: Proposal) -> Tensor:
    """Read what a model has not read of a text, and a proposal behind it: return the logits behind the text and each.

    Args:
        model: whose cache holds the beginning of the text.
        text: at least one token longer than that.
        proposal: whose tokens follow the text.

    Returns:
        Logits, ``[len(proposal.token_ids) + 1, vocabulary]``.
    """
    token_ids = proposal.token_ids
    if not proposal.branches:  # a chain needs no mask, which for a prompt would grow with its square
        return model.append([*text[model.length :], *token_ids], rows=len(token_ids) + 1)
    if len(text) - model.length > 1:
        model.append(text[model.length : -1], rows=1)
    behind = [-1, *(1 + parent for parent in proposal.parents)]  # the last token of the text is the root
    return model.append([text[-1], *token_ids], len(behind), **tree_inputs(len(text) - 1, behind))


def keep_path(model: BaseCachedModel, length: int, proposal: Proposal, path: Sequence[int]) -> None:
    """Keep a text and a path through a proposal behind it in a model's cache, and nothing else."""
    if proposal.branches:
        model.keep(path_places(length, path))
    else:
        model.rollback(length + len(path))
