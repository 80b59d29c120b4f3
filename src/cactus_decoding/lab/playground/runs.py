"""Runs: what visitors asked for, on pairs that are loaded once, and what is kept of them for later questions."""

from __future__ import annotations

import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch

from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.files.writing import plain_json
from cactus_decoding.core.models.loading import sentence_of
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair, load_pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.lab.playground.form import RunRequest
from cactus_decoding.lab.tracing import Trace, TracedPosition, TracedResponse, stream_trace, to_json, what_if
from cactus_decoding.lab.tracing.file import as_object, lines_of, tree_to_json
from cactus_decoding.lab.tracing.page import trace_to_html
from cactus_decoding.zoo.word_problems import as_prompt

KEPT = 2
"""How many pairs named by visitors stay in memory; the default one always does."""


class PairStore:
    """Loads pairs, and keeps the ones that were used last. One caller at a time.

    ``default`` names target and draft if a visitor names neither; None for the bundled ones.
    """

    def __init__(self, default: tuple[str | None, str | None] = (None, None)) -> None:
        self.default = default
        self._pairs: OrderedDict[tuple[str | None, str | None], Pair] = OrderedDict()

    def has(self, target: str | None, draft: str | None) -> bool:
        return self._key(target, draft) in self._pairs

    def get(self, target: str | None, draft: str | None) -> Pair:
        key = self._key(target, draft)
        if key not in self._pairs:
            self._pairs[key] = _load(*key)
        self._pairs.move_to_end(key)
        named = [each for each in self._pairs if each != self.default]
        for old in named[:-KEPT]:
            del self._pairs[old]
        return self._pairs[key]

    def _key(self, target: str | None, draft: str | None) -> tuple[str | None, str | None]:
        """Return the names to load by: a draft alone goes with the default target."""
        return (target, draft) if target is not None else (self.default[0], draft or self.default[1])


def _load(target: str | None, draft: str | None) -> Pair:
    try:
        return load_pair(target, draft)
    except ValueError:
        raise
    except Exception as error:  # a broken checkpoint must not end the server: its visitor gets a message
        reason = sentence_of(error)
        raise ValueError(f"cannot load the pair of target {target!r} and draft {draft!r}: {reason}") from error


SESSION_BYTES = 256 * 2**20
"""Memory for one session's rows; positions after that keep none, and cannot be asked about."""


class PlaygroundSession:
    """A response that grows step by step, and answers questions about its positions.

    Nothing else uses the caches of its models. Once it is closed it holds what was recorded, and no models.

    Attributes:
        bytes: memory for what was recorded so far, at most.
    """

    def __init__(self, pair: Pair, prompt: str, request: Request, *, max_rows_bytes: int = SESSION_BYTES) -> None:
        response = stream_trace(pair, prompt, request, keep_rows=True, max_rows_bytes=max_rows_bytes)
        self._response: TracedResponse | None = response
        self._closed: Trace | None = None
        self._positions: dict[int, TracedPosition] = {}
        self.header = plain_json(response.header.as_dict() | {"policy": str(request.policy)})
        self.bytes = bytes_of(response.header) + bytes_of(self.header)

    @property
    def trace(self) -> Trace:
        response = self._response
        if response is not None:
            return response.trace
        assert self._closed is not None
        return self._closed

    def step(self) -> dict[str, Any] | None:
        """Take a step and return its positions, its tree if it is one, and the metrics so far, or None at the end."""
        step = next(self._response or iter(()), None)
        if step is None:
            return None
        self.bytes += bytes_of(step)
        self._positions.update((position.place, position) for position in step.positions)
        shown = [to_json(position) for position in step.positions]
        trees = {step.step: tree_to_json(step.tree)} if step.tree else {}
        return {"positions": shown, "trees": trees, "metrics": self.trace.metrics.as_dict()}

    def end(self, *, stopped: bool = False) -> dict[str, Any]:
        """Return why the response ended, and its metrics."""
        trace = self.trace
        reason = "stopped" if stopped else trace.finish_reason
        return {"finish_reason": reason, "text": trace.text, "metrics": trace.metrics.as_dict()}

    def what_if(self, place: int, rule: AcceptanceRule | str) -> dict[str, Any]:
        """Return what a rule would have emitted at a position, and at what cost, for the recorded candidates."""
        position = self._positions.get(place)
        if position is None:
            raise ValueError(f"the answer has no token {place} that can be asked about")
        if position.drafted_id is None:
            raise ValueError("nothing was drafted at this token: it is the target's own, whatever the rule")
        if position.rows is None:
            raise ValueError("this token cannot be asked about: the rows of those before it took all memory for them")
        done = as_object(what_if(position.rows, rule))
        ids = [candidate.token_id for candidate in position.candidates]
        return done | {name: row[ids].tolist() for name, row in done.items() if isinstance(row, torch.Tensor)}

    def close(self) -> None:
        """Take no more steps, and let go of the models."""
        if self._response is not None:
            self._closed = self._response.trace  # first: others may ask meanwhile
            self._response.response.close()
            self._response = None

    def lines(self) -> str:
        trace = self.trace
        return "".join(lines_of(trace, rows=trace.header.vocabulary <= LARGE_VOCABULARY))

    def page(self) -> str:
        return trace_to_html(self.trace)


