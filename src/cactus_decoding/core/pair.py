"""A target and what drafts for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from statistics import median
from typing import Any
from weakref import ref

import torch

from cactus_decoding import zoo
from cactus_decoding.core.drafting.automatic import AutoLength
from cactus_decoding.core.drafting.lengths import FixedLength
from cactus_decoding.core.drafting.lookup import SuffixDrafter
from cactus_decoding.core.drafting.measuring import PROMPTS, text_to_time
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.registry import LOOK_UP, check_model_names, parse_drafter
from cactus_decoding.core.loop import decode
from cactus_decoding.core.models import loading
from cactus_decoding.core.models.base import BaseCachedModel, SavedRoom
from cactus_decoding.core.models.tokenizers import Tokenizer, compare_vocabularies
from cactus_decoding.core.request import Request
from cactus_decoding.core.sampling.params import SamplingFn, SamplingParams
from cactus_decoding.core.spelling import read_kept_prompts
from cactus_decoding.core.types import Drafter, DraftLength, LogitsToProbs, Proposal, check_drafter
from cactus_decoding.zoo import BUNDLED
from cactus_decoding.zoo.word_problems import word_problems

_TIMED_STEPS = 24


class _Recites(Drafter):
    """Proposes the tokens of a text, whatever the response is."""

    def __init__(self, text: list[int]) -> None:
        self._text = text

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        return Proposal(self._text[len(token_ids) :][:limit], None)


def _sample_text(tokenizer: Tokenizer, bundled: bool) -> list[int]:
    text = PROMPTS[1]
    if bundled:
        problem = next(word_problems("validation"))
        text = f"{problem.prompt} {problem.solution}"
    return list(tokenizer(text).input_ids)


@dataclass(eq=False)
class Reservation(AbstractContextManager["Reservation"]):
    """Held by the response that runs on a pair, ``active`` until it is left; the pair only refers to it weakly."""

    active: bool = True

    def __exit__(self, *_: object) -> None:
        self.active = False


@dataclass(eq=False)
class Models:
    """A target and what drafts for it, lent to one response at a time; without a tokenizer, a response has no text."""

    target: BaseCachedModel
    drafter: Drafter
    tokenizer: Tokenizer | None
    _reservations: list[ref[Reservation]] = field(default_factory=list, init=False, repr=False)

    def reserve(self) -> Reservation:
        """Reserve the models for one response until it is left or garbage-collected.

        Raises:
            RuntimeError: while another response runs on them.
        """
        held = Reservation()
        # no lock, which an interruption could leave locked: threads agree on who was the first to append
        self._reservations.append(ref(held, self._reservations.remove))
        earlier = takewhile(lambda each: each is not held, [each() for each in self._reservations[:]])
        if any(each.active for each in earlier if each is not None):
            held.active = False
            raise RuntimeError(
                "a pair serves one response at a time, and another one has begun on it: finish that one or close() it "
                "first, or run this one on pair.twin(), which has the same models with caches of their own"
            )
        return held

    def cancel_by(self, event: threading.Event | None) -> None:
        """Let another thread end a response: where the event is set, what is read next raises `Cancelled`."""
        for cache in self._caches:
            cache.cancel_by(event)

    @property
    def _caches(self) -> list[BaseCachedModel]:
        drafts = getattr(self.drafter, "model_cache", None)
        return [self.target] if drafts is None else [self.target, drafts]

    def check(self, request: Request) -> None:
        """Raise `TypeError` or `ValueError` where a request does not go with the models."""
        request.check_drafter(self.drafter)
        if request.tree is not None:
            self.target.check_reads_trees()

    def pass_times(self, draft_length: DraftLength) -> dict[str, Any] | None:
        """Return the pass times by which a draft length chooses, and their ``source``, as plain values.

        None for one that uses none, or has not measured them yet.
        """
        return draft_length.decided_by(self.target, self.drafter) if isinstance(draft_length, AutoLength) else None

    @property
    def stop_token_ids(self) -> list[int]:
        """The tokens that end a sequence: those that the target names, or else its tokenizer's."""
        given, theirs = self.target.stop_token_ids, getattr(self.tokenizer, "eos_token_id", None)
        return given if given is not None else [] if theirs is None else [int(theirs)]


