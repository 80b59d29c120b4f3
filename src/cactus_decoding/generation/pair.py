"""A target and what drafts for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import get_args
from weakref import ref

import torch
from transformers import PreTrainedTokenizerBase

from cactus_decoding import zoo
from cactus_decoding.arguments.checks import check_choice, shown
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.drafting.registry import DRAFTERS, parse_drafter
from cactus_decoding.models.cached import CachedModel, ForwardName, vocabulary_size
from cactus_decoding.models.loading import check_model_name, load_model, load_tokenizer, only_cached
from cactus_decoding.types import Drafter
from cactus_decoding.zoo import BUNDLED


@dataclass(eq=False)
class Turn:
    """What the response that runs on a pair holds; the pair has no more than a weak reference to it.

    Attributes:
        lasts: whether the response may take further steps.
    """

    lasts: bool = True


@dataclass(eq=False)
class Pair:
    """Models loaded and fitted to each other; one response at a time runs on it.

    Attributes:
        target: the verifying model.
        drafter: where proposals come from.
        tokenizer: of the target.
        bundled: whether the target is the bundled one, which knows word problems only.
    """

    target: CachedModel
    drafter: Drafter
    tokenizer: PreTrainedTokenizerBase
    bundled: bool = False
    _turns: list[ref[Turn]] = field(default_factory=list, init=False, repr=False)

    def take_turn(self) -> Turn:
        """Have the pair for one response, whose tokens are in both models' caches, until the turn is over or lost.

        Raises:
            RuntimeError: while another response has it.
        """
        turn = Turn()
        # no lock, which an interruption could leave locked: threads agree on who was the first to append
        self._turns.append(ref(turn, self._turns.remove))
        earlier = takewhile(lambda each: each is not turn, [each() for each in self._turns[:]])
        if any(each.lasts for each in earlier if each is not None):
            turn.lasts = False
            raise RuntimeError(
                "a pair serves one response at a time, and another one has begun on it: finish that one or close() it "
                "first, or run this one on pair.twin(), which has the same models with caches of their own"
            )
        return turn

    def twin(self) -> Pair:
        """Return a pair with the same weights and caches of its own, so that two responses can take turns.

        Raises:
            TypeError: for a drafter that keeps more than a model's cache and cannot be doubled.
        """
        return Pair(
            CachedModel(self.target.model, self.target.forward), self.drafter.twin(), self.tokenizer, self.bundled
        )

    @property
    def stop_token_ids(self) -> list[int]:
        """The target's end-of-sequence tokens."""
        given = self.target.model.generation_config.eos_token_id
        if given is None:
            given = self.tokenizer.eos_token_id
        if given is None:
            return []
        return list(given) if isinstance(given, (list, tuple)) else [int(given)]


def load_pair(
    target: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    forward: ForwardName = "auto",
) -> Pair:
    """Load a target and a draft that share a tokenizer: the bundled pair, or any local path or hub name.

    Code that comes with a model is never run.

    Args:
        target: path or name of the verifying model; None or ``bundled`` for the bundled one.
        draft: path or name of the proposing model, ``ngram`` for prompt lookup, or ``early_exit:layers=3`` for the
            target's own first layers; ``bundled:worded`` or ``bundled:draft`` for one that only goes with the bundled
            target, for which None or ``bundled`` takes the first.
        dtype: of the weights; ``auto`` takes what the checkpoint says, but float32 for the bundled pair, which is
            faster on most CPUs.
        device: where to run; a GPU if there is one, else the CPU.
        forward: how the target is read: ``transformers`` for its own forward pass, ``lean`` for this package's faster
            one or an error, ``auto`` for the faster one wherever that computes the same. A draft is read as ``auto``:
            whatever its rows are, proposals are drawn from them.

    Raises:
        ValueError: if a model cannot be loaded, the draft is missing, or the vocabularies differ; for an unknown
            ``forward``, and for ``lean`` where that is not the target's pass.

    Example:
        >>> pair = load_pair()
        >>> pair.tokenizer.eos_token
        '<eos>'
    """
    check_choice("forward", forward, get_args(ForwardName))  # before anything is loaded
    bundled = target is None or target == BUNDLED
    if bundled:
        dtype = torch.float32 if dtype == "auto" else dtype
        draft = BUNDLED if draft is None else draft
        target, draft = zoo.path("target"), zoo.draft_path(draft) or draft
    elif draft is None:
        raise ValueError(
            f"a draft is missing for target {str(target)!r}: give a model's path or name, 'ngram', or "
            "'early_exit:layers=3'"
        )
    assert target is not None
    assert draft is not None
    device, dtype = _device(device), _dtype(dtype)
    named = parse_drafter(draft) if isinstance(draft, str) else None
    check_names(target, draft)
    local = only_cached("target", target)
    tokenizer = load_tokenizer("target", target, local=local)
    draft_local = named is None and only_cached("draft", draft)
    if named is None:  # compared first: weights may be large
        theirs = load_tokenizer("draft", draft, local=draft_local)
        check_same_vocabulary(tokenizer, theirs, str(target), str(draft))
    verifier = CachedModel(load_model("target", target, dtype, device, local=local), forward)
    if named is not None:
        return Pair(verifier, named.drafter(verifier.model), tokenizer, bundled)
    drafter = ModelDrafter(
        load_model("draft", draft, dtype, device, local=draft_local), vocabulary_size(verifier.model)
    )
    return Pair(verifier, drafter, tokenizer, bundled)


def check_names(target: str | Path | None, *drafts: str | Path | None) -> None:
    """Raise `ValueError` for a target or a draft that can be no model; reads no weights and asks no hub."""
    if isinstance(target, str) and target.partition(":")[0] in DRAFTERS:
        raise ValueError(f"cannot load the target: {target!r} is a draft; give --draft {target}, and a model as target")
    if target is not None and target != BUNDLED:
        check_model_name("target", target, [BUNDLED, *DRAFTERS])
    for draft in drafts:
        if draft is None:
            continue
        if zoo.draft_path(draft) is not None:
            if target not in (None, BUNDLED):
                raise ValueError(f"a bundled draft goes with the bundled target, but not with {str(target)!r}")
        elif not (isinstance(draft, str) and parse_drafter(draft)):
            check_model_name("draft", draft, [BUNDLED, *DRAFTERS])


def _device(given: str | torch.device | None) -> torch.device:
    """Return a device that is there."""
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"device must be one that this machine has, but is {shown(given)}: {why}") from None
    return device


def _dtype(given: str | torch.dtype) -> str | torch.dtype:
    """Return a type of weights, or ``auto``."""
    dtype = getattr(torch, given, None) if isinstance(given, str) and given != "auto" else given
    if dtype != "auto" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype must be 'auto' or one of floating point, such as 'bfloat16', but is {shown(given)}")
    return dtype


def check_same_vocabulary(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, target_name: str, draft_name: str
) -> None:
    """Raise `ValueError` where a draft's tokens are not its target's."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return
    differing = sum(theirs.get(token) != token_id for token, token_id in ours.items())
    raise ValueError(
        f"the vocabularies of target {target_name!r} ({len(ours)} tokens) and draft {draft_name!r} "
        f"({len(theirs)} tokens) differ in {max(differing, abs(len(ours) - len(theirs)))} tokens; both must have the "
        "same tokens (for others, pass transformers' cross-tokenizer candidate generator to speculative_generate)"
    )
