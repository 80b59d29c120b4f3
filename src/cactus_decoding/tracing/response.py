"""Generate a response and record what happened at every position."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack, cast

from torch import Tensor

from cactus_decoding import zoo
from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.budgets.budget import Budget, as_budget
from cactus_decoding.drafting.lengths import as_draft_length
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.drafting.ngram import NgramDrafter
from cactus_decoding.files.provenance import provenance
from cactus_decoding.generation.detokenizer import PieceStream
from cactus_decoding.generation.generate import Response, stream
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.generation.pair import Pair
from cactus_decoding.models.cached import CachedModel, vocabulary_size
from cactus_decoding.rules import as_rule
from cactus_decoding.sampling.params import LARGE_VOCABULARY, SamplingParams
from cactus_decoding.tracing.codec import as_object
from cactus_decoding.tracing.recorder import TracingVerifier
from cactus_decoding.tracing.token_names import TokenNames
from cactus_decoding.tracing.trace import Trace, TracedPosition, TracedStep, TraceHeader
from cactus_decoding.types import AcceptanceRule, DraftLength, TargetObserver, Verifier


class Settings(TypedDict, total=False):
    """What `cactus_decoding.generate` takes beside models and prompt, with its defaults."""

    rule: AcceptanceRule | str
    budget: Budget | float | None
    verification: str
    num_speculative_tokens: DraftLength | int | str
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    stop: Sequence[str]
    seed: int | None


class TracedResponse(Iterator[TracedStep]):
    """A traced response that grows as its steps are taken.

    Attributes:
        header: what was asked for.
        steps: those taken so far.
        metrics: counts and seconds so far, without the time of tracing.
        response: the response itself.
    """

    def __init__(
        self,
        header: TraceHeader,
        response: Response,
        tracer: TracingVerifier,
        pieces: PieceStream,
        clock: _Timed | None,
    ) -> None:
        """Follow a response that has not begun."""
        self.header, self.response = header, response
        self.steps: list[TracedStep] = []
        self.metrics = Metrics()
        self._tracer, self._pieces, self._clock = tracer, pieces, clock

    def __next__(self) -> TracedStep:
        """Take one step."""
        start = time.perf_counter()
        step = next(self.response)
        elapsed = time.perf_counter() - start - self._tracer.tracing_seconds
        self.metrics += replace(step.metrics(), seconds=elapsed)
        self.response.metrics.seconds = self.metrics.seconds
        traced = TracedStep(
            step=len(self.steps),
            num_drafted=step.num_drafted,
            num_accepted=step.num_accepted,
            seconds=elapsed,
            target_seconds=None if self._clock is None else self._clock.seconds,
            verify_seconds=self._tracer.seconds,
            positions=tuple(self._finished(len(step.token_ids), last=step.finish_reason is not None)),
            metered=self._tracer.metered,
            finish_reason=step.finish_reason,
        )
        self.steps.append(traced)
        return traced

    @property
    def trace(self) -> Trace:
        """What was recorded so far."""
        response = self.response
        return Trace(self.header, tuple(self.steps), response.text, response.finish_reason, self.metrics)

    def _finished(self, num_emitted: int, *, last: bool) -> Iterator[TracedPosition]:
        """Yield the step's positions with their places and texts."""
        first = sum(len(step.positions) for step in self.steps)
        for i, position in enumerate(self._tracer.positions):
            pieces = self._pieces.push(position.token_id, position.fate) if i < num_emitted else []
            if last and i == num_emitted - 1:
                pieces += self._pieces.finish()
            text = "".join(piece.text for piece in pieces)
            yield replace(position, place=first + i, step=len(self.steps), emitted=i < num_emitted, text=text)