def bytes_of(recorded: object) -> int:
    """Return the memory that dataclasses, containers, numbers, texts and tensors take; more where they share some.

    >>> bytes_of(torch.zeros(250_000)) - bytes_of(torch.zeros(0))
    1000000
    """
    size = sys.getsizeof(recorded)
    if isinstance(recorded, torch.Tensor):
        return size + recorded.untyped_storage().nbytes()
    if isinstance(recorded, (list, tuple)):
        return size + sum(map(bytes_of, recorded))
    if isinstance(recorded, dict):
        return size + bytes_of([*recorded, *recorded.values()])
    if is_dataclass(recorded):
        values = vars(recorded)
        return size + sys.getsizeof(values) + sum(map(bytes_of, values.values()))
    return size


KEPT_BYTES = 2**30
"""Memory for what was recorded of all runs but the last."""
MAX_QUESTIONS = 64
"""Rules in one what-if question: the points of a curve."""


class UnknownRunError(ValueError):
    """A run that never existed, or is no longer kept."""


class Run:
    """A prompt and a seed, under one rule or two, on pairs with caches of their own.

    Its name is a secret that its visitor asks by. Set ``stopped`` to end the run before its next step.
    """

    def __init__(self, pair: Pair, twins: Sequence[Pair], request: RunRequest) -> None:
        """Begin the responses; raises `ValueError` for arguments that do not go together."""
        self.name, self.stopped = secrets.token_hex(16), False
        prompt = as_prompt(request.prompt) if pair.bundled else request.prompt
        if request.chat and not pair.bundled and getattr(pair.tokenizer, "chat_template", None):
            prompt = as_chat_prompt(pair.tokenizer, prompt, system=request.system)
        elif request.system is not None:
            raise ValueError("the target is asked by no chat template, so it has no place for a system message")
        self.seed = request.requests[0].seed
        self.sessions = [
            PlaygroundSession(twin, prompt, each) for twin, each in zip(twins, request.requests, strict=False)
        ]

    def close(self) -> None:
        for session in self.sessions:
            session.close()

    @property
    def bytes(self) -> int:
        return sum(session.bytes for session in self.sessions)

    def describe(self) -> list[dict[str, Any]]:
        return [session.header for session in self.sessions]

    def session(self, index: object) -> PlaygroundSession:
        check_integer("session", index, 0, len(self.sessions) - 1)
        return self.sessions[index]  # type: ignore[call-overload, no-any-return]

    def what_if(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``{"session": 0, "place": 7, "rules": [spelling, ...]}``: what each rule would have done there."""
        rules = asked.get("rules")
        if not isinstance(rules, list) or not 1 <= len(rules) <= MAX_QUESTIONS:
            raise ValueError(f"rules must be a list of 1 to {MAX_QUESTIONS} spellings")
        session, place = self.session(asked.get("session")), asked.get("place")
        check_integer("place", place, 0)
        parsed = [parse_rule(spelling, importing=False) for spelling in rules]
        return {"place": place, "rules": [session.what_if(place, rule) for rule in parsed]}  # type: ignore[arg-type]


class Caches(NamedTuple):
    """Pairs with the same weights as one, and caches of their own, on which a run takes its steps."""

    run: str
    pair: Pair
    twins: Sequence[Pair]


class Runs:
    """The latest runs, by name, of which the last one may be under way; older ones are forgotten with their rows.

    The caches of the last run stay as well, so that its visitor's next run reuses the longest cached prefix: no other
    visitor's does. Those of earlier runs are gone.
    """

    def __init__(self, kept: int) -> None:
        self._kept, self._runs = kept, OrderedDict[str, Run]()
        self._caches: Caches | None = None

    def begin(self, pair: Pair, request: RunRequest, left: threading.Event | None = None) -> Run:
        """Begin a run, which ends where ``left`` is set, and close those before it: a visitor may have left."""
        for earlier in self._runs.values():
            earlier.close()
        before, self._caches = self._caches, None
        known = before is not None and before.run == request.after and before.pair is pair
        twins = [*before.twins] if before is not None and known else []
        del before  # so that caches which nobody asks for are gone before there are new ones
        twins += [pair.twin() for _ in request.requests[len(twins) :]]
        for twin in twins:
            twin.cancel_by(left)
        run = Run(pair, twins, request)
        self._runs[run.name] = run
        self._caches = Caches(run.name, pair, twins)
        while len(self._runs) > 1 and (len(self._runs) > self._kept or self._bytes() > KEPT_BYTES):
            self._runs.popitem(last=False)
        return run

    def _bytes(self) -> int:
        return sum(run.bytes for run in self._runs.values())

    def get(self, name: str) -> Run:
        if name not in self._runs:
            raise UnknownRunError("this run is no longer kept: generate again")
        return self._runs[name]
