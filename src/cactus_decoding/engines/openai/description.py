"""What a server answers, in OpenAPI's JSON: made from the models that read requests; and bodies of ``/tokenize``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic.json_schema import models_json_schema

from cactus_decoding.core.checks import short_repr
from cactus_decoding.engines.openai.bodies import Body, ChatBody, Object, Objects, Text

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    "400": "What is wrong with the request, in a sentence.",
    "401": "A key is needed.",
    "404": "There is no such model.",
    "503": "Too many requests wait.",
}


def description(posted: Mapping[str, type[BaseModel]], got: Mapping[str, str], *, version: str) -> dict[str, Any]:
    bodies = [(each, "validation") for each in dict.fromkeys(posted.values())]
    refs, schemas = models_json_schema(bodies, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {
        path: {"get": {"summary": summary, "parameters": _parameters(path), "responses": _responses("404")}}
        for path, summary in got.items()
    }
    for path, body in posted.items():
        content = {"application/json": {"schema": refs[body, "validation"]}}
        summary = (body.__doc__ or "").partition("\n")[0]
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": content},
                "responses": _responses("400", "503"),
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "cactus serve", "version": version},
        "paths": paths,
        "components": {"schemas": _finite(schemas["$defs"]) | {"Error": _ERROR}},
    }


def _finite(schema: Any) -> Any:
    """Return a schema without limits that are infinite, which JSON cannot write."""
    if isinstance(schema, dict):
        endless = [name for name, value in schema.items() if isinstance(value, float) and not math.isfinite(value)]
        return {name: _finite(value) for name, value in schema.items() if name not in endless}
    return [_finite(each) for each in schema] if isinstance(schema, list) else schema


def _responses(*statuses: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    said = {status: {"description": _STATUSES[status], "content": error} for status in (*statuses, "401")}
    return {"200": {"description": "The answer."}} | said


def _parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _token_ids(value: Any) -> Any:
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise TypeError(f"tokens must be a list of integers of at least 0, but is {short_repr(value)}")
    return value


class TokenizeBody(Body):
    """What ``/tokenize`` is sent: a text, or a conversation that the chat template makes a text of."""

    model: Text | None = Field(default=None, exclude=True, description="Name of a model. It changes nothing.")
    prompt: Text | None = Field(default=None, description="A text.")
    messages: Objects | None = Field(default=None, description="A conversation, in the place of a text.")
    tools: Objects = Field(default=[], description="Functions of the conversation.")
    chat_template_kwargs: Object = Field(default={}, description="Further names for the chat template.")
    add_generation_prompt: bool = Field(default=True, description="Whether an answer follows the conversation.")
    continue_final_message: bool = Field(default=False, description="Whether the last message is to go on.")
    add_special_tokens: bool = Field(default=True, description="Whether a beginning-of-text token comes first.")
    return_token_strs: bool = Field(default=False, description="Whether the tokens' texts are told.")

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("a request must have either prompt or messages")
        return self

    @property
    def chat(self) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if name in ChatBody.model_fields}


class DetokenizeBody(Body):
    """What ``/detokenize`` is sent."""

    model: Text | None = Field(default=None, exclude=True, description="Name of a model. It changes nothing.")
    tokens: Annotated[list[int], BeforeValidator(_token_ids)] = Field(description="Tokens by their numbers.")