@dataclass(eq=False)
class Pair(Models):
    """Models loaded and fitted to each other; one response at a time runs on it.

    Attributes:
        target: the verifying model.
        drafter: where proposals come from.
        tokenizer: the target's.
        bundled: whether the target is the bundled one, which knows word problems only.
        kept_prompts: how many texts stay cached, so that a response reuses the longest cached prefix of its prompt. The
            last text stays in the caches, others as copies of them, of which the least recently used are dropped. With
            0, each response reads its whole prompt. A size such as ``2GiB`` limits the memory of the copies instead of
            their number. Probabilities after a prompt that was read in parts may differ in their last bits.

    Raises:
        TypeError: for a drafter that is none, such as a model, or ``kept_prompts`` that is no integer or text.
        ValueError: for ``kept_prompts`` out of range, or text that is neither a number nor a size.
    """

    tokenizer: Tokenizer
    bundled: bool = False
    kept_prompts: int | str = 1

    def __post_init__(self) -> None:
        check_drafter(self.drafter)
        number, room = read_kept_prompts(self.kept_prompts)
        self.kept_prompts = number if room is None else self.kept_prompts
        for cache in self._caches:
            cache.max_saved, cache.room = max(number - 1, 0), None if room is None else SavedRoom(room, self._caches)
        self.target.sample_text = partial(_sample_text, self.tokenizer, self.bundled)

    def reserve(self) -> Reservation:
        """Reserve the pair for one response until it is left or garbage-collected.

        Without kept prompts the caches are emptied first.

        Raises:
            RuntimeError: while another response runs on the pair.
        """
        held = super().reserve()
        if not self.kept_prompts:
            try:
                self._empty()
            except BaseException:
                held.active = False
                raise
        return held

    def forget(self) -> None:
        """Forget all texts: the next response reads its whole prompt.

        Raises:
            RuntimeError: while a response runs on the pair.
        """
        with self.reserve():
            self._empty()

    def reclaim(self) -> None:
        """Take the pair from a response that was left before its end, and forget its texts.

        For whoever lends the pair, and knows that such a response takes no more steps, whatever still refers to it.
        """
        left = [held for each in self._reservations[:] if (held := each()) is not None and held.active]
        for held in left:
            held.active = False
        if left:
            self._empty()

    def _empty(self) -> None:
        self.target.reset()
        self.drafter.reset()

    @property
    def chooses(self) -> bool:
        """Whether the number of proposals adapts to this machine if nobody gives it."""
        return not self.bundled and self.drafter.may_be_left_out

    def prepare(self, draft_length: DraftLength) -> None:
        """Let a draft length measure what it needs, such as pass times, before a response is timed.

        While another response runs on the pair, the first step does that instead.
        """
        if not isinstance(draft_length, AutoLength):
            return
        try:
            held = self.reserve()
        except RuntimeError:
            return
        with held:
            draft_length.prepare(self.target, self.drafter, self.step_seconds)

    def step_seconds(self, clock: Callable[[], float]) -> tuple[float, float]:
        """Return the median time of a step by a clock: without proposals, and with one."""
        request, to_probs, usual = Request(), SamplingFn(SamplingParams()), list[float]()
        generator = torch.Generator(self.target.device).manual_seed(0)
        recited = text_to_time(self.target, 4 * _TIMED_STEPS)
        text = recited[:_TIMED_STEPS]
        verifier = request.verifier(to_probs, to_probs, request.sampling, None)
        try:
            for count in (0, 1):
                steps = decode(
                    self.target, _Recites(recited), text, verifier, to_probs, draft_length=FixedLength(count),
                    max_length=4 * len(text), stopping_criteria=lambda ids: len(ids) >= 2 * len(text),
                    generator=generator,
                )  # fmt: skip
                taken = [clock() for _ in steps]
                usual.append(median(after - before for before, after in pairwise(taken)))
        finally:
            self.target.reset()
        return usual[0], usual[1]

    def twin(self) -> Pair:
        """Return a pair with the same weights and its own caches, so that two responses can take turns.

        Raises:
            TypeError: for a drafter that keeps more than a model's cache and cannot be doubled.
        """
        return replace(self, target=self.target.twin(), drafter=self.drafter.twin())

    def with_draft(self, draft: str | Path) -> Pair:
        """Return the same target with another draft, by its name; raises what `load_pair` does.

        Example:
            >>> load_pair().with_draft("ngram").drafter
            NgramDrafter(max_ngram_size=3, min_ngram_size=1)
        """
        check_model_names(None, draft)
        named = parse_drafter(draft) if isinstance(draft, str) else None
        if named is not None:
            return replace(self, drafter=named.drafter(self.target.model))
        name = zoo.draft_path(draft) or draft
        local = loading.only_cached("draft", name)
        theirs = loading.load_tokenizer("draft", name, local=local)
        differing = compare_vocabularies(self.tokenizer, theirs, self.target.name, str(draft))
        dtype = torch.float32 if self.bundled else "auto"
        model = loading.load_cached("draft", name, dtype, self.target.device, local=local)
        return replace(self, drafter=ModelDrafter(model, self.target.vocabulary_size, differing))


