"""What we need of a tokenizer, its chat template, and whether a draft's tokens are those of its target."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from types import FrameType
from typing import Any, Protocol

TEMPLATE_SECONDS, MAX_TEMPLATE_TEXT = 5.0, 2**25
"""How long a chat template may run, and how many characters it may write."""


class Tokenizer(Protocol):
    """What we need of a target's tokenizer; those of transformers have it all."""

    @property
    def eos_token_id(self) -> Any:
        """The token that ends a text, if there is one."""

    @property
    def all_special_ids(self) -> list[int]:
        """Tokens that stand for no text."""

    def __len__(self) -> int: ...

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any:
        """Return an object whose ``input_ids`` are a text's tokens."""

    def decode(
        self, token_ids: list[int], *, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str: ...

    def get_vocab(self) -> dict[str, int]: ...

    def convert_ids_to_tokens(self, token_id: int) -> Any: ...


def as_chat_prompt(tokenizer: Any, *messages: str, system: str | None = None) -> str:
    r"""Return the prompt that the model's chat template makes of a user's message.

    Further messages are the answer to it, the user's next one, and so on; ``system`` stands before all of them. A
    beginning-of-text token is left out of the prompt if the tokenizer adds it to every text, so that there are not two.
    """
    if not tokenizer.chat_template:
        raise ValueError(
            "the target has no chat template: leave out --chat, and write the prompt as the model wants it"
        )
    conversation = [] if system is None else [{"role": "system", "content": system}]
    roles = cycle(("user", "assistant"))
    conversation += [{"role": role, "content": message} for role, message in zip(roles, messages, strict=False)]
    prompt = conversation_prompt(tokenizer, conversation)
    if system is not None and system.strip() not in prompt:
        raise ValueError("the target's chat template has no place for a system message: leave out --system")
    return prompt


@contextmanager
def template_time(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` where a template of Jinja runs for longer, which is looked at on each of its lines."""
    end, before = math.inf, sys.gettrace()

    def look(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal end
        if frame.f_code.co_filename != "<template>":
            return None
        end = min(end, time.monotonic() + seconds)  # from the template's first line on: imports may come before
        if time.monotonic() > end:
            raise TimeoutError(f"it takes longer than {seconds:g} seconds")
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


def conversation_prompt(tokenizer: Any, conversation: list[dict[str, Any]], **options: Any) -> str:
    if not tokenizer.chat_template:
        raise ValueError("the target has no chat template: give a prompt as the model wants it, and no messages")
    wanted = {"add_generation_prompt": True} | options | {"tokenize": False}
    try:
        with template_time(TEMPLATE_SECONDS):
            prompt = str(tokenizer.apply_chat_template(conversation, **wanted))
        if len(prompt) > MAX_TEMPLATE_TEXT:
            raise ValueError(f"it writes {len(prompt):,} characters, of which {MAX_TEMPLATE_TEXT:,} are allowed")
    except Exception as error:  # templates are programs, and raise what they like
        raise ValueError(f"the target's chat template fails: {' '.join(str(error).split())}") from error
    first, begins = tokenizer.bos_token, tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]
    return prompt.removeprefix(first) if first and begins else prompt


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
