"""What a request or the server asks for: an acceptance rule, and a budget in nats for the whole response."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cactus_decoding.arguments.checks import check_number
from cactus_decoding.rules import parse_rule
from cactus_decoding.rules.base import Rule

logger = logging.getLogger("vllm.cactus_decoding")

GREEDY_BELOW = 1e-5
"""vLLM takes a lower temperature for greedy decoding, where every rule is an exact match."""
RULE_KEY, BUDGET_KEY = "acceptance_rule", "budget"
EXPRESSIBLE = ("lossless", "cactus", "ensemble", "lenience", "clamped")
"""Rules that vLLM's own sampler follows when it is given other logits: what they recover from never holds n itself."""


@dataclass(frozen=True)
class Relaxation:
    """A rule, and how many nats a response may spend on it.

    Attributes:
        rule: the acceptance rule.
        budget: in nats, over all verified positions of a response; infinite by default.
    """

    rule: Rule
    budget: float = math.inf

    @property
    def lossless(self) -> bool:
        """Whether vLLM can do without us."""
        return self.rule.name == "lossless" or self.budget == 0


def relaxation(asked: Mapping[str, Any] | None, default: Relaxation | None = None) -> Relaxation | None:
    """Return what is asked for by ``acceptance_rule`` and ``budget`` among other keys, completed from a default.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for an unknown rule, one that vLLM's sampler cannot express, a parameter out of range, or a budget
            without a rule.

    Example:
        >>> relaxation({"acceptance_rule": "cactus:delta=0.5", "top_n": 3})
        Relaxation(rule=Cactus(delta=0.5, solver='taylor', divergence='kl', max_ratio=inf), budget=inf)
        >>> relaxation({"acceptance_rule": "top_k:k=5"})
        Traceback (most recent call last):
        ValueError: acceptance_rule 'top_k:k=5' does not work in vLLM: it recovers ... clamped
    """
    asked = asked or {}
    rule, budget = asked.get(RULE_KEY), asked.get(BUDGET_KEY)
    if rule is None and budget is None:
        return default
    if budget is not None:
        check_number(BUDGET_KEY, budget, 0, math.inf)
        if rule is None and default is None:
            raise ValueError(
                f"{BUDGET_KEY} is given ({budget!r}) without {RULE_KEY}, and the server has no default rule"
            )
    elif default is not None:
        budget = default.budget
    if rule is not None:
        if not isinstance(rule, str):  # before the cache, which takes hashable values only
            raise TypeError(f"{RULE_KEY} must be a string such as 'cactus:delta=1.0', but is {rule!r}")
        parsed = _parse(rule)
    else:
        assert default is not None
        parsed = default.rule
    return Relaxation(parsed, math.inf if budget is None else float(budget))


def admitted(params: Any, default: Relaxation | None) -> Relaxation | None:
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
        asked = relaxation(params.extra_args, default)
    except (TypeError, ValueError) as error:
        logger.error("a request is verified losslessly: %s", error)
        return None
    return None if asked is None or asked.lossless else asked


@lru_cache(maxsize=1024)
def _parse(spelling: str) -> Rule:
    try:
        rule = parse_rule(spelling)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{RULE_KEY}: {error}") from None
    if rule.name not in EXPRESSIBLE:
        raise ValueError(
            f"{RULE_KEY} {str(rule)!r} does not work in vLLM: it recovers from a draw that vLLM's sampler does not "
            f"make; rules that do are {', '.join(EXPRESSIBLE)}"
        )
    return rule
