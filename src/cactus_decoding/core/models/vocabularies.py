"""Whether a draft speaks its target's language, token for token, and what it does where it does not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from cactus_decoding.core.models.tokenizers import Tokenizer

logger = logging.getLogger(__name__)

MAX_DIFFERING = 0.05
"""Of the target's tokens: beyond this the draft has another tokenizer, and hardly any proposal would be kept."""


@dataclass(frozen=True)
class DifferingTokens:
    """Numbers that do not stand for the same token in a target and a draft.

    The draft proposes none of them: its probabilities are those of the others alone, and so every rule's output is what
    it is with any other draft. Where the text has one of them, the draft reads another token in its place.
    """

    token_ids: tuple[int, ...]  # the numbers, ascending
    # what the draft reads for each that the target may write: its own token of that text, where it has one; else the
    # same number, such as a reserved token that one of the models has given a name; else the end of a text, for a
    # number that the draft lacks
    read_as: Mapping[int, int]


def compare_vocabularies(
    target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str
) -> DifferingTokens | None:
    """Return in which tokens two vocabularies differ, and log how many these are; None where they are the same."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours == theirs:
        return None
    named, drafted = ({token_id: token for token, token_id in tokens.items()} for tokens in (ours, theirs))
    differing = sorted(i for i in named.keys() | drafted.keys() if named.get(i) != drafted.get(i))
    if not differing:  # names that stand for one number
        return None
    first = differing[0]
    told = (
        f"the vocabularies of target {target_name!r} ({len(ours)} tokens) and draft {draft_name!r} ({len(theirs)} "
        f"tokens) differ in {len(differing)} tokens, first in token {first}: {_shown(named.get(first))} and "
        f"{_shown(drafted.get(first))}"
    )
    if len(differing) > MAX_DIFFERING * len(ours):
        raise ValueError(f"{told}; a draft may differ in {MAX_DIFFERING:.0%} of them ({_other_ways(target, draft)})")
    logger.warning("%s; the draft proposes none of these", told)
    stand_in = 0 if draft.eos_token_id is None else int(draft.eos_token_id)
    read_as = {i: theirs.get(named[i], i if i in drafted else stand_in) for i in differing if i in named}
    return DifferingTokens(tuple(differing), read_as)


def _other_ways(target: Tokenizer, draft: Tokenizer) -> str:
    from transformers import PreTrainedTokenizerBase

    ways = "'suffix' drafts for any target"
    if all(isinstance(each, PreTrainedTokenizerBase) for each in (target, draft)):
        return (
            f"{ways}, and transformers' cross-tokenizer candidate generator, given to speculative_generate, for others"
        )
    return f"{ways}, a smaller model of the target's family or its own file quantised harder has the same tokens"


def _shown(token: str | None) -> str:
    return "none" if token is None else repr(token)
