"""From the page's JSON to checked requests: every mistake is a sentence, and is found before any work."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cactus_decoding import zoo
from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.generation.request import Request
from cactus_decoding.playground.limits import Limits
from cactus_decoding.policy.budget import Budget
from cactus_decoding.policy.protection import PATTERNS, named_sets
from cactus_decoding.policy.spending import SpendingPolicy
from cactus_decoding.rules import Lossless, parse_rule
from cactus_decoding.types import AcceptanceRule

MAX_RULES = 2
_MAX_SEED = 2**32 - 1
"""A browser's numbers are exact up to 2^53."""
_OWN = ("prompt", "rules", "target", "draft", "chat")
"""What the page sends beside what `Request.from_dict` takes."""


@dataclass(frozen=True)
class RunRequest:
    """What a visitor asks for: one prompt and seed, under one rule or two.

    Attributes:
        prompt: the text to continue, or a question for the bundled pair.
        requests: one for each rule, alike but for the rule, and for budget and spending policy where it spends nothing.
        target: name or path of the verifying model; None for the bundled one.
        draft: likewise of the proposing one, or ``ngram``.
        chat: whether the prompt is put by the target's chat template, where it has one.
    """

    prompt: str
    requests: tuple[Request, ...]
    target: str | None = None
    draft: str | None = None
    chat: bool = True


def read_request(body: Mapping[str, Any], limits: Limits, *, models: bool) -> RunRequest:
    """Check what the page sent.

    Args:
        body: its JSON object: prompt, chat, rules, target and draft, the fields of a `Budget` as an object of their
            own, and whatever else `Request.from_dict` takes.
        limits: upper limits.
        models: whether visitors may name models.

    Raises:
        TypeError: for a value of the wrong kind.
        ValueError: for an unknown name, or a value that is out of range or over a limit.

    Example:
        >>> asked = read_request({"prompt": "Hi", "rules": ["lossless"], "seed": 3}, Limits(), models=False)
        >>> asked.requests[0].seed
        3
    """
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError("the prompt is empty: write a question or a text to continue")
    if len(prompt) > limits.prompt_characters:
        raise ValueError(f"the prompt has {len(prompt)} characters; allowed are {limits.prompt_characters}")
    seed = body.get("seed")
    seed = secrets.randbelow(_MAX_SEED) if seed is None else seed
    check_integer("seed", seed, 0, _MAX_SEED)
    chat = body.get("chat", True)
    if not isinstance(chat, bool):
        raise TypeError(f"chat must be true or false, but is {chat!r}")
    target, draft = (_model_name(role, body.get(role), models) for role in ("target", "draft"))
    budget = body.get("budget")
    shared = {name: value for name, value in body.items() if name not in _OWN} | {
        "budget": Budget(**budget) if isinstance(budget, dict) else budget,
        "seed": seed,
    }
    # each rule has a draft length of its own, which may learn from the answer
    requests = tuple(_request(shared | {"rule": rule}, limits, models) for rule in _rules(body.get("rules")))
    # lone surrogates, which JSON can spell, are no text: tokenizers fail on them
    return RunRequest(prompt.encode(errors="replace").decode(), requests, target, draft, chat)


def _request(values: dict[str, Any], limits: Limits, models: bool) -> Request:
    if not models and values.get("importance") is not None:
        raise ValueError("this server does not read files by name, so importance must be left out")
    if isinstance(values["rule"], Lossless):
        values["budget"] = None  # of which it spends nothing
    request = Request.from_file(values)  # links may be of an older version
    if not models:
        _check_named(request.spending)
    if isinstance(request.rule, Lossless):
        request = replace(request, spending=SpendingPolicy())  # nothing to keep away
    check_integer("max_new_tokens", request.max_new_tokens, 1, limits.new_tokens)
    length, tree = request.num_speculative_tokens, request.tree
    # of a tree every token counts, not only those that follow one another
    name, proposals = ("num_speculative_tokens", length.max_draft_tokens) if tree is None else ("tree", tree.max_nodes)
    if proposals > limits.proposals:
        raise ValueError(f"{name} must be at most {limits.proposals} on this server, but is {proposals}")
    return request


def _check_named(spending: SpendingPolicy) -> None:
    """Raise `ValueError` for a regular expression, which could take the server's time without end."""
    pattern = "" if spending.protection is None else spending.protection.pattern
    if pattern and named_sets(pattern) is None:
        raise ValueError(
            f"this server takes no regular expressions, so protect must be of {', '.join(PATTERNS)}, joined by '|'"
        )


def _rules(given: object) -> list[AcceptanceRule]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_RULES:
        raise ValueError(f"rules must be a list of one or two spellings, but is {given!r}")
    return [parse_rule(spelling, importing=False) for spelling in given]


def _model_name(role: str, given: object, models: bool) -> str | None:
    if given in (None, ""):
        return None
    if not isinstance(given, str):
        raise TypeError(f"{role} must be a model's name or path, but is {given!r}")
    ours = role == "draft" and (given.strip() == "ngram" or zoo.draft_path(given.strip()) is not None)
    if not models and not ours:
        raise ValueError(f"this server does not load models by name, so {role} must be left empty")
    return given.strip()
