"""Bodies of OpenAI-compatible requests: their fields, what each may hold, and the `Request` that they ask for.

Null is the same as a field that is left out. Fields that clients send and that change nothing here are checked, and
left out of dumps (``exclude``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainValidator,
    SkipValidation,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)

from cactus_decoding.core.checks import short_repr, suggestion
from cactus_decoding.core.declared import Declared
from cactus_decoding.core.request import SETTINGS, Request, with_default_proposals
from cactus_decoding.core.validation import mistake
from cactus_decoding.engines.openai.keys import (
    ALLOWED,
    KEYS,
    NOT_FROM_CLIENTS,
    OF_ENGINES,
    RULE_KEY,
    Marks,
    UnknownFieldError,
    errors_about,
    read_keys,
)
from cactus_decoding.engines.openai.reading import NoJSONError, parse_body

if TYPE_CHECKING:
    from cactus_decoding.core.pair import Pair

_KEY_OF = {name: each.key for name, each in SETTINGS.items()}
MAX_BODY_SEED = 2**32 - 2  # what every server takes: 32 bits, of which the last asks llama.cpp to draw a seed
MAX_PROMPTS, MAX_CHOICES, MAX_LOGPROBS, MAX_PROPOSALS = 32, 16, 20, 64
_COMPLETION_TOKENS = 16  # OpenAI's own limit of a completion, where a request says nothing; conversations have none
_ROLES = {"developer": "system"}  # roles that chat templates do not know, and what they call them
_JSON_WORDS: dict[type, str] = {bool: "true or false", str: "a text", dict: "an object", list: "a list"}
_TEMPLATE_SWITCHES = frozenset(["add_generation_prompt", "continue_final_message"])
_TEMPLATE_OWN = frozenset(
    [
        *("messages", "conversation", "tools", "documents", "chat_template", "tokenize", "tokenizer", "self"),
        *("return_assistant_tokens_mask", "bos_token", "eos_token"),
    ]
)
"""Names of a chat template that a client does not set among its further ones."""
_BEST_OF = "the likeliest of several answers is not looked for"
_UNKNOWN_DISTRIBUTION = "the distribution that it samples from would not be known"
NOT_SERVED = {
    "best_of": _BEST_OF,
    "suffix": "models are not asked to fill gaps",
    **dict.fromkeys((name for name in NOT_FROM_CLIENTS if name != "num_speculative_tokens"), ALLOWED),
    "typical_p": _UNKNOWN_DISTRIBUTION,
    "mirostat_mode": _UNKNOWN_DISTRIBUTION,
}
"""Fields that clients know and that are refused where a body does not have them, and why."""

# isinstance checks, because pydantic would copy objects
Text = InstanceOf[str]
Object = InstanceOf[dict[str, Any]]


def neutral(description: str) -> Any:
    """Return a field that clients send and that changes nothing here."""
    return Field(default=None, exclude=True, description=f"{description} It changes nothing.")


def only(allowed: object, why: str) -> AfterValidator:
    def check(value: object, info: ValidationInfo) -> object:
        if value != allowed:
            raise ValueError(f"{info.field_name} of {short_repr(value)} is not served: {why}")
        return value

    return AfterValidator(check)


def _each_an_object(value: Any, info: ValidationInfo) -> Any:
    for each in value if isinstance(value, list) else ():
        if not isinstance(each, dict):
            raise TypeError(f"each of {info.field_name} must be an object, but is {short_repr(each)}")
    return value


Objects = Annotated[InstanceOf[list[dict[str, Any]]], BeforeValidator(_each_an_object)]


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(each, str) and each for each in strings):
        raise TypeError(f"stop must be a text or a list of texts that are not empty, but is {short_repr(value)}")
    return tuple(strings)


def _token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise TypeError(f"stop_token_ids must be a list of tokens, as integers, but is {short_repr(value)}")
    return tuple(value)


def _prompts(value: Any) -> list[str | list[int]]:
    """Return texts, or tokens of each; one may come without a list around it."""
    several = isinstance(value, list) and value and isinstance(value[0], str | list)
    given = value if several else [value]
    if len(given) > MAX_PROMPTS:
        raise ValueError(f"prompt must be at most {MAX_PROMPTS} prompts, but is {len(given)}")
    return [_prompt(each) for each in given]


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value):
        return value
    raise TypeError(f"prompt must be a text, its tokens, or a list of these, and not empty, but is {short_repr(value)}")


# --- messages ---


class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text", "input_text", "output_text"] = Field(default="text", description="Kind of the part.")
    text: str = Field(description="What it says.")


_TEXT_PARTS = get_args(TextPart.model_fields["type"].annotation)


def _content(value: Any) -> str:
    if isinstance(value, list):
        for part in value:
            kind = part.get("type", "text") if isinstance(part, dict) else part
            if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
                raise ValueError(
                    "a message's content must be text, or parts that are text: this server reads neither images nor "
                    f"sounds, but one part is {short_repr(kind)}"
                )
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str | None):
        raise TypeError(f"a message's content must be text, but is {short_repr(value)}")
    return value or ""  # some templates add it to a text, also beside calls


def _calls(value: Any) -> list[dict[str, Any]] | None:
    """Return calls with their arguments as objects, which templates write as JSON; clients send them as texts."""
    if not value:
        return [] if isinstance(value, list) else None
    if not isinstance(value, list):
        raise TypeError(f"tool_calls must be a list, but is {short_repr(value)}")
    if wrong := [each for each in value if not isinstance(each, dict)]:
        raise TypeError(f"each of tool_calls must be an object, but is {short_repr(wrong[0])}")
    return [_call(each) for each in value]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if isinstance(function, dict):
        return call | {"function": function | {"arguments": _arguments(function.get("arguments"))}}
    return call


def _arguments(given: Any) -> Any:
    """Return what templates write as JSON, or go through by name; nothing, where there are none."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    if not isinstance(given, str):
        return given
    with suppress(NoJSONError):  # or else the text
        given = parse_body(given, "the arguments of a call")
    return {} if given is None else given


