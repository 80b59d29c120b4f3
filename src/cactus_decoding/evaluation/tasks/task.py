"""What is asked: problems, and how an answer is judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice

from cactus_decoding.evaluation.engines.engine import Answer, Engine, Problem
from cactus_decoding.evaluation.run_config import RunConfig


@dataclass(frozen=True, eq=False)
class Task:
    """Problems and how their answers are read.

    Attributes:
        name: what result files call it.
        problems: in order.
        extract: turns an answer's text into what is compared with `Problem.answer`; None where nothing is scored.
        stop: strings that end an answer.
    """

    name: str
    problems: tuple[Problem, ...]
    extract: Callable[[str], str | None] | None = None
    stop: tuple[str, ...] = ()

    def digest_of(self, problems: int, *, prompts_only: bool = False) -> str:
        """Return a hash of the first problems, or of what they ask: runs of the same task must have the same."""
        given = [asdict(problem) for problem in self.problems[:problems]]
        if prompts_only:
            given = [{"id": each["id"], "prompt": each["prompt"]} for each in given]
        text = json.dumps(given, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def is_right(self, problem: Problem, text: str) -> bool | None:
        """Say whether an answer is the problem's; None where nothing is scored."""
        if self.extract is None or problem.answer is None:
            return None
        return self.extract(text) == problem.answer

    def check(self, engine: Engine, config: RunConfig) -> None:
        """Raise `ValueError` where a problem cannot be answered, before any is."""
        for problem in self.problems[: config.problems]:
            try:
                engine.check_prompt(problem.prompt, config.request)
            except ValueError as error:
                raise ValueError(f"task {self.name}, problem {problem.id!r}: {error}") from None

    def answer(
        self, engine: Engine, config: RunConfig, start: int = 0
    ) -> Iterator[tuple[Problem, Answer, bool | None]]:
        """Yield each problem of a run from the place ``start`` on, its answer, and whether that is right."""
        for place, problem in islice(enumerate(self.problems[: config.problems]), start, None):
            answer = engine.answer(problem.prompt, config.request_at(place, self.stop))
            yield problem, answer, self.is_right(problem, answer.text)
