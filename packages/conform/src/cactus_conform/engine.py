"""What an engine is asked, what it answers (tokens in, tokens out), and what to install for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LETTERS = "abcdefghi"
END = 0  # ends every output; the other tokens are letters
VOCABULARY = len(LETTERS) + 1
DRAFTS = ("good", "bad", "adversarial", "deterministic")
LOOK_UP = "ngram"


@dataclass(frozen=True)
class Sampling:
    """How tokens are to be drawn and proposed, by the names of transformers and vLLM."""

    temperature: float = 1.0  # 0 takes the most likely token
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0  # least probability kept, relative to the likeliest token's
    repetition_penalty: float = 1.0  # divides positive logits of tokens in the text, multiplies negative ones
    presence_penalty: float = 0.0  # subtracted from logits of tokens in the output
    frequency_penalty: float = 0.0  # the same, times how often the output has them
    logit_bias: tuple[tuple[int, float], ...] = ()  # tokens, and what is added to their logits
    letters: str = ""  # a grammar: the output consists of these; empty: no grammar
    stop_token_ids: tuple[int, ...] = ()  # they end the output besides `END`, and are part of it
    max_tokens: int = 6
    draft: str = "good"  # the folder's name of the model that proposes; ``ngram`` looks proposals up
    num_speculative_tokens: int = 3  # per step
    cancels: bool = False  # answer only after another request on the same models was begun and cancelled

    @property
    def ends(self) -> frozenset[int]:
        return frozenset({END, *self.stop_token_ids})

    @property
    def needs(self) -> frozenset[str]:
        default = Sampling()
        return frozenset(name for name in OPTIONAL if getattr(self, name) != getattr(default, name))

    def named(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names or ("temperature", *CUTS)}


CUTS = ("top_k", "top_p", "min_p")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
OPTIONAL = (*CUTS, *PENALTIES, "logit_bias", "letters", "stop_token_ids", "cancels")
"""Attributes of `Sampling` that not every engine supports."""


@dataclass(frozen=True)
class Query:
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class EngineAnswer:
    token_ids: tuple[int, ...]  # the output, including the token that ended it
    logprobs: tuple[float, ...] | None = None  # of each token, where the engine reports them
    accepted: int | None = None  # proposals kept, if counted; servers count some after the end too


class Engine:
    """What is tested; an adapter of an engine derives from it.

    Attributes:
        name: of the engine, with its version.
        supports: which of `OPTIONAL` it honours, and of ``batch`` (queries are answered together), ``repeats`` (a seed
            gives the same output again), ``logprobs``, ``coupled`` (seed and place decide a token: see `coupled`).
        drafts: names of the models that it can propose with.
        temperature_last: whether it applies cuts before the temperature, as llama.cpp does.
        penalises_prompt: whether the repetition penalty counts the prompt, which it does not in llama.cpp.
        ends_alike: whether every answer that ended reports `END`, as servers do not tell which token ended it.
    """

    name: str
    supports: frozenset[str]
    drafts: Sequence[str] = DRAFTS
    temperature_last = False
    penalises_prompt = True
    ends_alike = False

    def answer(self, queries: Sequence[Query]) -> list[EngineAnswer]:
        """EngineAnswer queries, which have one draft, in order and, where the engine can, as one batch."""
        return [self.one(query) for query in queries]

    def one(self, query: Query) -> EngineAnswer:
        raise NotImplementedError

    def close(self) -> None:
        """Free what was started."""


class FunctionEngine(Engine):
    """A function ``(prompt, sampling, seed) -> tokens``.

    It is given the prompt's tokens as a list, a `Sampling` and a seed, and returns the output's tokens, including the
    one that ends it. Its attribute ``supports`` is that of `Engine`; without it, all of `OPTIONAL` but ``cancels``.
    With ``batch`` in it, the function is called with lists of these three, of one batch, and returns a list of outputs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"engine must be an engine or a function, but is {function!r}")
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._function = function
        self.supports = frozenset(getattr(function, "supports", {*OPTIONAL} - {"cancels"})) | {"repeats"}
        self.drafts = tuple(getattr(function, "drafts", DRAFTS))

    def answer(self, queries: Sequence[Query]) -> list[EngineAnswer]:
        asked = [(list(query.prompt), query.sampling, query.seed) for query in queries]
        try:
            if "batch" in self.supports:
                outputs = self._function(*map(list, zip(*asked, strict=True)))
            else:
                outputs = [self._function(*each) for each in asked]
            return [EngineAnswer(tuple(int(token) for token in tokens)) for tokens in outputs]
        except Exception as error:
            raise EngineError(f"{self.name} failed: {type(error).__name__}: {error}") from error


class EngineError(OSError):
    """The engine is down, slow, or gives an invalid answer, so that nothing can be said of its distribution."""


CLEARANCE = 2e-3  # positions nearer than this to the edge of a cut are left out, because rounding may decide there


def check_drawn(samples: int, false_alarm: float) -> None:
    """Raise `ValueError` for a number of samples or a probability of false alarms that makes no sense."""
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be an integer of at least 1, but is {samples!r}")
    if not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm must be in (0, 1), but is {false_alarm!r}")


@contextmanager
def needing(package: str) -> Iterator[None]:
    """Import a package, or raise `ValueError` with the command that installs it."""
    try:
        yield
    except ImportError:
        command = f"{sys.executable or 'python'} -m pip install {package}"
        raise ValueError(f"{package} is not installed: run {command}") from None
