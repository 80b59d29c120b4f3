"""One run of an evaluation, the seeds of its answers, and the grid of all runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from cactus_decoding.core.declared import settings_of
from cactus_decoding.core.drafting.registry import as_draft_length
from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.policy.budget import Budget
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.core.request import SETTINGS, Request
from cactus_decoding.core.rules import as_rule, recorded_rule
from cactus_decoding.core.schemes import scheme_for
from cactus_decoding.core.types import DraftLength
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.lab.evaluation.chat import Chat, as_settings, from_settings

_OWN = ("task", "target", "draft", "engine", "problems")
_NOT_OF_A_RUN = ("max_shift", "stop")
"""What a run does not keep of a request: the budget is given by its nats, and stop strings are the task's."""


@dataclass(frozen=True, eq=False)
class RunConfig:
    """What one line of a result file is about; two are equal when their `key` is.

    ``engine`` is what reads the target; for a GGUF file ``transformers`` becomes ``llama-cpp``. The seed of an answer
    is made from the request's seed and the problem's place. ``chat`` is None where prompts are continued as they are.
    ``concurrency`` is how many questions a server is asked at a time; its draft length is ``auto`` where nobody says
    what it was started with.
    """

    task: str
    target: str
    draft: str
    engine: str = "transformers"
    problems: int = 0
    request: Request = field(default_factory=Request)
    chat: Chat | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        request = self.request if self.request.seed is not None else self.request.replace(seed=0)
        if request.budget is not None and math.isinf(request.budget.limit):
            request = request.replace(budget=None)  # it would only measure, which the audit does
        object.__setattr__(self, "request", request)
        if self.engine == "transformers" and parse_gguf(self.target) is not None:
            object.__setattr__(self, "engine", "llama-cpp")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunConfig) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def as_dict(self) -> dict[str, Any]:
        left_out = (*_NOT_OF_A_RUN, *(RelaxationPolicy().as_dict() if self.request.policy.everywhere else ()))
        left_out += () if self.proposes_trees else ("tree",)
        asked = {name: value for name, value in self.request.as_dict().items() if name not in left_out}
        load = {} if self.concurrency is None else {"concurrency": self.concurrency}
        return {name: getattr(self, name) for name in _OWN} | load | asked | as_settings(self.chat)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        names = set(cls("", "", "").as_dict())
        others = {"chat", "system", "concurrency"}
        unknown = sorted(set(values) - names - {"tree", *others, *SETTINGS})
        if (missing := sorted({*_OWN, "rule"} - set(values))) or unknown:
            raise ValueError(f"a run must have the fields {sorted(names)}, but lacks {missing} and adds {unknown}")
        asked = {name: value for name, value in values.items() if name not in {*_OWN, *others}}
        own = {name: values[name] for name in _OWN}
        request = Request.from_dict(asked | {"rule": recorded_rule(asked["rule"])})
        return cls(**own, request=request, chat=from_settings(values), concurrency=values.get("concurrency"))

    def asking(self, **changes: Any) -> RunConfig:
        return replace(self, request=self.request.replace(**changes))

    def request_at(self, place: int, stop: Sequence[str] = ()) -> Request:
        """Return the request for the problem at a place. Its seed is its own, and the same for every rule.

        A tree that learns belongs to the run, and goes on learning from answer to answer.
        """
        return self.request.replace(seed=seed_of(self.seed, place), stop=tuple(stop))

    @cached_property
    def key(self) -> str:
        return json.dumps(self.as_dict(), sort_keys=True)

    @property
    def seed(self) -> int:
        return self.request.seed or 0

    @property
    def rule(self) -> str:
        """The spelling of the acceptance rule, or the name of a verification that relaxes by itself."""
        return self.request.verification if self.request.scheme.lossy else str(self.request.rule)

    @property
    def num_speculative_tokens(self) -> int | str:
        """Proposals per step, or the spelling of a draft length; a tree's shape comes after ``tree:``."""
        if self.request.tree is not None:
            return f"tree:{self.request.tree}"
        length = str(self.request.num_speculative_tokens)
        return int(length) if length.isdecimal() else length

    @property
    def proposes_trees(self) -> bool:
        return self.request.tree is not None

    @property
    def coupled(self) -> bool:
        """Whether it shares its random numbers with other coupled runs of the same seed."""
        return self.request.scheme.shares_noise

    @property
    def label(self) -> str:
        budget = "" if self.request.budget is None else f" ≤{self.request.budget.limit:g} nats"
        how = "" if self.request.verification in ("token", self.rule) else f" {self.request.verification}"
        policy = f" {self.request.policy}" if not self.request.policy.everywhere else ""
        length = "" if self._length_unknown else f" ×{self.num_speculative_tokens}"
        return f"{self.rule}{policy}{budget}{how}{length}"

    @property
    def _length_unknown(self) -> bool:
        return self.concurrency is not None and self.num_speculative_tokens == "auto"

    @property
    def answered_by(self) -> str:
        """The engine, and of a server how many questions it had at a time."""
        return self.engine if self.concurrency is None else f"{self.engine}, {self.concurrency} at once"

    @property
    def comparable(self) -> tuple[object, ...]:
        """What two runs must share to be compared."""
        request = self.request
        return (
            self.task,
            self.problems,
            self.target,
            self.draft,
            self.answered_by,
            self.chat,
            request.sampling,
            request.max_new_tokens,
        )


