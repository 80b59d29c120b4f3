"""Proposals from a small language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from cactus_decoding.drafting.growing import GrowingTree, choose_children, grow
from cactus_decoding.drafting.lengths import FixedLength, TreeShape
from cactus_decoding.drafting.suffix_index import SuffixIndex
from cactus_decoding.models.base import BaseCachedModel
from cactus_decoding.models.cached import CachedModel
from cactus_decoding.models.trees import path_places, tree_inputs
from cactus_decoding.sampling.rows import check_drawn, draw
from cactus_decoding.types import ROOT, Drafter, DraftLength, LogitsToProbs, Proposal

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModelDrafter(Drafter):
    """Samples proposals one after another from a draft model, with the request's own sampling parameters.

    Args:
        model: a causal language model with the target's tokens: one of transformers, or any with a cache.
        vocabulary: width of the target's logits; the draft's are cut or padded to it where the two models pad their
            vocabularies differently. The draft's own width, if None.
    """

    fixed_blocks: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    may_be_left_out: ClassVar[bool] = True

    def __init__(self, model: PreTrainedModel | BaseCachedModel, vocabulary: int | None = None) -> None:
        self._model = model if isinstance(model, BaseCachedModel) else CachedModel(model)
        self._vocabulary = vocabulary
        self.max_length = self._model.max_length
        self._length: DraftLength = FixedLength(0)  # as long as nobody says otherwise, every row is good enough
        self._given = 0
        self._tree: Proposal | None = None  # what the cache holds behind the first `_given` tokens, if that is a tree
        self._index = SuffixIndex()  # of the text, where trees have tokens that are looked up
        self._cached: list[int] = []  # begins with the tokens in the cache; empty while a step is being taken

    def twin(self) -> ModelDrafter:
        """Return a drafter with the same weights and a cache of its own."""
        return ModelDrafter(self._model.twin(), self._vocabulary)

    @property
    def model(self) -> Any:
        """The draft model, without its cache."""
        return self._model.model

    @property
    def model_cache(self) -> BaseCachedModel:
        """The draft model with its cache."""
        return self._model

    @property
    def name(self) -> str:
        """The path or the name of the draft model."""
        return self._model.name

    @property
    def vocabulary(self) -> int:
        """Width of the proposed rows."""
        return self._model.vocabulary_size if self._vocabulary is None else self._vocabulary

    def begin_response(self, target: Any, length: DraftLength) -> None:
        """Ask a draft length after each row whether to go on."""
        self._length = length

    def reset(self) -> None:
        """Forget the last response, which is otherwise looked through for a beginning that the next one shares."""
        self._cached, self._tree = [], None
        self._model.reset()

    @torch.inference_mode()
    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Draw up to ``limit`` tokens: fewer where the draft length says so or the draft's context window ends.

        Where the draft length is a tree's shape, this is how many levels the tree may have.
        There are none after a token that the draft lacks. After an error or an interruption nothing is remembered.
        """
        if self.max_length is not None:
            limit = min(limit, self.max_length - len(token_ids))
        known = self._follow(token_ids)
        if limit <= 0 or max(token_ids[known:]) >= self._model.vocabulary_size:
            self._given, self._cached = known, token_ids[:known]
            return Proposal([], None)
        if isinstance(self._length, TreeShape) and self._length.branches:
            return self._grow(self._length, token_ids, limit, to_probs, generator)
        uniforms = torch.rand(limit, dtype=torch.float64, generator=generator, device=self._model.device)
        sequence, rows = list(token_ids), []
        for i in range(limit):
            logits = self._fit(self._model.append(sequence[self._model.length :], rows=1))
            rows.append(to_probs(logits, sequence))
            token = int(draw(rows[-1], uniforms[i : i + 1]))
            check_drawn("draft", token, rows[-1], len(sequence))
            sequence.append(token)
            if not self._length.should_continue(logits[0]):
                break
        self._given, self._cached = len(token_ids), sequence
        return Proposal(sequence[len(token_ids) :], torch.cat(rows))

    def _grow(
        self,
        shape: TreeShape,
        token_ids: list[int],
        limit: int,
        to_probs: LogitsToProbs,
        generator: torch.Generator | None,
    ) -> Proposal:
        """Grow a tree of up to ``limit`` levels, of each of which those tokens are read that may get children."""
        start = len(token_ids)

        def read(tree: GrowingTree, nodes: list[int]) -> tuple[Tensor, Tensor]:
            if nodes == [ROOT]:
                logits = self._model.append(token_ids[self._model.length :], rows=1)
            else:
                first, new = len(tree.read), tree.begin_reading(nodes)
                inputs = {} if tree.reads_chain else tree_inputs(start, tree.read_parents, first)
                logits = self._model.append(new, len(new), **inputs)
            logits = self._fit(logits)
            texts = ([*token_ids, *tree.tokens_to(node)] for node in nodes)
            probs = [to_probs(logits[i : i + 1], text) for i, text in enumerate(texts)]
            return logits, probs[0] if len(probs) == 1 else torch.cat(probs)

        def choose(logits: Tensor, probs: Tensor, count: int, num_drawn: int, given: Tensor) -> tuple[Tensor, Tensor]:
            return choose_children(logits, probs, count, num_drawn, generator, given)

        if shape.num_looked_up:
            self._index.follow(token_ids)
        branches = self._index.continuations(limit) if shape.num_looked_up else []
        tree = grow(shape, branches, limit, read, choose)
        self._given, self._cached = start, list(token_ids)
        if tree.reads_chain:
            self._cached += tree.read_tokens
        else:
            self._tree = Proposal(tree.read_tokens, None, tree.read_parents)
        return tree.proposal()

    def _keep_path(self, token_ids: list[int]) -> None:
        """Keep of a tree in the cache what the sequence went along; nothing where it began otherwise."""
        tree, self._tree = self._tree, None
        if tree is None:
            return
        path = []
        if token_ids[: self._given] == self._cached:
            path = tree.path_along(token_ids[self._given : -1])
        cached, self._cached = self._cached, []  # until that is done
        self._model.keep(path_places(len(cached), path))
        self._cached = [*cached, *(tree.token_ids[node] for node in path)]

    def _follow(self, token_ids: list[int]) -> int:
        """Roll the cache back to what it shares with the sequence and return how much; the last token is fed again."""
        self._keep_path(token_ids)
        cached, self._cached = self._cached, []  # what ends a step early must not leave tokens of another cache behind
        limit = min(self._model.length, len(cached), len(token_ids) - 1)
        shared = min(self._given, limit)  # usually all of what was given last time is still there: compared at once
        if cached[:shared] != token_ids[:shared]:
            shared = 0
        while shared < limit and cached[shared] == token_ids[shared]:
            shared += 1
        if shared == 0:
            self._model.reset()
        else:
            self._model.rollback(shared)
        return self._model.length

    def _fit(self, logits: Tensor) -> Tensor:
        if self._vocabulary is None or logits.shape[-1] == self._vocabulary:
            return logits
        return pad(logits, (0, self._vocabulary - logits.shape[-1]), value=-torch.inf)  # a negative pad cuts