def load_pair(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    kept_prompts: int | str = 1,
) -> Pair:
    """Load a target and a draft that share a tokenizer: the bundled pair, or any local path, GGUF file or hub name.

    Code that comes with a model is never run.

    Args:
        target: path or name of the verifying model; None or ``bundled`` for the bundled one. A name that ends in
            ``.gguf`` is read by llama.cpp; as text, its settings may follow: ``model.gguf:context_size=8192``.
        draft: path or name of the proposing model; ``suffix`` (the default) or ``ngram`` to look proposals up in the
            text; or ``early_exit:layers=3`` for the target's own first layers. With the bundled target also
            ``bundled:worded`` (its default) or ``bundled:draft``.
        dtype: type of the weights; ``auto`` takes what the checkpoint says, or float32 where that is faster on this CPU
            and fits into half of the free memory, and for the bundled pair. GGUF files have their own.
        device: where to run; a GPU if there is one, else the CPU. With a GGUF file, probabilities are on the CPU, and
            its ``gpu_layers`` says what a GPU holds.
        kept_prompts: see `Pair`.

    Raises:
        ValueError: if a model cannot be loaded, or the vocabularies differ in more than 5 % of the target's tokens. A
            draft that differs in fewer proposes none of these.

    Example:
        >>> pair = load_pair()
        >>> pair.tokenizer.eos_token
        '<eos>'
    """
    read_kept_prompts(kept_prompts)
    bundled = target is None or target == BUNDLED
    if bundled:
        dtype = torch.float32 if dtype == "auto" else dtype
        draft = BUNDLED if draft is None else draft
        target, draft = zoo.path("target"), zoo.draft_path(draft) or draft
    elif draft is None:
        draft = LOOK_UP
    assert target is not None
    assert draft is not None
    named = parse_drafter(draft) if isinstance(draft, str) else None
    check_model_names(target, draft)
    dtype = loading.checked_dtype(dtype)
    device = loading.checked_device(loading.device_beside_files(target, None if named else draft, dtype, device))
    local = loading.only_cached("target", target)
    tokenizer = loading.load_tokenizer("target", target, local=local)
    draft_local = named is None and loading.only_cached("draft", draft)
    differing = None
    if named is None:  # compared first: weights may be large
        theirs = loading.load_tokenizer("draft", draft, local=draft_local)
        differing = compare_vocabularies(tokenizer, theirs, str(target), str(draft))
    verifier = loading.load_cached("target", target, dtype, device, local=local)
    if named is not None:
        return Pair(verifier, SuffixDrafter(), tokenizer, bundled, kept_prompts).with_draft(draft)
    proposing = loading.load_cached("draft", draft, dtype, device, local=draft_local)
    drafter = ModelDrafter(proposing, verifier.vocabulary_size, differing)
    return Pair(verifier, drafter, tokenizer, bundled, kept_prompts)
