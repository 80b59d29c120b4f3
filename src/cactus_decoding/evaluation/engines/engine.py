"""What answers problems, and what an answer is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cactus_decoding.evaluation.engines.auditing import AuditedCosts
from cactus_decoding.generation.metrics import Metrics

if TYPE_CHECKING:
    from cactus_decoding.generation.request import Request

ENGINES = ("transformers", "vllm")


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
    """

    text: str
    finish_reason: str
    metrics: Metrics = field(default_factory=Metrics)
    audited: AuditedCosts | None = None
    relaxed_known: bool = True


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


def load_engine(name: str, target: str, draft: str, *, audited: bool, engine_arguments: str | None = None) -> Engine:
    """Return the engine of a name with its models loaded.

    Args:
        name: ``transformers`` or ``vllm``.
        target: path or hub name, or ``bundled``.
        draft: likewise, ``ngram``, or ``early_exit:layers=3`` (of transformers only).
        audited: whether answers carry their exact costs; those of vLLM never do.
        engine_arguments: further arguments of vLLM's engine, as a JSON object.

    Raises:
        ValueError: for an unknown engine, arguments that it does not take, or models that cannot be loaded.
    """
    from cactus_decoding.arguments.checks import check_choice

    check_choice("engine", name, ENGINES)
    if name == "vllm":
        from cactus_decoding.evaluation.engines.vllm import VllmEngine

        return VllmEngine.load(target, draft, engine_arguments)
    if engine_arguments is not None:
        raise ValueError(f"--engine-args is for --engine vllm, but the engine is {name!r}")
    from cactus_decoding.evaluation.engines.transformers import TransformersEngine

    return TransformersEngine.load(target, draft, audited=audited)
