"""What answers problems, and what an answer is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cactus_decoding.evaluation.engines.auditing import AuditedCosts
from cactus_decoding.generation.metrics import Metrics

if TYPE_CHECKING:
    from cactus_decoding.generation.request import Request


@dataclass(frozen=True)
class Problem:
    """One thing that is asked.

    Attributes:
        id: its name within the task.
        prompt: the text that a model is given.
        answer: what a right answer comes to, after extraction; None where there is no right or wrong.
        group: the difficulty, or the category.
    """

    id: str
    prompt: str
    answer: str | None = None
    group: str = ""


@dataclass(frozen=True)
class Answer:
    """A finished response.

    Attributes:
        text: without special tokens.
        finish_reason: ``stop`` or ``length``.
        metrics: counts, and wall time without the audit's.
        audited: exact costs; None where nobody audited.
        relaxed_known: whether ``metrics.relaxed`` was counted.
        token_ids: the tokens of the answer, as the model wrote them.
    """

    text: str
    finish_reason: str
    metrics: Metrics = field(default_factory=Metrics)
    audited: AuditedCosts | None = None
    relaxed_known: bool = True
    token_ids: tuple[int, ...] = ()


class Engine(Protocol):
    """Decodes with one target and one draft."""

    def check(self, request: Request) -> None:
        """Raise `ValueError` for a request that it cannot serve, before any work."""
        ...

    def check_prompt(self, prompt: str, request: Request) -> None:
        """Raise `ValueError` for a prompt that does not fit, before any work."""
        ...

    def answer(self, prompt: str, request: Request) -> Answer:
        """Answer one prompt."""
        ...

    def close(self) -> None:
        """Give back what it holds beyond Python objects; the next answer takes it again."""
        ...
