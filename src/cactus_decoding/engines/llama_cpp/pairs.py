"""Pairs of GGUF files: what drafts for a target, and pairs that answer at the same time with the same weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from weakref import ref

from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.registry import DRAFTERS, parse_drafter
from cactus_decoding.core.models.loading import check_model_name, load_cached, load_tokenizer
from cactus_decoding.core.models.tokenizers import compare_vocabularies
from cactus_decoding.core.pair import Pair, Reservation
from cactus_decoding.core.spelling import read_kept_prompts
from cactus_decoding.core.types import Drafter
from cactus_decoding.engines.llama_cpp.models.model import PAYS, LlamaCppModel, side_by_side
from cactus_decoding.engines.llama_cpp.models.passes import BatchScheduler, release_on_exit
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile, parse_gguf
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
from cactus_decoding.engines.llama_cpp.models.weights import GgufWeights


def load_drafter(draft: str | Path | Drafter, target: LlamaCppModel, tokenizer: GgufTokenizer) -> Drafter:
    """Return what drafts, with the target's threads and a context as long."""
    if isinstance(draft, Drafter):
        return draft
    named = parse_drafter(draft) if isinstance(draft, str) else None
    if named is not None:
        return named.drafter(target.model)
    check_model_name("draft", draft, DRAFTERS)
    file = parse_gguf(draft)
    if file is None:
        differing = compare_vocabularies(tokenizer, load_tokenizer("draft", draft), target.name, str(draft))
        return ModelDrafter(load_cached("draft", draft, "auto", target.device), target.vocabulary_size, differing)
    settings = file.settings
    weights = GgufWeights.load("draft", file.path, gpu_layers=settings.gpu_layers)
    theirs = GgufTokenizer(weights)
    same = tokenizer.has_all_tokens_of(theirs)  # which takes less than to name what differs
    differing = None if same else compare_vocabularies(tokenizer, theirs, target.name, str(draft))
    size = settings.context_size or min(weights.trained_length, target.max_length)
    settings = replace(settings, context_size=size, threads=settings.threads or target.threads)
    return ModelDrafter(LlamaCppModel(weights, settings, copies=False), target.vocabulary_size, differing)


def load_gguf_pair(file: GgufFile, draft: str | Path, kept_prompts: int | str) -> Pair:
    target = LlamaCppModel.load("target", file)
    tokenizer = GgufTokenizer(target.model)
    return Pair(target, load_drafter(draft, target, tokenizer), tokenizer, kept_prompts=kept_prompts)


class PairPool:
    def __init__(self, pairs: list[Pair], passes: BatchScheduler | None = None) -> None:
        self.pairs, self._passes = pairs, passes
        # who holds a pair, as long as that is somebody: an interruption may lose it, but no pair
        self._holders, self._lock = dict[int, ref[Reservation]](), threading.RLock()
        self._used, self._uses = dict.fromkeys(map(id, pairs), 0), count(1)
        self._owners: dict[int, int | None] = {}  # of what pairs have read
        self._models: list[tuple[LlamaCppModel, ...]] = []  # of each pair, where one may copy what another one has read

    @classmethod
    def load(cls, file: GgufFile, draft: str | Path, parallel: int, kept_prompts: int | str) -> PairPool:
        pair = load_gguf_pair(file, draft, kept_prompts)
        if parallel == 1:
            return cls([pair])
        # those that are kept beside the ones in the caches are shared out; a text is looked for in every seat
        number, room = read_kept_prompts(kept_prompts)
        kept = number and 1 + max(number - parallel, 0) // parallel if room is None else f"{room // parallel}B"
        drafter, target = pair.drafter, pair.target
        draft_model = getattr(drafter, "model_cache", None)
        divided = [model for model in (draft_model, target) if isinstance(model, LlamaCppModel)]
        passes, models = side_by_side(divided, parallel)
        pairs = []
        for own in models:
            if isinstance(draft_model, LlamaCppModel) and isinstance(drafter, ModelDrafter):
                proposer: Drafter = drafter.on(own[0])
            else:
                proposer = drafter.twin()
            pairs.append(Pair(own[-1], proposer, pair.tokenizer, kept_prompts=kept))
        pool = cls(pairs, passes)
        if kept and not target.model.recurrent:
            pool._models = models
            for number, own in enumerate(models):
                for place, model in enumerate(own):
                    model.lenders = partial(_lenders, ref(pool), number, place)
        return pool

    @contextmanager
    def take(self, prompt_ids: list[int], cancelled: threading.Event, owner: int | None = None) -> Iterator[Pair]:
        """Have the free pair that has read most of a prompt, or the one that was used longest ago."""
        locks = [self._lock] if self._passes is None else [self._lock, self._passes.changed]
        with release_on_exit(*locks), Reservation() as held:
            with self._lock:
                free = [pair for pair in self.pairs if not self._is_held(pair)]
                mine = [self._worth(pair, prompt_ids) * (self._owners.get(id(pair)) == owner) for pair in free]
                best = [pair for pair, worth in zip(free, mine, strict=True) if worth == max(mine)]
                chosen = sorted(best, key=lambda pair: self._used[id(pair)])[0]
                self._holders[id(chosen)], self._used[id(chosen)] = ref(held), next(self._uses)
            chosen.reclaim()  # of an answer that failed something may be left, such as in its traceback
            if self._owners.get(id(chosen)) != owner:
                chosen.forget()
                self._owners[id(chosen)] = owner
            chosen.cancel_by(cancelled)
            with nullcontext() if self._passes is None else self._passes.response():
                yield chosen

    def _worth(self, pair: Pair, prompt_ids: list[int]) -> int:
        """Return how many tokens need not be read; none where much of another text would be lost for them.

        That is more than half of it, or anything, where another pair can have a copy of what it begins with.
        """
        target = pair.target
        kept = target.num_kept_here(prompt_ids) if isinstance(target, LlamaCppModel) else target.num_kept(prompt_ids)
        lost = target.length - kept
        return 0 if lost > (PAYS if self._models else kept) else kept

    def _is_held(self, pair: Pair) -> bool:
        holder = self._holders[id(pair)]() if id(pair) in self._holders else None
        return holder is not None and holder.active


def _lenders(pool: ref[PairPool], number: int, place: int) -> list[LlamaCppModel]:
    """Return the models at a place of other pairs that have read for the same owner as the pair of a number."""
    alive = pool()
    if alive is None:
        return []
    owners = [alive._owners.get(id(pair)) for pair in alive.pairs]
    theirs = enumerate(zip(alive._models, owners, strict=True))
    return [models[place] for other, (models, owner) in theirs if other != number and owner == owners[number]]
