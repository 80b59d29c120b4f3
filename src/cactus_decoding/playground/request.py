"""From the page's JSON to checked arguments: every mistake is a sentence, and is found before any work."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cactus_decoding.arguments.checks import check_choice, check_integer
from cactus_decoding.budgets.budget import Budget
from cactus_decoding.drafting.lengths import as_draft_length
from cactus_decoding.playground.limits import Limits
from cactus_decoding.rules import Lossless, parse_rule
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.types import AcceptanceRule
from cactus_decoding.verification.verifiers import VERIFICATIONS

MAX_RULES = 2
_MAX_SEED = 2**32 - 1
"""A browser's numbers are exact up to 2^53."""


@dataclass(frozen=True)
class Request:
    """What a visitor asks for: one prompt and seed, under one rule or two.

    Attributes:
        prompt: the text to continue, or a question for the bundled pair.
        rules: one or two, each in a session of its own.
        target: name or path of the verifying model; None for the bundled one.
        draft: likewise of the proposing one, or ``ngram``.
        sampling: temperature and truncation.
        num_speculative_tokens: a number of proposals, or the spelling of a draft length (which each session reads anew, as
            some of them learn).
        verification: ``token`` or ``block``.
        budget: for each session whose rule spends anything.
        max_new_tokens: length of the answer.
        seed: of both sessions.
    """

    prompt: str
    rules: tuple[AcceptanceRule, ...]
    target: str | None = None
    draft: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    num_speculative_tokens: int | str = 6
    verification: str = "token"
    budget: Budget | None = None
    max_new_tokens: int = 256
    seed: int = 0

    def arguments(self, rule: AcceptanceRule) -> dict[str, Any]:
        """Return the arguments of `stream` for one of the rules."""
        return {
            "rule": rule,
            "budget": None if isinstance(rule, Lossless) else self.budget,  # which spends nothing
            "verification": self.verification,
            "num_speculative_tokens": self.num_speculative_tokens,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "min_p": self.sampling.min_p,
            "seed": self.seed,
        }


def read_request(body: Mapping[str, Any], limits: Limits, *, models: bool) -> Request:
    """Check what the page sent.

    Args:
        body: its JSON object.
        limits: upper limits.
        models: whether visitors may name models.

    Raises:
        TypeError: for a value of the wrong kind.
        ValueError: for an unknown name, or a value that is out of range or over a limit.

    Example:
        >>> read_request({"prompt": "Hi", "rules": ["lossless"], "seed": 3}, Limits(), models=False).seed
        3
    """
    known = {"prompt", "rules", "target", "draft", "sampling", "num_speculative_tokens", "verification", "budget",
             "max_new_tokens", "seed"}  # fmt: skip
    _check_names("the request", body, known)
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError("the prompt is empty: write a question or a text to continue")
    if len(prompt) > limits.prompt_characters:
        raise ValueError(f"the prompt has {len(prompt)} characters; allowed are {limits.prompt_characters}")
    seed = body.get("seed")
    seed = secrets.randbelow(_MAX_SEED) if seed is None else seed
    check_integer("seed", seed, 0, _MAX_SEED)
    max_new_tokens = body.get("max_new_tokens", 256)
    check_integer("max_new_tokens", max_new_tokens, 1, limits.new_tokens)
    verification = body.get("verification", "token")
    check_choice("verification", verification, VERIFICATIONS)
    target, draft = (_model_name(role, body.get(role), models) for role in ("target", "draft"))
    return Request(
        # lone surrogates, which JSON can spell, are no text: tokenizers fail on them
        prompt=prompt.encode(errors="replace").decode(),
        rules=_rules(body.get("rules")),
        target=target,
        draft=draft,
        sampling=_sampling(body.get("sampling", {})),
        num_speculative_tokens=_draft_length(body.get("num_speculative_tokens", 6), limits),
        verification=verification,
        budget=_budget(body.get("budget")),
        max_new_tokens=max_new_tokens,
        seed=seed,
    )


def _rules(given: object) -> tuple[AcceptanceRule, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_RULES:
        raise ValueError(f"rules must be a list of one or two spellings, but is {given!r}")
    return tuple(parse_rule(spelling) for spelling in given)


def _sampling(given: object) -> SamplingParams:
    values = _object("sampling", given)
    _check_names("sampling", values, set(vars(SamplingParams())))
    return SamplingParams(**values)


def _draft_length(given: object, limits: Limits) -> int | str:
    if isinstance(given, bool) or not isinstance(given, (int, str)):
        raise TypeError(f"num_speculative_tokens must be a number of proposals or a spelling, but is {given!r}")
    length = int(given) if isinstance(given, str) and given.strip().isdecimal() else given
    most = as_draft_length(length).most
    if most > limits.proposals:
        raise ValueError(f"num_speculative_tokens must be at most {limits.proposals} on this server, but is {most}")
    return length


def _budget(given: object) -> Budget | None:
    if given is None:
        return None
    values = _object("budget", given)
    _check_names("budget", values, {"nats", "max_shift", "expected_tokens"})
    budget = Budget(**values)
    return None if math.isinf(budget.limit) else budget  # the trace measures in any case


def _model_name(role: str, given: object, models: bool) -> str | None:
    if given in (None, ""):
        return None
    if not isinstance(given, str):
        raise TypeError(f"{role} must be a model's name or path, but is {given!r}")
    if not models and not (role == "draft" and given.strip() == "ngram"):
        raise ValueError(f"this server does not load models by name, so {role} must be left empty")
    return given.strip()


def _object(name: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise TypeError(f"{name} must be an object, but is {given!r}")
    return given


def _check_names(what: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise ValueError(f"{what} has no {unknown[0]!r}; known are {', '.join(sorted(known))}")
