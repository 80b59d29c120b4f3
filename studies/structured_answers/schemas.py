"""Thirty schemas like those with which people met trouble in other engines, each with where that was reported.

They are written anew: each has the feature that the report is about, and bounds that keep answers short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VLLM, LLAMA, OLLAMA = (f"https://github.com/{name}/issues/" for name in (
    "vllm-project/vllm", "ggml-org/llama.cpp", "ollama/ollama"))  # fmt: skip
OUTLINES, SGLANG = (f"https://github.com/{name}/issues/" for name in ("dottxt-ai/outlines", "sgl-project/sglang"))
CORE, XGRAMMAR = "https://github.com/dottxt-ai/outlines-core/issues/", "https://github.com/mlc-ai/xgrammar/issues/"
WORD, COUNT = {"type": "string", "maxLength": 10}, {"type": "integer", "minimum": 0, "maximum": 99}


@dataclass(frozen=True)
class Case:
    """A schema, what the model is asked, what the schema is about, and a report of trouble with the like."""

    name: str
    ask: str
    schema: dict[str, Any]
    report: str


def closed(properties: dict[str, Any], optional: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Return an object with these properties and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False} | more


def listed(items: Any, least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


CASES = (
    Case("bounds of integers", "A bike ride: a puppy, a cat and a raccoon.",
         closed({"location": WORD, "seen": {"type": "integer", "minimum": 1, "maximum": 5}}), VLLM + "12028"),
    Case("text of at most ten characters", "Introduce somebody from Beijing.",
         closed({"name": {"type": "string", "maxLength": 10}, "age": COUNT}), VLLM + "15790"),
    Case("an enumeration by reference", "Which car was on the cover in 1998?",
         closed({"brand": WORD, "kind": {"$ref": "#/$defs/Kind"}},
                **{"$defs": {"Kind": {"enum": ["sedan", "SUV", "Truck", "Coupe"], "title": "Kind"}}}), VLLM + "15236"),
    Case("a list of objects", "Name characters of a film.",
         listed(closed({"name": WORD, "level": COUNT}), 1, 2), VLLM + "11484"),
    Case("a list of fixed length", "Name two people.", closed({"names": listed(WORD, 2, 2)}), VLLM + "12201"),
    Case("a list that is not empty", "Call tools for the weather.",
         {"type": "array", "minItems": 1, "maxItems": 2,
          "items": closed({"name": {"const": "get_weather"}, "city": WORD})}, VLLM + "16880"),
    Case("a pattern beside a length", "Give codes.",
         listed({"type": "string", "pattern": r"^[\x20-\x7E]+$", "maxLength": 8}, 1, 3), VLLM + "45592"),
    Case("optional properties of several kinds", "Describe the document.",
         closed({"page": {"anyOf": [COUNT, {"type": "null"}], "default": None}, "label": WORD,
                 "total": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1000}, {"type": "null"}]}},
                ("page", "total")), VLLM + "13038"),
    Case("an escaped mark in a pattern", "Greet.",
         closed({"say": {"type": "string", "pattern": r"^hello (there|all)!$"}}), LLAMA + "19051"),
    Case("keys with spaces", "What is the state of the task?",
         closed({"Stage": {"enum": ["first", "second"]}, "Task Finished": {"type": "boolean"}, "Statement": WORD}),
         "https://github.com/abetlen/llama-cpp-python/issues/615"),
    Case("long and short texts", "Title and summary, please.",
         closed({"title": {"type": "string", "minLength": 3, "maxLength": 20},
                 "summary": {"type": "string", "minLength": 10, "maxLength": 40}}), LLAMA + "22396"),
    Case("a huge length within an object", "Which trigger runs the script?",
         closed({"patch": closed({"kind": {"enum": ["at", "every"]}, "script": {
             "anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{0,12}$", "maxLength": 65536}]}})}),
         LLAMA + "25746"),
    Case("an object without properties", "Do nothing.",
         closed({"tool": {"const": "wait"}, "arguments": {"type": "object", "properties": {},
                                                           "additionalProperties": False}}), LLAMA + "25923"),
    Case("a pattern without anchors", "Which port?",
         closed({"port": {"type": "string", "pattern": "[0-9]{2,4}", "maxLength": 8}}),
         "https://github.com/containers/kubernetes-mcp-server/issues/758"),
    Case("anyOf with a single option", "How wide is it?",
         closed({"width": {"anyOf": [{"type": "number", "minimum": 0, "exclusiveMaximum": 100}]}}), LLAMA + "14227"),
    Case("numbers in a long list", "Count.", listed(COUNT, 10, 20), "https://github.com/ggml-org/llama.cpp/pull/6555"),
    Case("an array of several kinds", "Mix.",
         {"type": "array", "minItems": 1, "maxItems": 3, "items": {"anyOf": [COUNT, WORD, {"type": "boolean"}]}},
         LLAMA + "7703"),
    Case("null or a truth value", "Is it so?",
         closed({"foo": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}), OUTLINES + "497"),
    Case("a reference into properties", "Two numbers.",
         closed({"test": COUNT, "test2": {"$ref": "#/properties/test"}},
                **{"$schema": "http://json-schema.org/draft-07/schema#"}), OUTLINES + "310"),
    Case("many optional enumerations", "Fill in what you know.",
         closed({f"f{i}": {"anyOf": [{"enum": [f"a{i}", f"b{i}", f"c{i}"]}, {"type": "null"}]} for i in range(6)},
                tuple(f"f{i}" for i in range(6))), OUTLINES + "1428"),
    Case("objects in an enumeration", "Choose a setting.",
         closed({"setting": {"enum": [{"a": 1, "b": [True]}, {"a": 2}, None]}}), CORE + "100"),
    Case("oneOf told by a constant", "Plan a step.",
         listed({"oneOf": [closed({"type": {"const": "store"}, "what": WORD}),
                           closed({"type": {"const": "call"}, "who": WORD}),
                           closed({"type": {"const": "move"}, "x": COUNT, "y": COUNT})]}, 1, 2), OLLAMA + "8162"),
    Case("a number or a pair of numbers", "Where is it?",
         closed({"point": {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 500}, {"$ref": "#/$defs/place"}]}},
                **{"$defs": {"place": listed({"type": "integer", "minimum": 0, "maximum": 1000}, 2, 2)}}),
         XGRAMMAR + "192"),
    Case("texts or null, repeated", "Extract keys.",
         closed({"data": listed(closed({name: {"type": ["string", "null"], "maxLength": 6} for name in ("k1", "k2")}),
                                0, 2)}), SGLANG + "371"),
    Case("a colour of a picture", "What colour is the cat?",
         closed({"color": {"enum": ["Black", "Orange", "White"]}}), SGLANG + "138"),
    Case("a city and its people", "The capital of France?",
         closed({"name": {"type": "string", "pattern": r"^[\w]+$", "maxLength": 12}, "population": {
             "type": "integer", "minimum": 0, "maximum": 99999999}}), SGLANG + "3295"),
    Case("a title and a rating", "Ellie translates for ghosts.",
         closed({"title": {"type": "string", "maxLength": 20}, "rating": {
             "type": "number", "minimum": 0, "maximum": 10}}), OLLAMA + "17183"),
    Case("a required key among facts", "What happened?",
         closed({"facts": listed(closed({"what": WORD, "when": {"type": ["string", "null"], "format": "date"}}),
                               1, 2)}),
         "https://github.com/ddalcu/mlx-serve/issues/172"),
    Case("days and times", "When is the meeting?",
         closed({"at": {"type": "string", "format": "date-time"}, "mail": {
             "type": "string", "format": "email", "maxLength": 16}}), OLLAMA + "10937"),
    Case("pages within pages", "Make an index.",
         {"$ref": "#/definitions/page", "definitions": {"page": closed(
             {"n": COUNT, "pages": {"type": "array", "items": {"$ref": "#/definitions/page"}, "maxItems": 2}},
             ("pages",))}}, "https://github.com/mafintosh/is-my-json-valid/issues/99"),
)  # fmt: skip
