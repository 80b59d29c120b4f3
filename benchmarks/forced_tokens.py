"""Tokens per step of JSON by ten schemas, with forced tokens proposed and without, and what masks take.

    python forced_tokens.py TARGET.gguf --draft DRAFT

Each schema is answered with the same seeds in both ways, without a draft and with one. Counts do not depend on the
machine; masks are timed by the processor time of the thread, over all calls of a constraint.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pairing import benchmark
from torch import Tensor

from cactus_decoding import Metrics, Pair, generate, load_pair
from cactus_decoding.core.constraints.base import Constraint
from cactus_decoding.core.generate import constraint_of
from cactus_decoding.core.models.tokenizers import as_chat_prompt

NAME, COUNT = {"type": "string", "maxLength": 20}, {"type": "integer", "minimum": 0, "maximum": 999}


def thing(**properties: Any) -> dict[str, Any]:
    """Return a schema of an object that has exactly these properties."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SCHEMAS: dict[str, Any] = {
    "person": thing(first_name=NAME, last_name=NAME, age=COUNT),
    "sentiment": thing(sentiment={"enum": ["positive", "negative", "neutral"]}, confidence={"enum": ["low", "high"]}),
    "address": thing(street=NAME, house_number=COUNT, city=NAME, country={"enum": ["France", "Germany", "Italy"]}),
    "order": thing(order_number=COUNT, paid={"type": "boolean"}, item=thing(description=NAME, quantity=COUNT)),
    "list of words": thing(words={"type": "array", "items": NAME, "minItems": 3, "maxItems": 3}),
    "call": thing(name={"const": "get_current_weather"}, arguments=thing(location=NAME, unit={"enum": ["celsius"]})),
    "event": thing(title=NAME, date={"type": "string", "format": "date"}, public={"type": "boolean"}),
    "number": thing(reasoning={"type": "string", "maxLength": 80}, answer=COUNT),
    "nothing or something": {"anyOf": [{"type": "null"}, thing(identifier=COUNT)]},
    "table": thing(rows={"type": "array", "items": thing(key=NAME, value=COUNT), "minItems": 2, "maxItems": 2}),
}


class Timed:
    """A constraint that takes the time of its calls, and perhaps says that nothing is forced."""

    def __init__(self, constraint: Constraint, *, forces: bool) -> None:
        self._constraint, self._forces, self.seconds = constraint, forces, 0.0
        self.may_end = constraint.may_end

    def allowed(self, token_ids: Sequence[int]) -> Tensor | None:
        return self._timed(self._constraint.allowed, token_ids)

    def forced(self, token_ids: Sequence[int], limit: int) -> list[int]:
        return self._timed(self._constraint.forced, token_ids, limit) if self._forces else []

    def _timed(self, call: Callable[..., Any], *given: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*given)
        finally:
            self.seconds += time.thread_time() - began


def answers(pair: Pair, schema: Any, prompt: str, proposals: int, seeds: int, *, forces: bool) -> dict[str, Any]:
    """Return the counts of some answers by a schema."""
    counts, seconds = Metrics(), 0.0
    for seed in range(seeds):
        made = constraint_of(pair, {"type": "json_schema", "json_schema": {"schema": schema}})
        assert made is not None
        constraint = Timed(made, forces=forces)
        response = generate(
            pair, prompt, response_format=constraint, seed=seed, num_speculative_tokens=proposals, max_new_tokens=100
        )
        counts, seconds = counts + response.metrics, seconds + constraint.seconds
    return {
        "tokens": counts.generated,
        "steps": counts.steps,
        "forced": counts.forced,
        "tokens_per_step": round(counts.generated / counts.steps, 3),
        "mask_microseconds_per_token": round(1e6 * seconds / counts.generated, 1),
    }


def both_ways(pair: Pair, name: str, asked: str, proposals: int, seeds: int, *, chat: bool) -> dict[str, Any]:
    """Return the counts of a schema's answers with forced tokens proposed and without."""
    prompt = as_chat_prompt(pair.tokenizer, asked) if chat else asked
    ways = {
        way: answers(pair, SCHEMAS[name], prompt, proposals, seeds, forces=way == "forced")
        for way in ("plain", "forced")
    }
    print(name, json.dumps(ways), flush=True)
    return {"schema": name, "proposals": proposals} | ways


def total(rows: list[dict[str, Any]], proposals: int) -> dict[str, Any]:
    """Return tokens per step over all schemas."""
    found: dict[str, Any] = {"proposals": proposals}
    for way in ("plain", "forced"):
        each = [row[way] for row in rows if row["proposals"] == proposals]
        tokens = sum(one["tokens"] for one in each)
        found[way] = {
            "tokens_per_step": round(tokens / sum(one["steps"] for one in each), 3),
            "mask_microseconds_per_token": round(
                sum(one["mask_microseconds_per_token"] * one["tokens"] for one in each) / tokens, 1
            ),
            "forced_share": round(sum(one["forced"] for one in each) / tokens, 3),
        }
    return found


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    pair, rows = load_pair(str(given.target), str(given.draft)), list[dict[str, Any]]()
    for name, schema in SCHEMAS.items():
        asked = f"{given.prompt} {json.dumps(schema)}" if given.chat else given.prompt
        rows += [both_ways(pair, name, asked, each, given.seeds, chat=given.chat) for each in given.proposals]
    yield {"totals": [total(rows, proposals) for proposals in given.proposals], "rows": rows}


if __name__ == "__main__":
    benchmark(
        __doc__, "forced_tokens", measure, target=Path, draft=Path("suffix"),
        prompt="Write something that fits the schema.", chat=False, proposals=[0, 6], seeds=3,
    )  # fmt: skip
