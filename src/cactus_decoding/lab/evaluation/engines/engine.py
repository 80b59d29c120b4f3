"""What answers problems, what an answer is, and what it cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Protocol

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.generate import check_prompt, generate, stream
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.models.base import num_shared
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.types import AcceptanceRule, Outcome, Visit


@dataclass
class AuditedCosts:
    """Exact costs of the visited positions: the accepted ones and those of a first rejection.

    Tokens after a rejection were never emitted, and a bonus token comes from the target itself. Where a budget fell
    back to the lossless rule, a position costs nothing. What a budget charged is taken as it was charged. The nats of
    `RelaxedGreedy` are the log-probability given up.
    """

    metered: int = 0  # positions
    nats: float = 0.0  # sum of KL(output || target)
    tv: float = 0.0  # sum of total variations
    max_log_ratio: float = 0.0  # the largest log-likelihood ratio, in nats

    def add(self, outcome: Outcome) -> None:
        self.metered += len(outcome.visits)
        for rule, visits in groupby(outcome.visits, key=lambda visit: visit.rule):
            if not isinstance(rule, Lossless):
                self._add(rule, list(visits))

    def __add__(self, other: AuditedCosts) -> AuditedCosts:
        largest = max(self.max_log_ratio, other.max_log_ratio)
        return AuditedCosts(self.metered + other.metered, self.nats + other.nats, self.tv + other.tv, largest)

    def _add(self, rule: AcceptanceRule, visits: list[Visit]) -> None:
        charged = [visit.nats for visit in visits if visit.nats is not None]
        if isinstance(rule, GreedyRule):  # at temperature 0 another token is another distribution altogether
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
    id: str
    prompt: str
    answer: str | None = None  # what is extracted from a right answer; None where there is no right or wrong
    group: str = ""  # a difficulty or a category
    follow_ups: tuple[str, ...] = ()  # in a chat: messages after the answer to the prompt
    begun: str = ""  # in a chat: how every answer begins, which is given to the target

    def as_dict(self) -> dict[str, object]:
        """Return what is asked, for a hash; fields for chats are left out if they are empty."""
        return {name: value for name, value in asdict(self).items() if value or name not in ("follow_ups", "begun")}


@dataclass(frozen=True)
class Conversation:
    """Messages to be asked in the target's chat template; they alternate, the user's first."""

    messages: tuple[str, ...]
    system: str | None = None
    begun: str = ""  # how the answer begins, which is given to the target

    def text(self, tokenizer: Any) -> str:
        """Return what an engine that has the tokenizer continues."""
        return as_chat_prompt(tokenizer, *self.messages, system=self.system) + self.begun

    def encode(self, encoding: str = "utf-8") -> bytes:
        """Return bytes for a hash, which lm-evaluation-harness makes of every prompt."""
        return repr(self).encode(encoding)


Prompt = str | Conversation


def prompt_text(prompt: Prompt, tokenizer: Any) -> str:
    return prompt if isinstance(prompt, str) else prompt.text(tokenizer)


@dataclass(frozen=True)
class Answer:
    """A finished response. Of several turns, the numbers are sums and the text holds all of them."""

    text: str  # without special tokens
    finish_reason: str
    metrics: Metrics = field(default_factory=Metrics)  # whose wall time is without the audit's
    audited: AuditedCosts | None = None
    unknown: frozenset[str] = frozenset()  # the counts of `metrics` that nobody counted
    token_ids: tuple[int, ...] = ()
    turns: tuple[str, ...] = ()  # of several turns, the text of each
    first_seconds: float | None = None  # until its first token, as a server's client sees it
    retries: int = 0  # how often a server was asked in vain

    def __add__(self, other: Answer) -> Answer:
        """Return the answer followed by the next turn's."""
        audited = None if self.audited is None or other.audited is None else self.audited + other.audited
        return Answer(
            f"{self.text}\n\n{other.text}",
            "length" if "length" in (self.finish_reason, other.finish_reason) else other.finish_reason,
            self.metrics + other.metrics,
            audited,
            self.unknown | other.unknown,
            self.token_ids + other.token_ids,
            (*(self.turns or (self.text,)), *(other.turns or (other.text,))),
            self.first_seconds,
            self.retries + other.retries,
        )


class Engine(Protocol):
    """What answers prompts: it decodes with one target and one draft."""

    def check(self, request: Request) -> None:
        """Raise `ValueError` for a request that it cannot serve, before any work."""
        return None

    def check_prompt(self, prompt: Prompt, request: Request) -> None:
        """Raise `ValueError` for a prompt that does not fit, before any work."""
        return None

    def answer(self, prompt: Prompt, request: Request) -> Answer:
        """Answer one prompt."""

    def close(self) -> None:
        """Free what it holds beyond Python objects; the next answer takes it again."""
        return None


SHARED = 32
"""Prompts whose first tokens are the same, such as solved examples, share what they begin with: it is read once."""


PASSED_ON = (
    "rule", "budget", "policy", "verification", "num_speculative_tokens", "tree", "sampling", "max_new_tokens", "stop",
    "seed",
)  # fmt: skip
"""The fields of a request that engines with a loop of their own send, or check by name."""


def check_passed_on(request: Request, engine: str) -> None:
    """Raise `ValueError` for what is asked of an engine that is not told of it."""
    for name, declared in type(request).model_fields.items():
        if name not in PASSED_ON and (value := getattr(request, name)) != declared.default:
            raise ValueError(f"{engine} is not told of {name}, but it is {short_repr(value)}: leave it out")


class PairEngine(Engine):
    """Answers with one pair, one response at a time; every response begins with the same tokens in the caches.

    These are the tokens that all checked prompts with the same first tokens share. So no answer depends on what was
    answered before, and none is faster for it.
    """

    def __init__(self, pair: Pair, *, audited: bool = True) -> None:
        self._pair, self._audited = pair, audited
        self._beginnings: dict[tuple[int, ...], list[int]] = {}
        self._held: list[int] = []  # the beginning that was read last
        # the first passes of a process are slow
        generate(pair, "Question:", num_speculative_tokens=2, max_new_tokens=8, seed=0)

    def check(self, request: Request) -> None:
        self._pair.check(request)

    def check_prompt(self, prompt: Prompt, request: Request) -> None:
        token_ids = check_prompt(self._pair, prompt_text(prompt, self._pair.tokenizer), request)
        if len(token_ids) > SHARED:
            known = self._beginnings.setdefault(tuple(token_ids[:SHARED]), token_ids)
            del known[num_shared(known, token_ids) :]

    def _begin(self, token_ids: list[int]) -> None:
        """Make the caches hold what the prompt shares with others, read by itself, and nothing else."""
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

    def answer(self, prompt: Prompt, request: Request) -> Answer:
        """Answer one prompt as if it were the first: what an earlier answer left cached would shorten its time."""
        text = prompt_text(prompt, self._pair.tokenizer)
        self._begin(check_prompt(self._pair, text, request))
        audited = AuditedCosts() if self._audited and not request.scheme.lossy else None
        response = stream(self._pair, text, request)
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
