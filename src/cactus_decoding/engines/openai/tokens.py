"""Bodies of ``/tokenize`` and ``/detokenize``, as vLLM's servers have them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from cactus_decoding.core.mistakes import short_repr
from cactus_decoding.engines.openai.bodies import Body, ChatBody, Object, Objects, Text, encodable


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
    def text(self) -> str | None:
        """The text that is given; None for a conversation."""
        return None if self.prompt is None else encodable(self.prompt)

    @property
    def chat(self) -> dict[str, Any]:
        """The request for an answer whose prompt it asks about."""
        return {name: value for name, value in self.given.items() if name in ChatBody.model_fields}


class DetokenizeBody(Body):
    """What ``/detokenize`` is sent."""

    model: Text | None = Field(default=None, exclude=True, description="Name of a model. It changes nothing.")
    tokens: Annotated[list[int], BeforeValidator(_token_ids)] = Field(description="Tokens by their numbers.")
