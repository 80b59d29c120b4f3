"""What a request asks of this server: its body, and the settings, tools and grammar that it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cactus_decoding.core.constraints.grammar import Grammar
from cactus_decoding.engines.llama_cpp.server.marks import CallMarks
from cactus_decoding.engines.llama_cpp.server.tools import Tools, form_of
from cactus_decoding.engines.openai.bodies import ChatBody, CompletionBody
from cactus_decoding.engines.openai.keys import Marks


@dataclass(frozen=True)
class CompletionParams:
    """What a request asks for, checked.

    Attributes:
        body: its fields.
        settings: by the names of `Request.from_dict`; without ``max_new_tokens`` for as many tokens as there is room.
        tools: that the answer may call.
        grammar: of the answer; None where anything may be written, or one of some choices.
        choices: answers of which it is one, by the exact probability of each; None for any other.
        visible: tokens without a text that are shown, because they are marks of calls.
    """

    body: CompletionBody | ChatBody
    settings: dict[str, Any]
    tools: Tools | None
    grammar: Grammar | None
    choices: tuple[str, ...] | None = None
    visible: frozenset[int] = frozenset()

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return isinstance(self.body, ChatBody)


def read_completion(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    chat: bool,
    marks: CallMarks | None = None,
    thinking: Marks | None = None,
) -> CompletionParams:
    """Check a request.

    Args:
        given: its JSON object.
        defaults: settings of requests that say nothing, by the names of `Request.from_dict`.
        chat: whether it is a conversation.
        marks: by which the model writes calls, if they are known.
        thinking: the tokens around a thinking part, if the model's chat template has such marks.

    Raises:
        TypeError: for a value of the wrong type, or a field that is missing.
        ValueError: for an unknown name, or a value that is out of range or not served.

    Example:
        >>> asked = read_completion({"prompt": "Hi", "acceptance_rule": "cactus:delta=1"}, {}, chat=False)
        >>> asked.settings["rule"], asked.settings["temperature"]
        ('cactus:delta=1', 1.0)
    """
    body = (ChatBody if chat else CompletionBody).read(given)
    settings, tools = body.settings(defaults, thinking), Tools.of(body.given)
    form = form_of(body.given, tools, marks)
    grammar, choices = (form, None) if form is None or isinstance(form, Grammar) else (None, form)
    visible = frozenset(marks.special.values()) if marks is not None and tools is not None else frozenset[int]()
    return CompletionParams(body, settings, tools, grammar, choices, visible)