class Message(BaseModel):
    """A message of a conversation, as chat templates read it; they are also told what else it holds."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    role: Annotated[Text, AfterValidator(lambda role: _ROLES.get(role, role))] = Field(
        description="Who says it: system, developer, user, assistant or tool."
    )
    content: Annotated[str, PlainValidator(_content, json_schema_input_type=str | list[TextPart] | None)] = Field(
        default="", description="What is said: a text, or parts that are texts."
    )
    tool_calls: Annotated[
        list[dict[str, Any]] | None, PlainValidator(_calls, json_schema_input_type=list[dict[str, Any]] | None)
    ] = Field(default=None, description="Functions that an earlier answer called.")

    @model_validator(mode="before")
    @classmethod
    def _has_a_role(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("role"), str):
            raise TypeError(f"a message must be an object with a role, but is {short_repr(given)}")
        return {"content": None} | given

    def as_dict(self) -> dict[str, Any]:
        """Return the message for a chat template: its role, its content as a text, and what else was given."""
        read = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return read | (self.model_extra or {})  # as it is: a dump would refuse what is nested deeply


def _some_messages(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise TypeError(f"messages must be a list of objects that is not empty, but is {short_repr(value)}")
    return value


class StreamOptions(BaseModel):
    """What comes with a stream."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    include_usage: bool = Field(default=False, description="Whether the tokens are counted at the end.")
    include_obfuscation: bool = Field(default=False, exclude=True, description="Ignored.")
    continuous_usage_stats: bool = Field(default=False, exclude=True, description="Ignored.")