def seed_of(seed: int, place: int) -> int:
    """Return the seed of a problem's answer, the same for every rule, in [0, 2**63).

    It is a hash, because generators look at the low bits only, and neighbouring seeds must not share answers.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {place}".encode()).digest()[:8], "big") >> 1


def proposing(length: DraftLength | int | str, verification: str) -> dict[str, Any]:
    """Return the settings for a draft length or a tree's shape, with the given verification or its counterpart."""
    tree = isinstance(length, TreeShape)
    spelled = {"tree": str(length)} if tree else {"num_speculative_tokens": length}  # each run learns by itself
    return {"verification": scheme_for(verification, tree=tree)} | spelled


NO_PROTECTION = "none"
"""The spelling of no protection among patterns."""


def parse_policies(protect: Sequence[str], **protection: Any) -> list[RelaxationPolicy]:
    """Return a policy for each set of protected tokens, each once; ``none`` protects nothing."""
    given = [name for name, value in protection.items() if value is not None]
    if given and all(pattern == NO_PROTECTION for pattern in protect):
        option = given[0].replace("_", "-")
        raise ValueError(f"--{option} is that of protected tokens: give --protect too, such as --protect digits")
    made = (
        RelaxationPolicy() if pattern == NO_PROTECTION else relaxation_policy(protect=pattern, **protection)
        for pattern in protect
    )
    return list(dict.fromkeys(made))


def protecting(settings: Mapping[str, Any], pattern: str | None) -> dict[str, Any]:
    """Return the settings of a protection with another pattern; None protects nothing."""
    kept = {name: None if pattern is None else settings.get(name) for name in settings_of(Protection)}
    return kept | {"protect": pattern}


def ways_to_verify(
    rules: Sequence[str], engine: str, settings: Mapping[str, Any], lengths: Sequence[DraftLength | int | str]
) -> dict[str, list[str]]:
    """Return how each rule is verified: as settings say, or else coupled where that is possible, and token by token.

    Coupled rules share their random numbers. It takes this package's loop, a temperature above 0 and a rule whose
    relaxed target does not depend on the drafted token; for relaxed rules also fixed numbers of proposals, in all runs,
    so that those of a rule can be compared. Lossless is verified in every way that a relaxed rule is.
    """
    from cactus_decoding.core.rules.base import row_rule

    if (given := settings.get("verification")) is not None:
        return {rule: [given] for rule in rules}
    draws_here = engine in ("transformers", "llama-cpp") and settings.get("temperature") != 0
    fixed = all(as_draft_length(length).fixed for length in lengths)

    def way(rule: str) -> str:
        coupled = draws_here and row_rule(as_rule(rule)) is not None and (fixed or _is_lossless(rule))
        return "coupled" if coupled else "token"

    ways = {rule: way(rule) for rule in rules}
    relaxed = sorted({way for rule, way in ways.items() if not _is_lossless(rule)})
    return {rule: relaxed if relaxed and _is_lossless(rule) else [way] for rule, way in ways.items()}


def _is_lossless(rule: str) -> bool:
    return str(as_rule(rule)) == "lossless"


def requests_of(
    engine: str,
    settings: Mapping[str, Any],
    *,
    rules: Sequence[str],
    lengths: Sequence[DraftLength | int | str],
    seeds: Sequence[int],
    protect: Sequence[str | None] | None = None,
) -> list[Request]:
    """Return every combination, seeds outermost, so that drift over time affects all rules alike.

    With no proposals every rule is plain sampling from the target, so that is lossless, and coupled where other
    requests are. The lossless rule spends nothing, so it gets no budget and no policy. ``settings`` are what all
    requests share, by the flat names of `Request.from_dict`; without a verification rules are verified as
    `ways_to_verify` says. ``protect`` lists patterns to protect, one after another, None in it for no protection.
    """
    unlimited = dict.fromkeys(settings_of(Budget)) | RelaxationPolicy().as_dict()
    protections = [settings.get("protect")] if protect is None else protect
    ways = ways_to_verify(rules, engine, settings, lengths)
    alone = "coupled" if any("coupled" in each for each in ways.values()) else "token"
    requests = list[Request]()
    for seed, length, rule, protected in product(seeds, lengths, rules, protections):
        lossless = length == 0 or _is_lossless(rule)
        for way in [alone] if length == 0 else ways[rule]:
            asked = dict(settings) | {"rule": "lossless" if lossless else rule, "seed": seed}
            asked |= protecting(settings, protected) | proposing(length, way) | (unlimited if lossless else {})
            requests.append(Request.from_dict(asked))
    return requests


def grid(
    target: str,
    engine: str,
    requests: Sequence[Request],
    *,
    tasks: Mapping[str, int],
    drafts: Sequence[str],
    chat: Chat | None = None,
    concurrency: int | None = None,
) -> list[RunConfig]:
    """Return the run of every draft, task and request, each once; ``tasks`` gives the number of problems of each."""
    runs = (
        RunConfig(task, target, draft, engine, problems, request, chat, concurrency)
        for draft, (task, problems), request in product(drafts, tasks.items(), requests)
    )
    return list(dict.fromkeys(runs))
