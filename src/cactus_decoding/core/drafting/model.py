"""Proposals from a small language model."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.drafting.lengths import FixedLength
from cactus_decoding.core.drafting.suffix_index import SuffixIndex
from cactus_decoding.core.drafting.trees.growing import GrowingTree, choose_children, first_to_arrive, grow
from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.models.base import BaseCachedModel, path_places, tree_inputs
from cactus_decoding.core.models.loading import with_cache
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.core.sampling.params import is_greedy
from cactus_decoding.core.sampling.rows import check_drawn, draw, draw_one, one_hot
from cactus_decoding.core.types import MAX_FORCED, ROOT, Drafter, DraftLength, LogitsToProbs, Proposal

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from cactus_decoding.core.models.tokenizers import DifferingTokens


class ModelDrafter(Drafter):
    """Samples proposals one after another from a draft model, with the request's own sampling parameters.

    Args:
        model: a causal language model with the target's tokens: one of transformers, or any with a cache.
        vocabulary: width of the target's logits; the draft's are cut or padded to it where the two models pad their
            vocabularies differently. By default the draft's own width.
        differing: tokens that are not the same in both vocabularies, which are never proposed.

    Attributes:
        singly: up to how many unread tokens before the last one are read one by one in this response.
        start: how many tokens of the text are not read in this response.
    """

    fixed_blocks: ClassVar[bool] = True
    grows_trees: ClassVar[bool] = True
    may_be_left_out: ClassVar[bool] = True

    def __init__(
        self,
        model: PreTrainedModel | BaseCachedModel,
        vocabulary: int | None = None,
        differing: DifferingTokens | None = None,
    ) -> None:
        self._model = with_cache(model)
        self._vocabulary, self._differing = vocabulary, differing
        self._excluded: Tensor | None = None
        if differing is not None:
            read_as, own = torch.arange(self.vocabulary, device=self._model.device), self._model.vocabulary_size
            for token, other in differing.read_as.items():
                read_as[token] = other
            self._model.read_as = read_as.where(read_as < own, 0)
            ids = [token for token in differing.token_ids if token < self.vocabulary]
            self._excluded = torch.tensor(ids, dtype=torch.long, device=self._model.device)
        self.max_length = self._model.max_length
        self._draft_length: DraftLength = FixedLength(0)  # as long as nobody says otherwise, every row is good enough
        self._begins = False  # a response
        self.singly = self.start = 0
        self._tree: tuple[int, Proposal] | None = None  # what the cache holds after its first tokens, if not a chain
        self._index = SuffixIndex()  # of the text, where trees have tokens that are looked up

    def twin(self) -> ModelDrafter:
        return self.on(self._model.twin())

    def on(self, model: BaseCachedModel) -> ModelDrafter:
        """Return a drafter of another cache with the same weights."""
        return ModelDrafter(model, self._vocabulary, self._differing)

    @property
    def model(self) -> Any:
        return self._model.model

    @property
    def model_cache(self) -> BaseCachedModel:
        return self._model

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def vocabulary(self) -> int:
        """Width of the proposed rows."""
        return self._model.vocabulary_size if self._vocabulary is None else self._vocabulary

    def begin_response(self, target: Any, draft_length: DraftLength) -> None:
        self._model.forget_if_changed()
        self._draft_length, self._tree, self._begins, self.singly, self.start = draft_length, None, True, 0, 0

    def reset(self) -> None:
        """Forget the last response, whose beginning the next one may otherwise reuse."""
        self._tree = None
        self._model.reset()

    @torch.inference_mode()
    def read(self, token_ids: list[int], rows: int) -> Tensor:
        """Return the logits after each of the last ``rows`` tokens of a text, as wide as proposed rows."""
        self.reset()
        return self._fit(self._model.append(token_ids, rows))

    @torch.inference_mode()
    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Draw up to ``limit`` tokens, or a tree of so many levels, as far as draft length and context window allow.

        Tokens of a chain that a constraint forces come beside these, without a forward pass. After a token that the
        draft lacks it proposes nothing. Greedy proposals have no probabilities.
        """
        longest = sys.maxsize if self.max_length is None else self.max_length + self.start
        limit = min(limit, longest - len(token_ids))
        known = self._follow(token_ids)
        lacks = self._model.read_as is None and max(token_ids[known:]) >= self._model.vocabulary_size
        if limit <= 0 or lacks:
            return Proposal([], None)
        if isinstance(self._draft_length, TreeShape):
            return self._grow(self._draft_length, token_ids, limit, to_probs, generator)
        uniforms = torch.rand(limit, dtype=torch.float64, generator=generator, device=self._model.device)
        sequence, rows = list(token_ids), list[Tensor]()
        greedy, on_cpu = is_greedy(to_probs), self._model.device.type == "cpu"
        forced = getattr(to_probs, "forced", None)
        if len(token_ids) - 1 - known <= self.singly:
            for token in token_ids[known:-1]:
                self._model.append([token], rows=1)
        left = MAX_FORCED
        for i in range(limit):
            logits = self._fit(self._model.append(sequence[self.start + self._model.length :], rows=1))
            goes_on = self._draft_length.should_continue(logits[0])
            if not goes_on and getattr(self._draft_length, "unsure", None) == "discard":
                break
            if greedy:
                token = int(logits.argmax(-1))
                if not math.isfinite(logits[0, token].item()):  # NaN counts as the greatest
                    token = self.vocabulary
            else:
                rows.append(self._probs(logits, to_probs, sequence))
                if isinstance(generator, SharedNoise):
                    token = generator.token(rows[-1][0], len(sequence))
                else:
                    token = draw_one(rows[-1][0], uniforms[i]) if on_cpu else int(draw(rows[-1], uniforms[i : i + 1]))
            check_drawn("draft", token, logits, len(sequence))
            sequence.append(token)
            if forced is not None:  # these need no row: they are read with the next token that does
                sure = forced(sequence, min(left, longest - len(sequence)))
                rows, sequence, left = [*rows, one_hot(sure, rows[-1])], sequence + sure, left - len(sure)
            if not goes_on or not left or len(sequence) == longest:
                break
        return Proposal(sequence[len(token_ids) :], torch.cat(rows) if rows else None)

    def _grow(
        self,
        shape: TreeShape,
        token_ids: list[int],
        limit: int,
        to_probs: LogitsToProbs,
        generator: torch.Generator | None,
    ) -> Proposal:
        """Grow a tree of up to ``limit`` levels, reading those tokens that may get children."""
        start = place = len(token_ids)  # where the children of the tokens that were read last stand

        def read(tree: GrowingTree, nodes: list[int]) -> tuple[Tensor, Tensor]:
            nonlocal place
            place = start + len(tree.tokens_to(nodes[0]))
            if nodes == [ROOT]:
                logits = self._model.append(token_ids[self._model.length :], rows=1)
            else:
                first, new = len(tree.read), tree.begin_reading(nodes)
                inputs = {} if tree.reads_chain else tree_inputs(start, tree.read_parents, first)
                logits = self._model.append(new, len(new), **inputs)
            logits = self._fit(logits)
            texts = ([*token_ids, *tree.tokens_to(node)] for node in nodes)
            probs = [self._probs(logits[i : i + 1], to_probs, text) for i, text in enumerate(texts)]
            return logits, probs[0] if len(probs) == 1 else torch.cat(probs)

        def choose(logits: Tensor, probs: Tensor, count: int, num_drawn: int, taken: Tensor) -> tuple[Tensor, Tensor]:
            if isinstance(generator, SharedNoise):
                return first_to_arrive(logits, probs, count, generator, place, taken)
            return choose_children(logits, probs, count, num_drawn, generator, taken)

        if shape.num_looked_up:
            self._index.follow(token_ids)
        branches = self._index.continuations(limit) if shape.num_looked_up else []
        tree = grow(shape, branches, limit, read, choose)
        if not tree.reads_chain:
            self._tree = start, Proposal([tree.token_ids[node] for node in tree.read], None, tree.read_parents)
        return tree.proposal()

    def _follow(self, token_ids: list[int]) -> int:
        """Keep of the cache what it shares with the sequence and return how much; the last token is fed again."""
        if self._tree is not None:
            (start, tree), self._tree = self._tree, None
            self._model.keep(path_places(start, tree.path_along(token_ids[start:-1])))
        if self._begins:
            self._model.recall(token_ids[self.start :])
            self._begins = False
        return self.start + self._model.read_on(token_ids[self.start :])

    def _fit(self, logits: Tensor) -> Tensor:
        if self._vocabulary is not None and logits.shape[-1] != self._vocabulary:  # a negative pad cuts
            logits = functional.pad(logits, (0, self._vocabulary - logits.shape[-1]), value=-torch.inf)
        return logits if self._excluded is None else logits.index_fill(-1, self._excluded, -torch.inf)

    def _probs(self, logits: Tensor, to_probs: LogitsToProbs, text: list[int]) -> Tensor:
        """Return what is drawn from: anything of the draft's, where a constraint leaves it none of its tokens."""
        probs = to_probs(logits, text)
        if self._excluded is not None and probs[0, 0].isnan() and logits.amax().isfinite():
            return logits.softmax(-1, dtype=probs.dtype)  # which is rejected, whatever is drawn
        return probs
