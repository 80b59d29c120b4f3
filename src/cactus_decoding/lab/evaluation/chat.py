"""Whether prompts are asked by a target's chat template, and how files record that."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cactus_decoding import zoo
from cactus_decoding.core.models.loading import check_model_name, load_tokenizer, only_cached
from cactus_decoding.core.models.tokenizers import Tokenizer, as_chat_prompt

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chat:
    """Prompts are asked by the target's chat template, after a system message if there is one."""

    system: str | None = None

    def __str__(self) -> str:
        return "chat" if self.system is None else f"chat, system {self.system!r}"


def as_settings(chat: Chat | None) -> dict[str, Any]:
    """Return what files say of a chat; nothing if there is none."""
    return {} if chat is None else {"chat": True} | ({} if chat.system is None else {"system": chat.system})


def from_settings(values: Mapping[str, Any]) -> Chat | None:
    return Chat(values.get("system")) if values.get("chat") else None


def choose_chat(chat: bool | None, system: str | None, target: str) -> Chat | None:
    """Return how a target is asked: by its template if it has one and nobody says otherwise; None for plain text.

    The bundled target's problems are written in its template already, so it counts only if it is asked for. A template
    that the user did not choose is logged.
    Raises `ValueError` for a chat without a template, and a system message without a chat or a place in the template.
    """
    if chat is False or (chat is None and target == zoo.BUNDLED):
        if system is not None:
            raise ValueError("--system is the system message of a chat: give --chat too, or leave it out")
        return None
    if chat is None and system is None and "://" in target:  # a place that only vLLM reads
        return None
    if target != zoo.BUNDLED:
        check_model_name("target", target, [zoo.BUNDLED])
    tokenizer: Any = tokenizer_of(target)
    if chat is None and system is None and not getattr(tokenizer, "chat_template", None):
        return None
    as_chat_prompt(tokenizer, "Hello.", system=system)  # raises
    if chat is None:
        logger.info("the target is asked by its chat template (chat); --no-chat continues prompts as plain text")
    return Chat(system)


def tokenizer_of(target: str) -> Tokenizer:
    if target == zoo.BUNDLED:
        return load_tokenizer("target", zoo.path("target"))
    return load_tokenizer("target", target, local=only_cached("target", target))