def _stream_options(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except ValidationError:
        known = ", ".join(StreamOptions.model_fields)
        raise ValueError(f"stream_options may hold {known}, true or false, but is {short_repr(value)}") from None


# --- bodies ---


class Body(BaseModel):
    """A JSON object that a request carries."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Leave nulls out, and say which names are not known or not served."""
        if not isinstance(given, Mapping):
            return given
        given, known = {name: value for name, value in given.items() if value is not None}, cls.model_fields
        unknown = [name for name in given if name not in known]
        if other := [name for name in unknown if name not in NOT_SERVED]:
            meant = suggestion(other[0], known) or f"; known are {', '.join(known)}"
            with errors_about(other[0]):
                raise UnknownFieldError(f"a request has no {short_repr(other[0])}{meant}")
        if unknown:
            with errors_about(unknown[0]):
                raise UnknownFieldError(f"{unknown[0]} is not served: {NOT_SERVED[unknown[0]]}")
        return given

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Return the body that a JSON object is."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise mistake(error, cls.model_fields, what="a request", words=_JSON_WORDS) from None

    @property
    def given(self) -> dict[str, Any]:
        """The fields that the request has, by name."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


class _Written(Body):
    """What both kinds of bodies have in common, without the settings that a `Request` declares."""

    model: Text | None = neutral("Name of a model; the one that is served answers.")
    max_tokens: int | None = Field(
        default=None, ge=1, description="Upper limit of an answer's length; as much as there is room for, if absent."
    )
    top_k: Annotated[int, AfterValidator(lambda top_k: max(top_k, 0))] = Field(
        default=0, ge=-1, description="Sample from this many most likely tokens; all of them, if 0 or -1."
    )
    presence_penalty: float = Field(
        default=0.0, ge=-2, le=2, description="Taken off the logits of tokens that the answer has already."
    )
    frequency_penalty: float = Field(
        default=0.0, ge=-2, le=2, description="Taken off a token's logit for each time that the answer has it already."
    )
    repeat_penalty: float = Field(
        default=1.0, gt=0, lt=math.inf, description="Divides the logits of tokens that the answer has already."
    )
    repetition_penalty: float = Field(
        default=1.0,
        gt=0,
        lt=math.inf,
        description="Divides the logits of tokens that the prompt or the answer has already, as in vLLM.",
    )
    min_tokens: int = Field(default=0, ge=0, description="Tokens that an answer has before it may end.")
    ignore_eos: bool = Field(default=False, description="Whether no end token is ever drawn.")
    stop_token_ids: Annotated[tuple[int, ...], PlainValidator(_token_ids, json_schema_input_type=list[int])] = Field(
        default=(), description="Tokens that end an answer, beside the model's own."
    )
    logit_bias: Object = Field(default={}, description="What is added to logits, by token.")
    stop: Annotated[tuple[str, ...], PlainValidator(_stop_strings, json_schema_input_type=str | list[str])] = Field(
        default=(), description="Texts that end an answer, without being part of it."
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        le=MAX_BODY_SEED,
        description="The same seed gives the same text. Further choices have the next seeds.",
    )
    stream: bool = Field(default=False, description="Whether the answer comes bit by bit.")
    stream_options: Annotated[StreamOptions, WrapValidator(_stream_options)] = Field(
        default=StreamOptions(), description="What a stream holds beside the answer."
    )
    response_format: Object = Field(
        default={"type": "text"}, description="Form of the answer: text, json_object or json_schema."
    )
    grammar: Text = Field(default="", description="Grammar of the answer, in llama.cpp's GBNF.")
    guided_regex: Text = Field(default="", description="Regular expression of the answer.")
    guided_choice: InstanceOf[list[Any]] | None = Field(
        default=None,
        description="Answers of which the answer is one, by the exact probability of each; choice_probabilities of the "
        "response tells these.",
    )
    thinking_budget: int | None = Field(
        default=None, ge=0, description="Tokens that the model may think, after which it has to answer."
    )
    structured_outputs: Object = Field(default={}, description="Form of the answer, as vLLM's servers name it.")
    n: int = Field(default=1, ge=1, le=MAX_CHOICES, description="How many choices each prompt gets.")
    num_speculative_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_PROPOSALS,
        description="Tokens proposed per step, 0 for none; the server's own number, if absent.",
    )
    speculative: bool = Field(default=True, description="False is the same as num_speculative_tokens 0.")
    user: Text | None = neutral("Name of the user.")
    service_tier: Text | None = neutral("OpenAI's tiers of service.")
    safety_identifier: Text | None = neutral("Identifier of the user.")
    prompt_cache_key: Text | None = neutral("Key of OpenAI's prompt cache.")
    store: bool | None = neutral("Whether OpenAI stores the answer.")
    parallel_tool_calls: bool | None = neutral("Whether several functions may be called at once.")
    metadata: Object | None = neutral("The client's own notes.")
    acceptance_report: bool = Field(default=False, description="Whether the answer says what the rule did.")

    @model_validator(mode="after")
    def _proposes_what_it_says(self) -> Self:
        if not self.speculative and self.num_speculative_tokens:
            raise ValueError(
                f"speculative is false, so num_speculative_tokens must be 0, but is {self.num_speculative_tokens}"
            )
        return self

    @property
    def max_new_tokens(self) -> int | None:
        """Upper limit of each choice's length; None for as much as there is room for."""
        return self.max_tokens

    @property
    def penalties(self) -> tuple[float, float, float]:
        """For repeated tokens: llama.cpp's factor, per time, and once."""
        return self.repeat_penalty, self.frequency_penalty, self.presence_penalty

    def request(
        self, defaults: Mapping[str, Any], pair: Pair | None = None, *, thinking: Marks | None = None
    ) -> Request:
        """Return what is asked of a pair, which is checked here: the first choice's; others have the next seeds.

        ``defaults`` are the server's own settings, by the names of `Request.from_dict`. Sampling that is not asked for
        is OpenAI's and vLLM's, temperature 1 and no cuts, whatever they say. Without a limit an answer may be as long
        as there is room for.
        """
        given = self.given
        asked = read_keys({key: given[key] for key in KEYS if key in given}, defaults, thinking=thinking)
        settings = {name: value for name, value in defaults.items() if name != "budget" or "budget_nats" not in asked}
        settings |= asked | {
            name: getattr(self, each.key)
            for name, each in SETTINGS.items()
            if each.setting.from_clients and OF_ENGINES.intersection(each.groups)
        }
        settings["max_new_tokens"] = self.max_new_tokens  # for which a conversation has two keys
        if self.max_new_tokens is None:
            del settings["max_new_tokens"]
            if pair is not None and pair.target.max_length is not None:
                settings["max_new_tokens"] = pair.target.max_length
        if not self.speculative or self.num_speculative_tokens is not None:
            settings["num_speculative_tokens"] = self.num_speculative_tokens or 0
        automatic = pair is not None and pair.chooses
        return Request.from_dict(with_default_proposals(settings, automatic=automatic), _KEY_OF)


def _field_of(setting: Declared) -> Any:
    """Return a request's setting as a body's field, which is checked where the `Request` is made.

    What clients may send of it, `read_keys` decides.
    """
    kind: Any = Any
    if setting.key == RULE_KEY:
        kind = Text
    elif setting.setting.from_clients is True:
        annotation: Any = setting.field.annotation
        kind = Annotated[annotation | None, *setting.field.metadata, SkipValidation]
    default = setting.default if OF_ENGINES.intersection(setting.groups) else None
    return kind, Field(default=default, description=setting.doc)


if TYPE_CHECKING:
    _Body = _Written
else:
    _Body = create_model(
        "_Body",
        __base__=_Written,
        **{
            each.key: _field_of(each)
            for each in SETTINGS.values()
            if each.setting.from_clients and each.key not in _Written.model_fields
        },
    )


class CompletionBody(_Body):
    """What ``/v1/completions`` is sent."""

    prompt: Annotated[
        list[str | list[int]],
        PlainValidator(_prompts, json_schema_input_type=str | list[int] | list[str] | list[list[int]]),
    ] = Field(description=f"What is completed: a text or its tokens, or a list of up to {MAX_PROMPTS} of these.")
    max_tokens: int = Field(default=_COMPLETION_TOKENS, ge=1, description="Upper limit of an answer's length.")
    echo: bool = Field(default=False, description="Whether the prompt stands before each choice.")
    best_of: Annotated[Any, only(1, _BEST_OF)] = neutral("Only 1 is served.")
    logprobs: int | None = Field(
        default=None, ge=0, le=MAX_LOGPROBS, description="How many of the likeliest tokens are named at each place."
    )

    @model_validator(mode="after")
    def _reads_no_prompt(self) -> Self:
        if self.logprobs is not None and self.echo:
            raise ValueError("echo with logprobs is not served: the rows of prompts are not kept")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to name at each place; None for no log-probabilities."""
        return self.logprobs


def _template_names(given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name in _TEMPLATE_OWN:
            raise ValueError(f"chat_template_kwargs must not have {name}, which the request says elsewhere")
        if name in _TEMPLATE_SWITCHES and not isinstance(value, bool):
            raise TypeError(f"{name} of chat_template_kwargs must be true or false, but is {short_repr(value)}")
    return given


class ChatBody(_Body):
    """What ``/v1/chat/completions`` is sent."""

    messages: Annotated[list[Message], BeforeValidator(_some_messages)] = Field(description="The conversation.")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, description="Upper limit of an answer's length, in the place of max_tokens."
    )
    logprobs: bool = Field(default=False, description="Whether the log-probability of each token is told.")
    top_logprobs: int | None = Field(
        default=None, ge=0, le=MAX_LOGPROBS, description="How many of the likeliest tokens are named at each place."
    )
    tools: Objects = Field(default=[], description="Functions that the answer may call, each with a JSON schema.")
    tool_choice: Text | Object = Field(
        default="auto", description="Whether a tool is called: none, auto, required, or the one that is named."
    )
    unmarked_tool_calls: bool = Field(
        default=True,
        description="Whether a JSON object without the mark of a call that names a tool is a call; it is text, if not.",
    )
    functions: Objects = Field(default=[], description="Older form of tools.")
    function_call: Text | Object = Field(default="auto", description="Older form of tool_choice.")
    add_generation_prompt: bool | None = Field(
        default=None, description="Whether an answer follows the conversation; it does, if absent."
    )
    continue_final_message: bool = Field(
        default=False, description="Whether the answer goes on with the last message, and is no new one."
    )
    chat_template_kwargs: Annotated[Object, AfterValidator(_template_names)] = Field(
        default={}, description="Further names for the chat template."
    )
    reasoning_effort: Text | None = Field(
        default=None, description="How much the model thinks, where its chat template knows that; none for not at all."
    )
    prediction: Object | None = neutral("What the answer may look like.")
    modalities: Annotated[Any, only(["text"], "answers are text")] = neutral('Only ["text"] is served.')
    verbosity: Text | None = neutral("How much a model of OpenAI's says.")
    prompt_cache_retention: Text | None = neutral("How long OpenAI's prompt cache keeps a prompt.")

    @property
    def template_options(self) -> dict[str, Any]:
        """What the chat template is told beside the messages and the tools."""
        said = self.chat_template_kwargs | {name: self.given[name] for name in _TEMPLATE_SWITCHES & {*self.given}}
        goes_on = said.setdefault("continue_final_message", False)
        said.setdefault("add_generation_prompt", not goes_on)
        return said

    @model_validator(mode="after")
    def _begins_or_goes_on(self) -> Self:
        if all(self.template_options[name] for name in _TEMPLATE_SWITCHES):
            raise ValueError(
                "add_generation_prompt and continue_final_message exclude each other: an answer is new, or goes on"
            )
        return self

    @model_validator(mode="after")
    def _names_tokens_it_tells(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs needs logprobs to be true, but is {short_repr(self.top_logprobs)}")
        return self

    @property
    def max_new_tokens(self) -> int | None:
        """Upper limit of each choice's length; None for as much as there is room for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to name at each place; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None
