"""How important a position may be where it is relaxed: what users set of importance, known without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator

from cactus_decoding.core.declared import Model, Setting
from cactus_decoding.core.mistakes import shown

if TYPE_CHECKING:
    from cactus_decoding.core.policy.importance import Importance
    from cactus_decoding.core.policy.vocabulary import Vocabulary
else:
    Importance = Any  # few requests have one, and the others do without its module


def _importance(importance: str | Path | Importance) -> str | Importance:
    if isinstance(importance, Path):
        importance = str(importance)
    if isinstance(importance, str) and not importance:
        raise ValueError("importance must be a file's path, but is empty")
    if not isinstance(importance, str):
        from cactus_decoding.core.policy.importance import Importance as Learned

        if not isinstance(importance, Learned):
            raise TypeError(f"importance must be a file's path or an Importance, but is {shown(importance)}")
    return importance


def _path(importance: str | Importance) -> str:
    path = importance if isinstance(importance, str) else importance.path
    if path is None:
        raise ValueError("a request's plain values name the file of its importance, but this one is in no file")
    return path


class ImportanceLimit(Model):
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

    importance: Annotated[
        str | Importance,
        PlainValidator(_importance),
        PlainSerializer(_path),
        Field(
            description="Learned importance of positions, a file of 'cactus learn-importance': important ones are "
            "judged losslessly.",
        ),
        Setting(metavar="FILE"),
    ]
    max_importance: Annotated[
        float,
        Field(ge=0, le=1, description="The greatest importance at which a position may be relaxed."),
        Setting(metavar="P", shown="0.2, or 1 where it scales", from_clients=True),
    ] = None  # type: ignore[assignment]  # which becomes a number
    scale: Annotated[
        bool,
        Field(
            description="Multiply the knob of the rule by 1 - importance at each position (for cactus, clamped, "
            "ensemble, relaxed_greedy).",
        ),
        Setting(flat="importance_scale"),
    ] = False

    def model_post_init(self, context: object) -> None:
        """Choose a limit where none is given."""
        if self.max_importance is None:
            object.__setattr__(self, "max_importance", 1.0 if self.scale else 0.2)

    def __str__(self) -> str:
        """The limit for people, such as ``importance ≤ 0.2``."""
        said = [f"importance ≤ {self.max_importance:g}"] if self.max_importance < 1 or not self.scale else []
        return " ".join([*said, *(["scaled by importance"] if self.scale else [])])

    @property
    def path(self) -> str:
        """The file that holds the importance; `ValueError` for one that was never saved."""
        return _path(self.importance)

    def fit(self, vocabulary: Vocabulary) -> Importance:
        """Return the importance, read and fitted to a model's tokens."""
        if not isinstance(self.importance, str):
            return self.importance.fit(vocabulary)
        from cactus_decoding.core.policy.importance import read_importance

        return read_importance(self.importance).fit(vocabulary)
