"""What we need of a tokenizer, whoever made it, and prompts by its chat template."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
