"""Generate a response and record what happened at every position."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Unpack

from cactus_decoding import zoo
from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.drafting.lookup import LookUpDrafter
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import plain_json
from cactus_decoding.core.generate import stream
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request, RequestSettings
from cactus_decoding.core.response import Response
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY
from cactus_decoding.lab.tracing.positions import PositionReader
from cactus_decoding.lab.tracing.trace import Trace, TracedStep, TraceHeader


class TraceSettings(RequestSettings, total=False):
    top_candidates: int
    keep_rows: bool | None
    max_rows_bytes: int | None
    target: str | None
    draft: str | None


class TracedResponse(Iterator[TracedStep]):
    """A response whose outcomes are read as its steps are taken; ``steps`` are those taken so far."""

    def __init__(self, header: TraceHeader, response: Response, reader: PositionReader) -> None:
        self.header, self.response = header, response
        self.steps: list[TracedStep] = []
        self._reader = reader

    def __next__(self) -> TracedStep:
        before = self.response.metrics.seconds
        outcome = next(self.response)
        positions = self._reader.read(outcome)
        step = TracedStep(
            step=len(self.steps),
            num_drafted=outcome.num_drafted,
            num_accepted=outcome.num_accepted,
            seconds=self.response.metrics.seconds - before,
            target_seconds=outcome.target_seconds,
            verify_seconds=outcome.verify_seconds,
            positions=positions,
            metered=Metrics.of(outcome).metered,
            finish_reason=outcome.finish_reason,
            tree=self._reader.read_tree(outcome, positions),
        )
        self.steps.append(step)
        return step

    @property
    def rows_bytes(self) -> int:
        return self._reader.rows_bytes

    @property
    def trace(self) -> Trace:
        response = self.response
        return Trace(self.header, tuple(self.steps), response.text, response.finish_reason, response.metrics)


def stream_trace(
    pair: Pair,
    prompt: str,
    request: Request | None = None,
    *,
    top_candidates: int = 5,
    keep_rows: bool | None = None,
    max_rows_bytes: int | None = None,
    target: str | None = None,
    draft: str | None = None,
    **settings: Unpack[RequestSettings],
) -> TracedResponse:
    """Return a traced response to iterate over step by step; the tokens are those of `cactus_decoding.stream`.

    The request is given as one object or as ``settings``; a seed is drawn if there is none. ``top_candidates`` of the
    likeliest tokens are recorded, under the target and under the draft. With ``keep_rows`` positions keep both models'
    rows, from which `what_if` computes any other rule. By default they do if the vocabulary has at most 4,096 tokens:
    two rows of 150,000 take 1.2 MB per position. Positions after ``max_rows_bytes`` keep none. ``target`` and ``draft``
    are the names in the trace, by default the models' own.

    Raises `TypeError`, `ValueError` as `cactus_decoding.generate` does.
    """
    top_candidates = check_integer("top_candidates", top_candidates, 1)
    if max_rows_bytes is not None:
        max_rows_bytes = check_integer("max_rows_bytes", max_rows_bytes, 0)
    request = Request.of(request, settings)
    if request.seed is None:
        request = request.replace(seed=secrets.randbelow(2**32))
    vocabulary = pair.target.vocabulary_size
    response = stream(pair, prompt, request)
    names = target or ("bundled" if pair.bundled else pair.target.name), draft or _draft_name(pair)
    header = TraceHeader(prompt, *names, request, vocabulary)
    arguments = {name: value for name, value in header.as_dict().items() if name not in ("prompt", "provenance")}
    header = replace(header, provenance=provenance(plain_json(arguments)))
    keep = vocabulary <= LARGE_VOCABULARY if keep_rows is None else keep_rows
    limit = math.inf if max_rows_bytes is None else max_rows_bytes
    reader = PositionReader(pair.tokenizer, request, top_candidates=top_candidates, max_rows_bytes=limit if keep else 0)
    return TracedResponse(header, response, reader)


def trace_response(pair: Pair, prompt: str, request: Request | None = None, **settings: Unpack[TraceSettings]) -> Trace:
    """Generate a whole response and return its trace; arguments and errors are those of `stream_trace`."""
    steps = stream_trace(pair, prompt, request, **settings)
    for _ in steps:
        pass
    return steps.trace


def _draft_name(pair: Pair) -> str:
    if isinstance(pair.drafter, LookUpDrafter):
        return str(pair.drafter)
    if isinstance(pair.drafter, ModelDrafter):
        name = pair.drafter.name
        return next((f"{zoo.BUNDLED}:{draft}" for draft in zoo.DRAFTS if name == str(zoo.path(draft))), name)
    return type(pair.drafter).__name__
