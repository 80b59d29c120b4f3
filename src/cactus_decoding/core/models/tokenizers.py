"""What we need of a tokenizer, chat templates, tokens as text that can be shown, and how two vocabularies differ."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from cactus_decoding.core.models.base import num_shared

TEMPLATE_SECONDS, MAX_TEMPLATE_TEXT = 5.0, 2**25
"""How much processor time a chat template may take, and how many characters it may write."""


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
    """Raise `TimeoutError` where a template of Jinja takes more processor time, looked at on each of its lines."""
    end, before = math.inf, sys.gettrace()

    def look(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal end
        if frame.f_code.co_filename != "<template>":
            return None
        end = min(end, time.thread_time() + seconds)  # from the template's first line on: imports may come before
        if time.thread_time() > end:
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
        instead = _drafts_to_use_instead(target, draft)
        raise ValueError(f"{told}; a draft may differ in {MAX_DIFFERING:.0%} of them ({instead})")
    logger.warning("%s; the draft proposes none of these", told)
    stand_in = 0 if draft.eos_token_id is None else int(draft.eos_token_id)
    read_as = {i: theirs.get(named[i], i if i in drafted else stand_in) for i in differing if i in named}
    return DifferingTokens(tuple(differing), read_as)


def _drafts_to_use_instead(target: Tokenizer, draft: Tokenizer) -> str:
    """Return what drafts for a target whose tokens the draft given does not share."""
    from transformers import PreTrainedTokenizerBase

    ways = "'suffix' drafts for any target"
    if all(isinstance(each, PreTrainedTokenizerBase) for each in (target, draft)):
        return (
            f"{ways}, and transformers' cross-tokenizer candidate generator, given to speculative_generate, for others"
        )
    return f"{ways}, a smaller model of the target's family or its own file quantised harder has the same tokens"


def _shown(token: str | None) -> str:
    return "none" if token is None else repr(token)


Told = TypeVar("Told")  # what is known of a token, such as its `Fate`

UNFINISHED = "\ufffd"  # what a tokenizer writes for bytes that are not a whole character yet


@dataclass(frozen=True)
class DecodedPart(Generic[Told]):
    text: str
    fate: Told


class IncrementalDetokenizer(Generic[Told]):
    """Decodes token by token.

    A token may hold a part of a UTF-8 character: the character belongs to the token that completes it. Text that might
    turn out to begin a stop string is held back too.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._context: list[int] = []  # the tokens decoded before: a tokenizer may drop a leading space
        self._waiting: list[tuple[int, Told]] = []  # tokens that do not end in a whole character
        self._held: list[DecodedPart[Told]] = []  # parts that may be cut
        self._settled = 0  # characters of all tokens but those that wait

    @property
    def num_characters(self) -> int:
        """How many whole characters the tokens so far have, those that are held back included."""
        before, waiting = len(self._decode(self._context)), [token for token, _ in self._waiting]
        return self._settled + len(self._decode(self._context + waiting).removesuffix(UNFINISHED)) - before

    def push(self, token_id: int, fate: Told) -> list[DecodedPart[Told]]:
        """Take a token; return the parts that can now be shown."""
        self._waiting.append((token_id, fate))
        if self._decode(self._context + [token for token, _ in self._waiting]).endswith(UNFINISHED):
            return []
        self._held += self._split_waiting()
        return self._release(len(self._text_held()) - self._length_of_a_started_stop())

    def finish(self) -> list[DecodedPart[Told]]:
        """Return what was held back, cut before a stop string."""
        self._held += self._split_waiting()
        text = self._text_held()
        return self._release(min([text.index(s) for s in self._stop if s in text], default=len(text)))

    def _split_waiting(self) -> list[DecodedPart[Told]]:
        """Share the text of the waiting tokens out: each gets what is settled once it is there."""
        waiting = [token for token, _ in self._waiting]
        whole = self._decode(self._context + waiting)
        before = settled = len(self._decode(self._context))
        parts = []
        for count, (_, fate) in enumerate(self._waiting, start=1):
            text = self._decode(self._context + waiting[:count])
            end = max(settled, num_shared(text, whole))
            parts.append(DecodedPart(whole[settled:end], fate))
            settled = end
        self._settled += len(whole) - before
        self._context, self._waiting = waiting or self._context, []
        return parts

    def _release(self, length: int) -> list[DecodedPart[Told]]:
        """Return the first ``length`` characters that are held, part by part, and keep the rest."""
        released: list[DecodedPart[Told]] = []
        while self._held and length >= len(self._held[0].text):
            released.append(self._held.pop(0))
            length -= len(released[-1].text)
        if self._held and length > 0:
            first = self._held.pop(0)
            released.append(DecodedPart(first.text[:length], first.fate))
            self._held.insert(0, DecodedPart(first.text[length:], first.fate))
        return [part for part in released if part.text]

    def _length_of_a_started_stop(self) -> int:
        """Return the length of the longest end of the held text that begins (or holds) a stop string."""
        text = self._text_held()
        whole = [len(text) - text.index(s) for s in self._stop if s in text]
        begun = [n for s in self._stop for n in range(1, min(len(s), len(text) + 1)) if text.endswith(s[:n])]
        return max(whole + begun, default=0)

    def _text_held(self) -> str:
        return "".join(part.text for part in self._held)

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
