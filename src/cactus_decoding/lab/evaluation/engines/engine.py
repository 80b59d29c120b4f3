"""What answers problems, engines by name, what an answer is, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Protocol

from cactus_decoding.core.generate import check_prompt, generate, stream
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.models.base import num_shared
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.types import AcceptanceRule, Outcome, Visit, judges_untempered


@dataclass
class AuditedCosts:
    """Exact costs of the visited positions: the accepted ones and those of a first rejection.

    Whatever lies behind a rejection was never emitted, and a bonus token comes from the target itself. Where a budget
    fell back to the lossless rule, a position costs nothing. What a budget charged is taken as it was charged. The nats
    of `RelaxedGreedy` are the log-probability given up.

    ``metered`` counts the positions, ``nats`` and ``tv`` are sums over them of KL(output || target) and of total
    variations, and ``max_log_ratio`` is the largest log-likelihood ratio among them, in nats.

    Example:
        >>> from cactus_decoding import load_pair, stream
        >>> from cactus_decoding.zoo.word_problems import EXAMPLES
        >>> costs = AuditedCosts()
        >>> for outcome in stream(load_pair(), EXAMPLES[0].prompt, rule="cactus:delta=1", seed=0):
        ...     costs.add(outcome)
        >>> 0 < costs.tv < costs.metered
        True
    """

    metered: int = 0
    nats: float = 0.0
    tv: float = 0.0
    max_log_ratio: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add what a step's visited positions cost."""
        self.metered += len(outcome.visits)
        for rule, visits in groupby(outcome.visits, key=lambda visit: visit.rule):
            if not isinstance(rule, Lossless):
                self._add(rule, list(visits))

    def __add__(self, other: AuditedCosts) -> AuditedCosts:
        """Return what both cost."""
        largest = max(self.max_log_ratio, other.max_log_ratio)
        return AuditedCosts(self.metered + other.metered, self.nats + other.nats, self.tv + other.tv, largest)

    def _add(self, rule: AcceptanceRule, visits: list[Visit]) -> None:
        """Add positions that one rule judged."""
        charged = [visit.nats for visit in visits if visit.nats is not None]
        if judges_untempered(rule):  # at temperature 0 another token is another distribution altogether
            nats, tv = charged, [float(cost > 0) for cost in charged]
            largest = [math.inf if moved else 0.0 for moved in tv]
        else:
            results = [Position(visit.rows, visit.rows.proposal.parents[visit.node]).audit(rule) for visit in visits]
            nats = charged or [max(each.kl.item(), 0.0) for each in results]  # rounding takes a KL of 0 below 0
            tv = [each.tv.item() for each in results]
            largest = [max(each.max_log_ratio.item(), 0.0) for each in results]
        for cost in nats:  # one by one, as they were charged: the same rounding
            self.nats += cost
        self.tv += sum(tv)
        self.max_log_ratio = max(self.max_log_ratio, *largest)


@dataclass(frozen=True)
class Problem:
    """One thing that is asked.

    After extraction a right answer comes to ``answer``, None where there is no right or wrong; the group is a
    difficulty or a category. In a chat ``follow_ups`` are asked one after another once the prompt is answered, and
    ``begun`` is how every answer begins, which is given to the target.
    """

    id: str
    prompt: str
    answer: str | None = None
    group: str = ""
    follow_ups: tuple[str, ...] = ()
    begun: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return what is asked, for a hash; what only chats have is left out elsewhere."""
        return {name: value for name, value in asdict(self).items() if value or name not in ("follow_ups", "begun")}


@dataclass(frozen=True)
class Answer:
    """A finished response.

    The text lacks special tokens, the wall time of the metrics the audit's; ``audited`` is None where nobody audited,
    and ``relaxed_known`` says whether ``metrics.relaxed`` was counted. Of several turns these are sums, the text holds
    all of them, and so do ``turns``, one by one.
    """

    text: str
    finish_reason: str
    metrics: Metrics = field(default_factory=Metrics)
    audited: AuditedCosts | None = None
    relaxed_known: bool = True
    token_ids: tuple[int, ...] = ()
    turns: tuple[str, ...] = ()

    def __add__(self, other: Answer) -> Answer:
        """Return the answer that goes on with the next turn's."""
        audited = None if self.audited is None or other.audited is None else self.audited + other.audited
        return Answer(
            f"{self.text}\n\n{other.text}",
            "length" if "length" in (self.finish_reason, other.finish_reason) else other.finish_reason,
            self.metrics + other.metrics,
            audited,
            self.relaxed_known and other.relaxed_known,
            self.token_ids + other.token_ids,
            (*(self.turns or (self.text,)), *(other.turns or (other.text,))),
        )


