"""What a request asks for by its extra arguments, what the server was started with, and what may go with what."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cactus_decoding.arguments.checks import check_number
from cactus_decoding.arguments.suggestions import suggestion
from cactus_decoding.generation.request import Request
from cactus_decoding.rules import RULES, Lossless, parse_rule
from cactus_decoding.rules.base import Rule

logger = logging.getLogger("vllm.cactus_decoding")

GREEDY_BELOW = 1e-5
"""vLLM takes a lower temperature for greedy decoding, where every rule is an exact match."""
RULE_KEY, BUDGET_KEY = "acceptance_rule", "budget"
METRICS_KEY, AUDIT_KEY = "acceptance_metrics", "audit_fraction"
OUR_KEYS = (RULE_KEY, BUDGET_KEY, METRICS_KEY, AUDIT_KEY)


def request_of(asked: Mapping[str, Any] | None, default: Request | None = None) -> Request | None:
    """Return what is asked for by ``acceptance_rule`` and ``budget`` among other keys, completed from a default.

    Sampling, limits and seed are vLLM's own: the request that is returned says nothing of them.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for an unknown rule, one that vLLM's sampler cannot follow, a parameter out of range, a budget
            without a rule, or a key that is nearly one of these.

    Example:
        >>> request_of({"acceptance_rule": "cactus:delta=0.5", "budget": 2, "top_n": 3}).budget
        Budget(nats=2, max_shift=None, expected_tokens=None)
        >>> request_of({"acceptance_rule": "top_k:k=5"})
        Traceback (most recent call last):
        ValueError: acceptance_rule 'top_k:k=5' does not work in vLLM, whose own sampler cannot follow it; ...
    """
    asked = asked or {}
    _check_spelling(asked, (RULE_KEY, BUDGET_KEY))
    rule, budget = asked.get(RULE_KEY), asked.get(BUDGET_KEY)
    if rule is None and budget is None:
        return default
    if budget is not None:
        check_number(BUDGET_KEY, budget, 0, math.inf)
    if rule is None:
        if default is None:
            raise ValueError(
                f"{BUDGET_KEY} is given ({budget!r}) without {RULE_KEY}, and the server has no default rule"
            )
        return Request(default.rule, budget)
    if not isinstance(rule, str):  # before the cache, which takes hashable values only
        raise TypeError(f"{RULE_KEY} must be a string such as 'cactus:delta=1.0', but is {rule!r}")
    return Request(_parse(rule), default.budget if budget is None and default is not None else budget)


def _check_spelling(given: Iterable[object], ours: tuple[str, ...]) -> None:
    """Raise `ValueError` for a key that is nearly one of ours; others may be meant for somebody else."""
    for key in given:
        if isinstance(key, str) and key not in OUR_KEYS and (close := suggestion(key, ours, cutoff=0.8)):
            raise ValueError(f"there is no key {key!r}{close}")


def nats_of(request: Request) -> float:
    """Return how many nats a request may spend; infinite without a budget."""
    return math.inf if request.budget is None else request.budget.limit


def is_lossless(request: Request) -> bool:
    """Say whether vLLM can do without us."""
    return isinstance(request.rule, Lossless) or nats_of(request) == 0


def admitted(params: Any, default: Request | None) -> Request | None:
    """Return what a worker does for a request, or None where vLLM's own verification is all it needs.

    The front end has refused bad values; one that gets here all the same is verified losslessly, because an exception
    in a worker ends the server.

    Args:
        params: vLLM's sampling parameters.
        default: of the server.
    """
    if params.temperature < GREEDY_BELOW:
        return None
    try:
        asked = request_of(params.extra_args, default)
    except (TypeError, ValueError) as error:
        logger.error("a request is verified losslessly: %s", error)
        return None
    return None if asked is None or is_lossless(asked) else asked


@lru_cache(maxsize=1024)
def _parse(spelling: str) -> Rule:
    try:
        rule = parse_rule(spelling)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{RULE_KEY}: {error}") from None
    if not rule.recovers_from_relaxed_target:
        known = ", ".join(name for name, one in RULES.items() if one.recovers_from_relaxed_target)
        raise ValueError(
            f"{RULE_KEY} {str(rule)!r} does not work in vLLM, whose own sampler cannot follow it; "
            f"rules that do are {known}"
        )
    return rule


@dataclass(frozen=True)
class ServerConfig:
    """Our part of vLLM's configuration; the keys are those of ``--additional-config``.

    Attributes:
        speculates: whether there is a draft at all.
        method: vLLM's ``rejection_sample_method``; rules work with ``standard`` only.
        watermarks: whether tokens are watermarked, which the rules leave no room for.
        default: for requests that ask for nothing (``acceptance_rule``, ``budget``).
        metrics: whether to count for Prometheus (``acceptance_metrics``, true by default).
        audit_fraction: part of the positions whose emitted nats are computed (``audit_fraction``, 0 by default).
    """

    speculates: bool
    method: str
    watermarks: bool
    default: Request | None
    metrics: bool
    audit_fraction: float

    @classmethod
    def of(cls, vllm_config: Any) -> ServerConfig:
        """Read vLLM's configuration.

        Raises:
            TypeError: for a value of the wrong type.
            ValueError: for one out of range, or a default rule that the server cannot follow.
        """
        speculative = vllm_config.speculative_config
        keys = vllm_config.additional_config if isinstance(vllm_config.additional_config, Mapping) else {}
        _check_spelling(keys, OUR_KEYS)
        metrics, fraction = keys.get(METRICS_KEY, True), keys.get(AUDIT_KEY, 0.0)
        if not isinstance(metrics, bool):
            raise TypeError(f"{METRICS_KEY} must be true or false, but is {metrics!r}")
        check_number(AUDIT_KEY, fraction, 0, 1)
        config = cls(
            speculates=speculative is not None,
            method="standard" if speculative is None else speculative.rejection_sample_method,
            watermarks=getattr(vllm_config, "watermark_config", None) is not None,
            default=request_of(keys),
            metrics=metrics,
            audit_fraction=float(fraction),
        )
        config.check(config.default)
        return config

    def check(self, asked: Request | None) -> None:
        """Raise `ValueError` unless the server can do what is asked."""
        if asked is None or is_lossless(asked):
            return
        if not self.speculates:
            raise ValueError(f"{RULE_KEY} needs a draft, and the server runs without --speculative-config")
        if self.method != "standard":
            raise ValueError(f"{RULE_KEY} needs rejection_sample_method 'standard', but the server has {self.method!r}")
        if self.watermarks:
            raise ValueError(f"{RULE_KEY} does not work on a server that watermarks its tokens")
