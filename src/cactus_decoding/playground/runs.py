"""Runs: what one visitor asked for, its sessions, and what is kept of them for questions afterwards."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.generation.pair import Pair
from cactus_decoding.models.tokenizers import as_chat_prompt
from cactus_decoding.playground.request import RunRequest
from cactus_decoding.playground.session import Session
from cactus_decoding.zoo.word_problems import as_prompt

ROWS_BYTES = 2**30
"""Memory for the rows of all runs but the last."""
MAX_QUESTIONS = 64
"""Rules that may be asked about at once: the points of a curve."""


class UnknownRunError(ValueError):
    """A run that never was, or is no longer kept."""


class Run:
    """A prompt and a seed, under one rule or two.

    Attributes:
        name: a secret that its visitor asks by.
        seed: of both.
        sessions: one for each rule.
        stopped: set to end the run before its next step.
    """

    def __init__(self, pair: Pair, request: RunRequest) -> None:
        """Begin the responses; raises `ValueError` for arguments that do not go together."""
        self.name, self.stopped = secrets.token_hex(16), False
        prompt = as_prompt(request.prompt) if pair.bundled else request.prompt
        if request.chat and not pair.bundled and getattr(pair.tokenizer, "chat_template", None):
            prompt = as_chat_prompt(pair.tokenizer, prompt)
        self.seed = request.requests[0].seed
        self.sessions = [Session(pair.twin(), prompt, each) for each in request.requests]

    def describe(self) -> list[dict[str, Any]]:
        """Return what the page shows of the sessions before they begin."""
        return [session.header for session in self.sessions]

    def session(self, index: object) -> Session:
        """Return a session by its number."""
        check_integer("session", index, 0, len(self.sessions) - 1)
        return self.sessions[index]  # type: ignore[call-overload, no-any-return]

    def what_if(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``{"session": 0, "place": 7, "rules": [spelling, ...]}``: what each rule would have done there."""
        rules = asked.get("rules")
        if not isinstance(rules, list) or not 1 <= len(rules) <= MAX_QUESTIONS:
            raise ValueError(f"rules must be a list of 1 to {MAX_QUESTIONS} spellings")
        session, place = self.session(asked.get("session")), asked.get("place")
        check_integer("place", place, 0)
        return {"place": place, "rules": [session.what_if(place, rule) for rule in rules]}  # type: ignore[arg-type]


class Runs:
    """The latest runs, by name; older ones are forgotten, rows and all."""

    def __init__(self, kept: int) -> None:
        """Start with none; ``kept`` is how many are remembered."""
        self._kept, self._runs = kept, OrderedDict[str, Run]()

    def begin(self, pair: Pair, request: RunRequest) -> Run:
        """Begin a run, and forget the oldest one where there are too many."""
        run = Run(pair, request)
        self._runs[run.name] = run
        while len(self._runs) > 1 and (len(self._runs) > self._kept or self._bytes() > ROWS_BYTES):
            self._runs.popitem(last=False)
        return run

    def _bytes(self) -> int:
        return sum(session.bytes for run in self._runs.values() for session in run.sessions)

    def get(self, name: str) -> Run:
        """Return a run by its name.

        Raises:
            UnknownRunError: if it is not there.
        """
        if name not in self._runs:
            raise UnknownRunError("this run is no longer kept: generate again")
        return self._runs[name]
