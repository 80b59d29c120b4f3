"""How important a position may be where it is relaxed: what users set of importance, known without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cactus_decoding.core.knobs import Knob, check_knobs
from cactus_decoding.core.values import shown

if TYPE_CHECKING:
    from cactus_decoding.core.policy.importance import Importance
    from cactus_decoding.core.policy.vocabulary import Vocabulary
else:
    Importance = object  # knobs are read without torch


@dataclass(frozen=True)
class ImportanceLimit:
    """How important a position may be where it is relaxed, or how far it is relaxed then.

    It looks at the rows of both models, which are fixed once the tokens before a position are, and never at the drafted
    token; so a rule that is limited still has its relaxed target, and every guarantee of the rule and of a budget
    holds.

    Attributes:
        importance: an `Importance`, the file that holds one, or ``bundled:worded`` for the bundled one.
        max_importance: the greatest importance of a position that may be relaxed, in [0, 1]; others are judged
            losslessly. By default 0.2, or 1 with ``scale``.
        scale: whether the knob of the rule, one of which 0 is lossless, is multiplied by 1 - importance.

    Raises `TypeError` for what is no importance and no path, or a limit that is no number; `ValueError` for a limit out
    of range.

    Sources: AutoJudge (arXiv 2504.20039) for the limit; DIVERSED (arXiv 2604.07622), whose ensemble has a weight that
    is learned for each position, for the scale.

    Example:
        >>> ImportanceLimit("importance.safetensors").max_importance
        0.2
    """

    importance: Annotated[str | Importance, Knob(
        "Learned importance of positions, a file of 'cactus learn-importance': important ones are judged losslessly.",
        metavar="FILE")]  # fmt: skip
    max_importance: Annotated[float, Knob(
        "The greatest importance at which a position may be relaxed.", ge=0, le=1, metavar="P",
        shown="0.2, or 1 where it scales")] = None  # type: ignore[assignment]  # which becomes a number  # fmt: skip
    scale: Annotated[bool, Knob(
        "Multiply the knob of the rule by 1 - importance at each position (for cactus, clamped, ensemble, "
        "relaxed_greedy).", flat="importance_scale")] = False  # fmt: skip

    def __post_init__(self) -> None:
        if isinstance(self.importance, Path):
            object.__setattr__(self, "importance", str(self.importance))
        if not isinstance(self.importance, str) and not _is_importance(self.importance):
            raise TypeError(f"importance must be a file's path or an Importance, but is {shown(self.importance)}")
        if not self.importance:
            raise ValueError("importance must be a file's path, but is empty")
        if self.max_importance is None:
            object.__setattr__(self, "max_importance", 1.0 if self.scale else 0.2)
        check_knobs(self)

    def __str__(self) -> str:
        """The limit for people, such as ``importance ≤ 0.2``."""
        said = [f"importance ≤ {self.max_importance:g}"] if self.max_importance < 1 or not self.scale else []
        return " ".join([*said, *(["scaled by importance"] if self.scale else [])])

    @property
    def path(self) -> str:
        """The file that holds the importance; `ValueError` for one that was never saved."""
        path = self.importance if isinstance(self.importance, str) else self.importance.path
        if path is None:
            raise ValueError("a request's plain values name the file of its importance, but this one is in no file")
        return path

    def fit(self, vocabulary: Vocabulary) -> Importance:
        """Return the importance, read and fitted to a model's tokens."""
        if not isinstance(self.importance, str):
            return self.importance.fit(vocabulary)
        from cactus_decoding.core.policy.importance import read_importance

        return read_importance(self.importance).fit(vocabulary)


def _is_importance(given: object) -> bool:
    from cactus_decoding.core.policy.importance import Importance

    return isinstance(given, Importance)
