"""The ways to verify a step, and what each declares of itself. Requests are checked against it, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, Literal

from cactus_decoding.core.checks import check_choice
from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.spelling import fill


@dataclass(frozen=True)
class NoKnobs:
    @property
    def min_proposals(self) -> int:
        """How many proposals a step must make for this way to relax anything."""
        return 0


@dataclass(frozen=True)
class FlyKnobs(NoKnobs):
    """The knobs of `fly`; it overrules nothing with an infinite threshold, or a window as long as a step.

    The published code is ``window=5,behind=6,test=draws``, and the paper's entropy is ``top_k=0``. Above temperature 0
    ``test=draws`` is not lossless, even if nothing is overruled.
    """

    window: Annotated[int, Setting("proposals after a rejected one that must pass", "tokens", ge=1)] = 6
    threshold: Annotated[float, Setting("least entropy of the row; inf is lossless", ge=0, le=math.inf)] = 0.3
    top_k: Annotated[int, Setting("of the likeliest tokens alone; 0 for all, over its largest value", ge=0)] = 3
    behind: Annotated[int, Setting("proposals that must follow, if more than the window", "tokens", ge=0)] = 0
    test: Annotated[
        Literal["ratio", "draws"],
        Setting("the lossless test, or whether one of two draws of the target is the proposal"),
    ] = "ratio"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def room(self) -> int:
        """How many proposals must follow one that is overruled."""
        return max(self.window, self.behind)

    @property
    def min_proposals(self) -> int:
        return self.room + 1 if self.threshold < math.inf else 0


@dataclass(frozen=True)
class SchemeInfo:
    name: str  # as requests spell it
    summary: str  # what it does, in a line
    algorithm: str  # the function that does it, which is the only one of a module of this package by the same name
    chains: bool = False  # whether it verifies chains
    trees: bool = False
    counterpart: str = ""  # the scheme that does the same, or the nearest, where proposals are of the other kind
    needs_rows: bool = True  # the rule's relaxed target must not depend on the drafted token
    max_drawn: int | None = None  # most children of a token that may be drawn; None for any number
    # it judges a step as a whole, so that a relaxed rule needs as many proposals in every step, as many children
    # everywhere, and a width that no pace moves
    judges_steps: bool = True
    # it draws the target's tokens by the noise that the draft draws by, so that a relaxed rule needs proposals whose
    # number is fixed before the response: what was drafted after a rejection tells of tokens that are still to be drawn
    shares_noise: bool = False
    knobs: type[NoKnobs] = NoKnobs  # spelled after its name, as with rules
    lossy: bool = False  # it relaxes by itself, over several positions: no rule, budget or policy plays a part

    @property
    def function(self) -> Callable[..., Any]:
        """What verifies a step: a `Scheme`, which takes ``knobs`` and ``greedy`` too if it is lossy."""
        module = import_module(f"cactus_decoding.core.verification.{self.algorithm}")
        function: Callable[..., Any] = getattr(module, self.algorithm)
        return function


_SCHEMES = (
    SchemeInfo(
        "token",
        "one proposal after another",
        "match",
        chains=True,
        trees=True,
        needs_rows=False,
        judges_steps=False,
    ),
    SchemeInfo(
        "block",
        "all of a step jointly, which accepts more (for rules that do not look at the drafted token)",
        "joint",
        chains=True,
        counterpart="joint",
    ),
    SchemeInfo("joint", "the same for a tree", "joint", trees=True, counterpart="block", max_drawn=1),
    SchemeInfo(
        "coupled",
        "one text per seed, whatever is proposed (for rules that do not look at the drafted token)",
        "coupled",
        chains=True,
        trees=True,
        judges_steps=False,
        shares_noise=True,
    ),
    SchemeInfo(
        "fly",
        "looks ahead before it rejects, and promises nothing",
        "fly",
        chains=True,
        counterpart="token",
        needs_rows=False,
        judges_steps=False,
        knobs=FlyKnobs,
        lossy=True,
    ),
)
VERIFICATIONS = MappingProxyType({each.name: each for each in _SCHEMES})
"""Every way to verify by its name, the default first: the one place that lists them."""


def read_scheme(text: object) -> tuple[SchemeInfo, NoKnobs]:
    """Return the way to verify that a text spells, and its knobs; raise `ValueError` for an invalid spelling."""
    name, _, rest = text.partition(":") if isinstance(text, str) else (text, "", "")
    check_choice("verification", name, tuple(VERIFICATIONS))
    scheme = VERIFICATIONS[str(name)]
    return scheme, fill(scheme.name, scheme.knobs, rest, str(text))


def scheme_for(name: str, *, tree: bool) -> str:
    """Return a scheme, or its counterpart where it does not verify trees, or chains.

    >>> scheme_for("joint", tree=False), scheme_for("block", tree=True), scheme_for("token", tree=True)
    ('block', 'joint', 'token')
    """
    scheme = VERIFICATIONS.get(name.partition(":")[0])
    if scheme is None:  # requests refuse unknown names themselves
        return name
    return name if (scheme.trees if tree else scheme.chains) else scheme.counterpart
