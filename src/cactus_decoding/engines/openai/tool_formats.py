"""How models write calls of functions: marks, and how arguments are written between them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.constraints.schema import TYPE_NAMES, named_values, value_types

_NAME = "NAME"  # of the function, in heads


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes calls, as its chat template teaches it."""

    name: str
    opening: str  # the mark before a call, or before the first one of several
    head: str = '{"name": NAME, "arguments": '  # of a call, up to its arguments
    tail: str = "}"
    before: str = ""  # between the mark and the head
    between: str = ""
    after: str = ""
    arguments: Literal["json", "xml"] = "json"
    repeats: bool = False  # whether each call has a mark of its own

    def head_of(self, name: str) -> str:
        r"""Return how a call of a function begins.

        Example:
            >>> HERMES.head_of("add"), QWEN_XML.head_of("add")
            ('{"name": "add", "arguments": ', '<function=add>\n')
        """
        if self.head.startswith("{"):
            return self.head.replace(_NAME, json.dumps(name))
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(
                f"the model's chat template writes calls as {self.head.strip()}, which holds no name such as "
                f"{short_repr(name)}: it may have letters, digits, dots, dashes and underscores"
            )
        return self.head.replace(_NAME, name)


HERMES = ToolFormat("hermes", "<tool_call>", before="\n", after="\n</tool_call>", repeats=True)
QWEN_XML = ToolFormat(
    "qwen3_xml", "<tool_call>", "<function=NAME>\n", "</function>", "\n", "", "\n</tool_call>", "xml", repeats=True
)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", before="[", between=", ", after="]")
MISTRAL_NAMED = ToolFormat("mistral_named", "[TOOL_CALLS]", "NAME[ARGS]", "", repeats=True)
LLAMA = ToolFormat("llama3", "<|python_tag|>", '{"name": NAME, "parameters": ', between="; ")
UNMARKED = ToolFormat("unmarked", "")
TOOL_CALL_FORMATS = (HERMES, QWEN_XML, MISTRAL, MISTRAL_NAMED, LLAMA)
FUNCTION, PARAMETER = "<function=", "<parameter="
END_FUNCTION, END_PARAMETER = "</function>", "</parameter>"
CLOSING = "</tool_call>"
OPENINGS = (HERMES.opening, MISTRAL.opening, LLAMA.opening)
# a call without a mark, up to its arguments; only spaces of JSON
UNMARKED_BEGINS = r'\{[ \t\n\r]*"name"[ \t\n\r]*:[ \t\n\r]*"'
UNMARKED_GOES_ON = r'"[ \t\n\r]*,[ \t\n\r]*"(arguments|parameters)"[ \t\n\r]*:'


def format_of(template: str | None) -> ToolFormat | None:
    """Return the format that a chat template teaches, by its marks; None for one that teaches none of these."""
    text = template or ""
    if "tools" not in text:
        return None
    if FUNCTION in text:
        return QWEN_XML if PARAMETER in text and QWEN_XML.opening in text else None
    if HERMES.opening in text:
        return None if "<arg_key>" in text else HERMES
    if MISTRAL.opening in text:
        return MISTRAL_NAMED if "[ARGS]" in text else MISTRAL
    return LLAMA if LLAMA.opening in text or '"parameters"' in text else None


_LITERALS = {"True": "true", "False": "false", "None": "null"}  # as templates of Jinja write them


def as_json(text: str, schema: Any, whole: Any) -> str:
    r"""Return the JSON of an argument that is written as text between tags, by what its schema allows.

    A text stays a text where it may be one, unless it is JSON of another type that the schema names too. One line break
    on each side is of the tags.

    Example:
        >>> as_json("\n5\n", {"type": "integer"}, {}), as_json("\n5\n", {"type": "string"}, {})
        ('5', '"5"')
        >>> as_json("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, {}), as_json("True", {}, {})
        ('null', 'true')
    """
    said = text.removeprefix("\n").removesuffix("\n")
    types, values = value_types(schema, whole), named_values(schema, whole)
    quoted = json.dumps(said, ensure_ascii=False)
    if types == {"string"} or (values is not None and said in values):
        return quoted
    written = _LITERALS.get(said.strip(), said.strip())
    try:
        value = json.loads(written, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return quoted
    if "string" in types and (isinstance(value, str) or TYPE_NAMES[type(value)] not in types):
        return quoted
    return written


def refuse_constant(name: str) -> Any:
    """Raise for NaN and the infinities, which Python reads and which are no JSON."""
    raise ValueError(name)