def stream_trace(
    pair: Pair,
    prompt: str,
    *,
    top_candidates: int = 5,
    keep_rows: bool | None = None,
    target: str | None = None,
    draft: str | None = None,
    **settings: Unpack[Settings],
) -> TracedResponse:
    r"""Return a traced response to iterate over step by step; the tokens are those of `cactus_decoding.stream`.

    Args:
        pair: models from `load_pair`.
        prompt: the text to continue.
        top_candidates: how many of the likeliest tokens are recorded, under the target and under the draft; 1 or more.
        keep_rows: whether positions keep both models' rows, from which `what_if` works out any other rule. By default
            they do where the vocabulary has at most 4,096 tokens: two rows of 150,000 take 1.2 MB a position.
        target: what the trace calls the target; None for what it calls itself.
        draft: likewise.
        settings: what `cactus_decoding.generate` takes; a seed is drawn where there is none.

    Raises:
        TypeError, ValueError: as `cactus_decoding.generate` does.

    Example:
        >>> from cactus_decoding import load_pair
        >>> steps = stream_trace(load_pair(), "Question: Tom has 4 pens and gets 2 more. How many?\nAnswer:", seed=0)
        >>> first = next(steps)
        >>> len(first.positions) == first.num_accepted + 1
        True
    """
    check_integer("top_candidates", top_candidates, 1)
    rule, budget = as_rule(settings.get("rule", "lossless")), as_budget(settings.get("budget"))
    asked: dict[str, Any] = {**settings}
    sampling = SamplingParams(**{name: asked[name] for name in vars(SamplingParams()) if name in asked})
    seed = settings.get("seed")
    asked |= {
        "rule": rule,
        "budget": budget,
        "seed": secrets.randbelow(2**32) if seed is None else seed,
    }
    vocabulary = vocabulary_size(pair.target.model)
    keep = vocabulary <= LARGE_VOCABULARY if keep_rows is None else keep_rows
    clock, tracers = _timed(pair), list[TracingVerifier]()

    def observe(verifier: Verifier) -> Verifier:
        tracers.append(
            TracingVerifier(
                verifier,
                rule,
                sampling,
                TokenNames(pair.tokenizer),
                budget=budget,
                verification=settings.get("verification", "token"),
                top_candidates=top_candidates,
                keep_rows=keep,
            )
        )
        return tracers[0]

    timed_pair = pair if clock is None else replace(pair, target=cast(CachedModel, clock))
    response = stream(timed_pair, prompt, observe=observe, **asked)
    names = target or _target_name(pair), draft or _draft_name(pair)
    header = _header(prompt, names, asked, sampling, budget, vocabulary)
    return TracedResponse(header, response, tracers[0], PieceStream(pair.tokenizer), clock)


def trace_response(
    pair: Pair,
    prompt: str,
    *,
    top_candidates: int = 5,
    keep_rows: bool | None = None,
    target: str | None = None,
    draft: str | None = None,
    **settings: Unpack[Settings],
) -> Trace:
    r"""Generate a whole response and return its trace; arguments and errors are those of `stream_trace`.

    Example:
        >>> from cactus_decoding import load_pair
        >>> prompt = "Question: Tom has 4 pens. He buys 2 more pens. How many pens does he have now?\nAnswer:"
        >>> trace = trace_response(load_pair(), prompt, rule="cactus:delta=0.5", seed=0)
        >>> trace.text == "".join(position.text for position in trace.positions)
        True
    """
    steps = stream_trace(
        pair, prompt, top_candidates=top_candidates, keep_rows=keep_rows, target=target, draft=draft, **settings
    )
    for _ in steps:
        pass
    return steps.trace


class _Timed:
    """A target that knows how long its last forward pass took."""

    def __init__(self, model: CachedModel) -> None:
        self._model, self.seconds = model, 0.0

    def append(self, token_ids: list[int] | Tensor, rows: int) -> Tensor:
        start = time.perf_counter()
        logits = self._model.append(token_ids, rows)
        self.seconds = time.perf_counter() - start
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _timed(pair: Pair) -> _Timed | None:
    """Return a clock around the target, unless the draft looks into it: then the two cannot be told apart."""
    return None if isinstance(pair.drafter, TargetObserver) else _Timed(pair.target)


def _header(
    prompt: str,
    names: tuple[str, str],
    asked: dict[str, Any],
    sampling: SamplingParams,
    budget: Budget | None,
    vocabulary: int,
) -> TraceHeader:
    length = asked.get("num_speculative_tokens", 6)
    number = as_draft_length(length)
    header = TraceHeader(
        prompt=prompt,
        target=names[0],
        draft=names[1],
        rule=str(asked["rule"]),
        verification=asked.get("verification", "token"),
        num_speculative_tokens=length if isinstance(length, (int, str)) else str(number),
        **vars(sampling),
        max_new_tokens=asked.get("max_new_tokens", 256),
        stop=tuple(asked.get("stop", ())),
        seed=asked["seed"],
        budget_nats=None if budget is None else budget.limit,
        max_shift=None if budget is None else budget.max_shift,
        expected_tokens=None if budget is None else budget.expected_tokens,
        vocabulary=vocabulary,
        provenance={},
    )
    arguments = {name: value for name, value in as_object(header).items() if name not in ("prompt", "provenance")}
    return replace(header, provenance=provenance(arguments))


def _target_name(pair: Pair) -> str:
    return "bundled" if pair.bundled else str(pair.target.model.name_or_path)


def _draft_name(pair: Pair) -> str:
    if isinstance(pair.drafter, NgramDrafter):
        return "ngram"
    if isinstance(pair.drafter, ModelDrafter):
        name = str(pair.drafter.model.name_or_path)
        return "bundled" if name == str(zoo.path("draft")) else name
    return type(pair.drafter).__name__
