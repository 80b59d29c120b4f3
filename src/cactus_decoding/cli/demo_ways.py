"""What `cactus demo` compares: ways to sample, and how they did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cactus_decoding import Metrics, Pair, Request, Response
    from cactus_decoding.lab.evaluation.score import Score
    from cactus_decoding.zoo.word_problems import WordProblem


@dataclass
class Way:
    """One way to sample, with one of the bundled drafts, and how it did.

    ``score`` has right answers and all counts together; texts, whether each was right, and counts are of each response.
    """

    name: str
    draft: str
    request: Request
    score: Score
    texts: list[str] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    counts: list[Metrics] = field(default_factory=list)

    @property
    def proposals(self) -> int:
        """Tokens that the draft proposes per step."""
        return self.request.num_speculative_tokens.max_draft_tokens

    def stream(self, pair: Pair, problem: WordProblem, seed: int) -> Response:
        """Begin a response to a problem."""
        from cactus_decoding import stream

        return stream(pair, problem.prompt, self.request.replace(seed=seed))

    def add(self, problem: WordProblem, response: Response) -> None:
        """Count a finished response to the next problem."""
        from cactus_decoding.zoo.word_problems import extract_answer

        self.score.add(problem, response)
        self.texts.append(response.text)
        self.right.append(extract_answer(response.text) == problem.answer)
        self.counts.append(response.metrics)

    def as_dict(self) -> dict[str, object]:
        """Return what was done and found, for JSON."""
        asked = self.request.as_dict()
        given = {name: asked[name] for name in ("rule", "protect", "budget_nats", "num_speculative_tokens")}
        return (
            {"name": self.name, "draft": self.draft}
            | given
            | self.score.as_dict()
            | {"texts": self.texts, "right_answers": self.right}
        )


@dataclass
class Comparison:
    """What the demo compares, in the order of its table.

    The rule is relaxed where no protected token is at stake, then everywhere, with a draft that cannot calculate, with
    that one and a budget, and as Cactus with each delta that was asked for.
    """

    plain: Way
    lossless: Way
    protected: Way
    unprotected: Way
    weak: Way
    budgeted: Way
    cactus: list[Way]

    @property
    def all(self) -> list[Way]:
        """All of them."""
        return [self.plain, self.lossless, *self.relaxed]

    @property
    def relaxed(self) -> list[Way]:
        """Those whose rule is not the lossless one."""
        return [self.protected, self.unprotected, self.weak, self.budgeted, *self.cactus]