class Engine(Protocol):
    """Decodes with one target and one draft."""

    def check(self, request: Request) -> None:
        """Raise `ValueError` for a request that it cannot serve, before any work."""

    def check_prompt(self, prompt: str, request: Request) -> None:
        """Raise `ValueError` for a prompt that does not fit, before any work."""

    def chat_prompt(self, messages: Sequence[str], system: str | None) -> str:
        """Return messages, the user's first, every other one an answer, as the target's chat template writes them."""

    def answer(self, prompt: str, request: Request) -> Answer:
        """Answer one prompt."""

    def close(self) -> None:
        """Give back what it holds beyond Python objects, if anything; the next answer takes it again."""
        return None


SHARED = 32
"""Tokens that prompts must begin with alike, such as solved examples, so that these are read only once."""


class TransformersEngine(Engine):
    """One pair, one response at a time, each of which begins with the same in its caches.

    That is what all checked prompts with the same first tokens begin with: no answer depends on what was answered
    before, and none is faster for it.
    """

    def __init__(self, pair: Pair, *, audited: bool = True) -> None:
        self._pair, self._audited = pair, audited
        self._beginnings: dict[tuple[int, ...], list[int]] = {}
        self._held: list[int] = []  # what was read last by itself
        # the first passes of a process are slow
        generate(pair, "Question:", num_speculative_tokens=2, max_new_tokens=8, seed=0)

    def check(self, request: Request) -> None:
        """Raise `ValueError` where the drafter does not go with the way to verify."""
        self._pair.check(request)

    def check_prompt(self, prompt: str, request: Request) -> None:
        """Raise `ValueError` for an empty prompt, or one that leaves no room in a context window."""
        token_ids = check_prompt(self._pair, prompt, request)
        if len(token_ids) > SHARED:
            known = self._beginnings.setdefault(tuple(token_ids[:SHARED]), token_ids)
            del known[num_shared(known, token_ids) :]

    def chat_prompt(self, messages: Sequence[str], system: str | None) -> str:
        """Return messages as the chat template of the target's tokenizer, or of its GGUF file, writes them."""
        return as_chat_prompt(self._pair.tokenizer, *messages, system=system)

    def _begin(self, token_ids: list[int]) -> None:
        """Have the caches hold what the prompt shares with others, read by itself, and nothing else."""
        found = self._beginnings.get(tuple(token_ids[:SHARED]), [])
        beginning = list(found) if len(found) < len(token_ids) and self._pair.kept_prompts else []
        draft = getattr(self._pair.drafter, "model_cache", None)
        if draft is None:
            self._pair.drafter.reset()
        for cache in (self._pair.target, draft):
            if cache is None:
                continue
            cache.forget_if_changed()
            same = beginning == self._held and cache.read_on([*beginning, -1]) == len(beginning)
            if not same:
                cache.reset()
            if not same and beginning:
                cache.append(beginning, rows=1)
        self._held = beginning

    def answer(self, prompt: str, request: Request) -> Answer:
        """Answer one prompt, as if it were the first: what an earlier answer left cached would cut this one's time."""
        self._begin(check_prompt(self._pair, prompt, request))
        audited = AuditedCosts() if self._audited and not request.lossy else None
        response = stream(self._pair, prompt, request)
        for outcome in response:
            if audited is not None:
                audited.add(outcome)
        return Answer(
            response.text,
            response.finish_reason or "length",
            response.metrics,
            audited,
            token_ids=tuple(response.token_ids),
        )
