"""What draft lengths have in common, and how often kinds of proposals were kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.spelling import spell

if TYPE_CHECKING:
    from torch import Tensor


class StatelessLength:
    """Ignores what becomes of steps."""

    def begin_response(self) -> None:
        pass

    def should_continue(self, logits: Tensor) -> bool:
        return True

    def end_draft(self, num_drafted: int) -> None:
        pass

    def end_step(self, num_accepted: int) -> None:
        pass


@dataclass(frozen=True)
class FixedLength(StatelessLength):
    """Proposes ``max_draft_tokens`` tokens in every step; 0 is plain sampling from the target.

    Raises:
        ValueError: for a negative number.

    Example:
        >>> FixedLength(6).begin_step()
        6
    """

    max_draft_tokens: int

    fixed: ClassVar[bool] = True

    def __str__(self) -> str:
        return str(self.max_draft_tokens)

    def __post_init__(self) -> None:
        checked = check_integer("num_speculative_tokens", self.max_draft_tokens, 0)
        object.__setattr__(self, "max_draft_tokens", checked)

    def begin_step(self) -> int:
        return self.max_draft_tokens


@dataclass(frozen=True)
class ConfidenceStop(FixedLength):
    """Stops after a token drawn from probabilities of which none is ``threshold`` or more.

    The probability is the draft's own, before temperature and truncation, so that a threshold means the same under all
    of them. The token that was drawn when the draft was unsure stays proposed: dropping it for being unlikely would
    change the draft's distribution. Drafters without probabilities count as sure.

    With ``unsure=discard`` the draft ends before that token: none is drawn, so none is dropped, and the target writes
    it, as in the fallback of the Big Little decoder (arXiv 2302.07863).

    Args:
        max_draft_tokens: proposals per step at most, 0 or more.
        threshold: in [0, 1]; 0 never stops.
        unsure: whether to ``propose`` a token when the draft is unsure, or ``discard`` its probabilities.

    Raises:
        ValueError: for a parameter out of range.

    Example:
        >>> import torch
        >>> ConfidenceStop(threshold=0.6).should_continue(torch.tensor([0.5, 0.5]).log())
        False
    """

    max_draft_tokens: Annotated[int, Setting("proposals per step at most", "tokens", ge=0)] = 10
    threshold: Annotated[float, Setting("a likelier token goes on", ge=0, le=1)] = 0.4
    unsure: Annotated[Literal["propose", "discard"], Setting("what to do with the row that is not sure")] = "propose"

    fixed: ClassVar[bool] = False

    def __str__(self) -> str:
        return spell("confidence", self)

    def __post_init__(self) -> None:
        check_fields(self)

    def should_continue(self, logits: Tensor) -> bool:
        return confidence(logits) >= self.threshold


def confidence(logits: Tensor) -> float:
    return float(logits.float().softmax(-1).max())


class Rates:
    """Running rates of success by kind, each beginning with a guess that counts as ``weight`` observations.

    An observation keeps a share of its weight (``memory``) when another one of its kind comes, and so does the guess.
    """

    def __init__(self, guesses: Iterable[float], weight: float, memory: float) -> None:
        self._kept = [weight * guess for guess in guesses]
        self._seen, self._memory = [weight] * len(self._kept), memory

    @property
    def weighted(self) -> list[tuple[float, float]]:
        """Each rate, and as how many observations it counts."""
        return [*zip(self, self._seen, strict=True)]

    @weighted.setter
    def weighted(self, values: Iterable[tuple[float, float]]) -> None:
        rates, self._seen = map(list, zip(*values, strict=True))
        self._kept = [rate * seen for rate, seen in zip(rates, self._seen, strict=True)]

    def __getitem__(self, kind: int) -> float:
        return self._kept[kind] / self._seen[kind]

    def __iter__(self) -> Iterator[float]:
        return (kept / seen for kept, seen in zip(self._kept, self._seen, strict=True))

    def learn(self, kind: int, kept: bool) -> None:
        self._seen[kind] = self._memory * self._seen[kind] + 1
        self._kept[kind] = self._memory * self._kept[kind] + kept
