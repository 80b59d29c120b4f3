"""What restricts the tokens of a response: what clients write, and how it reaches what tokens are drawn from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cactus_decoding.core.checks import check_choice, short_repr
from cactus_decoding.core.constraints.schema import checked_schema
from cactus_decoding.core.sampling.params import RowSampling

if TYPE_CHECKING:
    from torch import Tensor


class ConstraintError(ValueError):
    """A constraint that cannot go on: the model has no fitting token, or working out what fits takes too long."""


class Constraint(Protocol):
    """What the tokens of one response may be.

    ``token_ids`` are always the response's own tokens, without the prompt. Proposals are asked about too, also those
    that are rejected, so every method is a function of its arguments, whatever was asked before.
    """

    def allowed(self, token_ids: Sequence[int]) -> Tensor | None:
        """Return which tokens may come next, ``[vocabulary]`` as booleans.

        None where one of ``token_ids`` is not allowed itself, or ends the response: nothing is ever drawn after it.
        """

    def forced(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return up to ``limit`` tokens that must come next: each is the only one that is allowed there."""

    def may_end(self, token_ids: Sequence[int]) -> bool: ...


class ConstrainedSampling:
    """Sampling in which tokens that a constraint does not allow have probability zero; see `RowSampling`.

    The logits of these tokens become minus infinity before anything else: before temperature, top-k, top-p and min-p.
    The response therefore follows the masked target, and every rule, budget and tree works as for any other target.
    A mask after top-p would be another distribution, and may leave no token at all.
    """

    plain = None

    def __init__(self, sampling: RowSampling, constraint: Constraint, prompt_length: int) -> None:
        self._sampling, self._constraint, self._prompt_length = sampling, constraint, prompt_length

    def __call__(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        return self._sampling(self._masked(logits, token_ids), token_ids)

    def untempered(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        return self._sampling.untempered(self._masked(logits, token_ids), token_ids)

    def forced(self, token_ids: list[int], limit: int) -> list[int]:
        """Return up to ``limit`` tokens that must follow all the tokens, whatever the logits are."""
        return self._constraint.forced(token_ids[self._prompt_length :], limit) if limit > 0 else []

    def _masked(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        import torch

        first = len(token_ids) - len(logits) + 1
        rows = []
        for i, row in enumerate(logits):
            allowed = self._constraint.allowed(token_ids[self._prompt_length : first + i])
            rows.append(row if allowed is None else row.masked_fill(~allowed.to(row.device), -math.inf))
        return torch.stack(rows)


Kind = Literal["json_schema", "regex", "lark", "gbnf"]
MAX_BYTES = 2**18  # of a schema, an expression or a grammar, as text
RESPONSE_FORMATS = ("text", "json_object", "json_schema", "grammar")
_SYNTAXES = ("regex", "lark", "gbnf")


@dataclass(frozen=True)
class Grammar:
    kind: Kind  # ``json_schema``, ``regex``, ``lark`` or ``gbnf``
    text: str  # the description; a schema as JSON
    name: str
    # grammars that this one is made of; where it cannot be compiled, the message names the first of these that cannot
    # be compiled either
    parts: tuple[Grammar, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError:
            raise ValueError(
                f"cannot read {self.name}: it has half of a surrogate pair, which is no character"
            ) from None
        if size > MAX_BYTES:
            raise ValueError(f"cannot read {self.name}: it may have {MAX_BYTES:,} bytes, but has {size:,}")


def schema_grammar(name: str, schema: Any, *, closed: bool = False) -> Grammar:
    checked = checked_schema(name, schema, closed=closed)
    if checked is False:
        raise ValueError(f"cannot read {name}: it is false, which allows nothing")
    return Grammar("json_schema", json.dumps({} if checked is True else checked), name)


def as_grammar(response_format: Mapping[str, Any] | None, name: str = "response_format") -> Grammar | None:
    """Return the grammar that a ``response_format`` asks for; None for ordinary text.

    Args:
        response_format: as OpenAI's API has it: ``{"type": "json_object"}``, or ``{"type": "json_schema",
            "json_schema": {"schema": …}}``, where ``"strict": True`` beside the schema closes its objects. Grammars, as
            OpenAI's custom tools have them, are taken too: ``{"type": "grammar", "syntax": "regex", "definition": …}``;
            the syntax is ``regex``, ``lark`` or ``gbnf``.
        name: what messages call it.
    """
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise TypeError(f"{name} must be an object with a type, but is {short_repr(response_format)}")
    kind = response_format.get("type")
    if kind not in RESPONSE_FORMATS:
        raise ValueError(f"{name} must be of type {', '.join(RESPONSE_FORMATS)}, but is {short_repr(kind)}")
    if kind == "text":
        return None
    if kind == "grammar":
        syntax, definition = response_format.get("syntax"), response_format.get("definition")
        check_choice(f"the syntax of {name}", syntax, _SYNTAXES)
        if not isinstance(definition, str):
            raise TypeError(f"the definition of {name} must be a text, but is {short_repr(definition)}")
        return Grammar(syntax, definition, f"the {syntax} of {name}")  # type: ignore[arg-type]
    if kind == "json_object":
        schema, closed = response_format.get("schema") or {"type": "object"}, False
    else:
        described = response_format.get("json_schema")
        if not isinstance(described, Mapping) or not isinstance(described.get("schema"), dict | bool):
            raise ValueError(f"{name} must have a json_schema with a schema, but it is {short_repr(described)}")
        schema, closed = described["schema"], described.get("strict") is True
    return schema_grammar(f"the JSON schema of {name}", schema, closed=closed)
