"""Generate text with a pair of models: the entry that most users want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.choices import enum_choices
from cactus_decoding.core.constraints.base import Constraint, as_grammar
from cactus_decoding.core.request import Request, RequestSettings, with_default_proposals
from cactus_decoding.core.response import Response as Response
from cactus_decoding.core.response import begin

if TYPE_CHECKING:
    from cactus_decoding.core.pair import Pair


def stream(
    pair: Pair,
    prompt: str,
    request: Request | None = None,
    *,
    response_format: Mapping[str, Any] | Constraint | None = None,
    choices: Sequence[str] | None = None,
    thinking_budget: int | None = None,
    **settings: Unpack[RequestSettings],
) -> Response:
    r"""Return a response to iterate over step by step; its arguments and errors are those of `generate`.

    Example:
        >>> from cactus_decoding import load_pair
        >>> from cactus_decoding.zoo.word_problems import EXAMPLES
        >>> response = stream(load_pair(), EXAMPLES[0].prompt, seed=0)
        >>> sum(len(outcome.token_ids) for outcome in response) == len(response.token_ids)
        True
    """
    given = settings if request is not None else with_default_proposals(settings, automatic=pair.chooses)
    request = Request.of(request, given)
    if choices is not None and response_format is not None:
        raise TypeError("choices and response_format exclude each other: each says what the response looks like")
    if choices is not None and thinking_budget is not None:
        raise TypeError("choices and thinking_budget exclude each other: choices are whole answers")
    prompt_ids = prompt_tokens(pair, prompt)
    answers = enum_choices(response_format) if choices is None else choices
    if answers is not None:
        return begin(pair, request, prompt_ids, choices=answers)
    constraint = constraint_of(pair, response_format)
    response = begin(pair, request, prompt_ids, constraint=constraint, thinking_budget=thinking_budget)
    pair.prepare(request.draft_length)
    return response


def constraint_of(pair: Pair, response_format: Mapping[str, Any] | Constraint | None) -> Constraint | None:
    if response_format is not None and not isinstance(response_format, Mapping):
        if not hasattr(response_format, "allowed"):
            raise TypeError(f"response_format must be an object or a Constraint, but is {short_repr(response_format)}")
        return response_format
    grammar = as_grammar(response_format)
    if grammar is None:
        return None
    from cactus_decoding.core.constraints.matching import GrammarVocabulary

    return GrammarVocabulary.of(pair.tokenizer, pair.target.vocabulary_size, pair.stop_token_ids).constraint(grammar)


def prompt_tokens(pair: Pair, prompt: object) -> list[int]:
    if not isinstance(prompt, str):
        raise TypeError(f"prompt must be a string, but is {short_repr(prompt)}")
    prompt_ids: list[int] = pair.tokenizer(prompt).input_ids
    if not prompt_ids:
        raise ValueError("prompt must have at least one token, but has none")
    return prompt_ids


def check_prompt(pair: Pair, prompt: object, request: Request) -> list[int]:
    """Return a prompt's tokens; raise for what is no text, is empty, or leaves no room in a context window."""
    prompt_ids = prompt_tokens(pair, prompt)
    request.check_room(pair.target.max_length, pair.drafter.max_length, len(prompt_ids))
    return prompt_ids


def generate(
    pair: Pair,
    prompt: str,
    request: Request | None = None,
    *,
    response_format: Mapping[str, Any] | Constraint | None = None,
    choices: Sequence[str] | None = None,
    thinking_budget: int | None = None,
    **settings: Unpack[RequestSettings],
) -> Response:
    """Generate a whole response by drafting and verifying.

    Args:
        pair: models from `load_pair`.
        prompt: the text to continue.
        request: everything that is asked for, as one object, instead of ``settings``.
        response_format: what the response must look like, as in OpenAI's API: ``{"type": "json_schema", "json_schema":
            {"schema": …}}``, ``{"type": "json_object"}``, ``{"type": "grammar", "syntax": "regex", "definition": …}``
            with the syntax ``regex``, ``lark`` or ``gbnf``; or a `Constraint` of one response. None for any text. What
            rules relax stays within the format. A schema that is an ``enum`` alone is the same as ``choices``.
        choices: answers of which the response is one. It is drawn by the exact probability of each whole answer, which
            masking token by token does not give; ``Response.choices`` are these probabilities. Nothing is drafted.
        thinking_budget: tokens that a model may think, after which its end mark is forced. With or without it, a
            ``response_format`` begins after the thinking part, where the model's chat template has one.
        settings: the same by the names of `Request`'s attributes, with those of `SamplingParams` in the place of
            ``sampling``. If they do not say how many tokens to propose, `AutoLength` chooses; the bundled pair, and a
            `Request`, propose 6.

    Raises:
        TypeError: for an argument of the wrong type or an unknown name.
        ValueError: for one out of range, an empty prompt, or a prompt that leaves no room in a context window.

    Sources: Leviathan et al. (arXiv 2211.17192); Hao and Mou (arXiv 2604.04987).

    Example:
        >>> from cactus_decoding import load_pair
        >>> from cactus_decoding.zoo.word_problems import EXAMPLES
        >>> prompt = EXAMPLES[0].prompt  # a question to the bundled pair
        >>> generate(load_pair(), prompt, rule="cactus:delta=0.5", seed=0).finish_reason
        'stop'
    """
    response = stream(
        pair,
        prompt,
        request,
        response_format=response_format,
        choices=choices,
        thinking_budget=thinking_budget,
        **settings,
    )
    for _ in response:
        pass
    return response
