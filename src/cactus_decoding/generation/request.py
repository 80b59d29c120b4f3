"""What is asked of a response, checked once: sampling, rule, budget, verification, draft length, limits and seed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from cactus_decoding.arguments.checks import check_choice, check_integer, shown
from cactus_decoding.budgets.budget import Budget, as_budget
from cactus_decoding.budgets.importance import Importance, ImportanceLimit
from cactus_decoding.budgets.metering import check_paced
from cactus_decoding.budgets.protection import Protection
from cactus_decoding.budgets.scaling import check_scalable
from cactus_decoding.budgets.spending import FittedPolicy, SpendingPolicy, spending_policy
from cactus_decoding.drafting.lengths import TreeShape, as_draft_length
from cactus_decoding.drafting.lengths.fixed import FixedLength
from cactus_decoding.files.jsonl import number_of
from cactus_decoding.rules import Lossless, as_rule
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.types import AcceptanceRule, Drafter, DraftLength, LogitsToProbs, judges_untempered
from cactus_decoding.verification.block import relaxed_target_of
from cactus_decoding.verification.verifiers import VERIFICATIONS, Verifier

MAX_SEED = 2**63 - 1
_SAMPLING = tuple(one.name for one in fields(SamplingParams))
_KINDS = {name: type(value) for name, value in vars(SamplingParams()).items()}
_SPENDING = tuple(SpendingPolicy().as_dict())
_BUDGET = {"budget_nats": "nats", "max_shift": "max_shift", "expected_tokens": "expected_tokens"}


class Settings(TypedDict, total=False):
    """The keyword arguments that make a `Request`, by their flat names."""

    rule: AcceptanceRule | str
    budget: Budget | float | None
    protect: str | Protection | None
    protect_threshold: float | None
    lossless_tokens: int
    relax_within: Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | None
    importance: str | Path | Importance | ImportanceLimit | None
    max_importance: float | None
    importance_scale: bool
    verification: str
    num_speculative_tokens: DraftLength | int | str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    max_new_tokens: int
    stop: Sequence[str]
    seed: int | None


@dataclass(frozen=True)
class Request:
    """All that one response is asked for; what may go with what is decided here and nowhere else.

    Attributes:
        rule: an acceptance rule or its spelling.
        budget: how far the response's distribution may move, a `Budget` or its nats; with None nobody measures.
        verification: ``token`` for one proposal after another, ``block`` for all of a step jointly, which accepts more
            and is open to rules whose relaxed target does not depend on the drafted token. In a tree ``token`` goes on
            behind recovered tokens that are proposals too, ``joint`` is what a block is in a chain, and ``recursive``
            and ``traversal`` are there to compare with.
        num_speculative_tokens: proposals per step, 0 or more (0 is plain sampling from the target), or a draft length
            that chooses their number, such as `AdaptiveLength`, or a tree's shape such as `StaticTree`, or a spelling.
        sampling: temperature and truncation.
        max_new_tokens: upper limit of the response's length, 1 or more; the context window is another.
        stop: strings that end the response.
        seed: the same seed gives the same response on the same machine; None draws one. A draft length that learns
            goes on learning from response to response, and then proposes other tokens.
        spending: where the rule may relax at all: not where a protected token may be written, not at important
            positions, and only in some phases.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for one out of range, or a combination that would not keep what it promises.

    Example:
        >>> request = Request.from_dict({"rule": "cactus:delta=0.5", "temperature": 0.6, "budget": 0.1})
        >>> str(request.rule), request.sampling.temperature, request.budget.limit
        ('cactus:delta=0.5', 0.6, 0.1)
        >>> Request.from_dict(request.as_dict()) == request
        True
    """

    rule: AcceptanceRule = field(default_factory=Lossless)
    budget: Budget | None = None
    verification: str = "token"
    num_speculative_tokens: DraftLength = field(default_factory=lambda: FixedLength(6))
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None
    spending: SpendingPolicy = field(default_factory=SpendingPolicy)

    if TYPE_CHECKING:  # what the constructor takes is wider than what the attributes hold

        def __init__(
            self,
            rule: AcceptanceRule | str = ...,
            budget: Budget | float | None = ...,
            verification: str = ...,
            num_speculative_tokens: DraftLength | int | str = ...,
            sampling: SamplingParams = ...,
            max_new_tokens: int = ...,
            stop: Sequence[str] = ...,
            seed: int | None = ...,
            spending: SpendingPolicy = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name, value in (
            ("rule", as_rule(self.rule)),
            ("budget", as_budget(self.budget)),
            ("num_speculative_tokens", as_draft_length(self.num_speculative_tokens)),
        ):
            object.__setattr__(self, name, value)
        if not isinstance(self.spending, SpendingPolicy):
            raise TypeError(f"spending must be a SpendingPolicy, but is {shown(self.spending)}")
        if not isinstance(self.sampling, SamplingParams):
            raise TypeError(f"sampling must be SamplingParams, but is {shown(self.sampling)}")
        check_choice("verification", self.verification, VERIFICATIONS)
        object.__setattr__(self, "max_new_tokens", check_integer("max_new_tokens", self.max_new_tokens, 1))
        if isinstance(self.stop, str) or not isinstance(self.stop, Iterable):
            raise ValueError(f"stop must be a sequence of strings that are not empty, but is {shown(self.stop)}")
        try:
            object.__setattr__(self, "stop", tuple(self.stop))
        except TypeError as error:  # such as a tensor without a dimension
            raise TypeError(f"stop must be a sequence of strings, but is {shown(self.stop)}") from error
        if not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"stop must be a sequence of strings that are not empty, but is {shown(list(self.stop))}")
        if self.seed is not None:
            object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, MAX_SEED))
        self._check_together()

    def _check_together(self) -> None:
        """Raise `ValueError` for a combination that would not keep what it promises."""
        rule, budget = self.rule, self.budget
        if self.spending.limit is not None and self.spending.limit.scale:
            check_scalable(rule)
        if judges_untempered(rule):
            name = str(rule).partition(":")[0]
            if self.sampling.temperature != 0:
                raise ValueError(f"{name} is a rule for temperature 0 (greedy decoding); set the temperature to 0")
            if self.verification != "token":
                raise ValueError(f"{name} draws nothing, so verification must be 'token'")
            if budget is not None and (budget.max_shift is not None or budget.expected_tokens is not None):
                raise ValueError(f"with {name} a budget limits the log-probability given up: give its nats, no more")
            return
        paced = budget is not None and budget.expected_tokens is not None
        self._check_tree(paced)
        if self.verification == "block":
            relaxed_target_of(rule, torch.ones(1, 1), torch.ones(1, 1))
            if not self.num_speculative_tokens.fixed and not isinstance(rule, Lossless):
                raise ValueError(_FIXED_BLOCKS)
            if paced:
                raise ValueError("block verification cannot pace a budget: the width must be the same in every step")
        if paced:
            check_paced(rule)

    def _check_tree(self, paced: bool) -> None:
        """Raise `ValueError` where a tree and the way to verify do not go together."""
        shape, how = self.num_speculative_tokens, self.verification
        if not isinstance(shape, TreeShape):
            if how not in ("token", "block"):
                raise ValueError(
                    f"verification={how!r} is for trees, but num_speculative_tokens is {shape}: give a tree such as "
                    "'tree:static=4.2.2.1', or use verification='block'"
                )
            return
        if how == "block":
            raise ValueError("block verification is for chains; use verification='joint', which is the same for trees")
        if how == "token":
            return
        relaxed_target_of(self.rule, torch.ones(1, 1), torch.ones(1, 1), f"{how} verification")
        if how == "joint" and shape.max_drawn > 1:
            raise ValueError(f"joint verification takes at most one drawn child a token, but the tree is {shape}")
        if how != "recursive" and not isinstance(self.rule, Lossless):
            if not shape.is_even:
                raise ValueError(
                    f"{how} verification of a relaxed rule needs a tree with as many children everywhere, such as "
                    f"tree:static=2.2.2, because a position must be judged alike in every step, but it is {shape}"
                )
            if paced:
                raise ValueError(f"{how} verification cannot pace a budget: the width must be the same in every step")

    def check_chain(self, reader: str) -> None:
        """Raise `ValueError` for a tree, on behalf of what reads chains of proposals only."""
        length = self.num_speculative_tokens
        if isinstance(length, TreeShape):
            raise ValueError(f"{reader} reads chains of proposals only, but num_speculative_tokens is {length}")

    def check_drafter(self, drafter: Drafter) -> None:
        """Raise `TypeError` for what is no drafter, and `ValueError` where verification would not keep its promise."""
        if isinstance(drafter, type) or not isinstance(drafter, Drafter):
            name = repr(drafter) if isinstance(drafter, type) else f"a {type(drafter).__name__}"  # not all of a model
            raise TypeError(f"drafter must be a subclass of cactus_decoding.Drafter, but is {name}")
        if isinstance(self.num_speculative_tokens, TreeShape) and not drafter.grows_trees:
            raise ValueError(
                f"a {type(drafter).__name__} proposes chains only, but num_speculative_tokens is "
                f"{self.num_speculative_tokens}: give a number, or a draft model"
            )
        if self.verification == "block" and not drafter.fixed_blocks and not isinstance(self.rule, Lossless):
            raise ValueError(_FIXED_BLOCKS)
        jointly = self.verification in ("joint", "traversal")
        if jointly and not drafter.fixed_blocks and not isinstance(self.rule, Lossless):
            raise ValueError(
                f"{self.verification} verification of a relaxed rule needs a draft model, because a position must be "
                f"judged alike in every step, but a {type(drafter).__name__} proposes as many tokens as it finds; use "
                "verification='token'"
            )

    def verifier(
        self,
        to_probs: LogitsToProbs,
        untempered: LogitsToProbs,
        sampling: SamplingParams | None = None,
        policy: FittedPolicy | None = None,
    ) -> Verifier:
        """Return what decides on the steps of this response; its arguments are those of `Verifier`."""
        return Verifier(self.rule, to_probs, untempered, sampling, self.budget, self.verification, policy)

    def as_dict(self) -> dict[str, Any]:
        """Return the request as flat names and plain values, for JSON; a budget by its limit in nats."""
        budget, length = self.budget, self.num_speculative_tokens
        return {
            "rule": str(self.rule),
            "budget_nats": None if budget is None else budget.limit,
            "max_shift": None if budget is None else budget.max_shift,
            "expected_tokens": None if budget is None else budget.expected_tokens,
            **self.spending.as_dict(),
            "verification": self.verification,
            "num_speculative_tokens": length.max_draft_tokens if type(length) is FixedLength else str(length),
            **{name: _KINDS[name](getattr(self.sampling, name)) for name in _SAMPLING},
            "max_new_tokens": self.max_new_tokens,
            "stop": list(self.stop),
            "seed": self.seed,
        }

    @classmethod
    def of(cls, request: Request | None, settings: Mapping[str, Any]) -> Request:
        """Return the request that is given as one object or else by its parts; raise `TypeError` for both."""
        if request is not None and settings:
            raise TypeError(f"give either a request or settings, but not both: {', '.join(settings)}")
        if request is None:
            return cls.from_dict(settings)
        if not isinstance(request, Request):
            raise TypeError(
                f"request must be a Request, but is {shown(request)}; give its parts by name: rule='lossless'"
            )
        return request

    @classmethod
    def from_file(cls, values: Mapping[str, Any]) -> Request:
        """Return the request of a file: infinity is a text there, and version 0.1 limited draft lengths by ``most``."""
        read = dict(values)
        if isinstance(length := read.get("num_speculative_tokens"), str):
            read["num_speculative_tokens"] = re.sub(r"\bmost=", "max_draft_tokens=", length)
        if read.get("budget_nats") is not None:
            read["budget_nats"] = number_of(read["budget_nats"])
        return cls.from_dict(read)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """Return the request of flat names: those of `as_dict`, or ``budget`` in the place of its parts.

        Raises:
            TypeError: for an unknown name, or a value of the wrong type.
            ValueError: for a value out of range, or a combination that would not keep what it promises.
        """
        own = [one.name for one in fields(cls) if one.name not in ("sampling", "spending")]
        known = [*own, *_SAMPLING, *_BUDGET, *_SPENDING]
        if unknown := [name for name in values if name not in known]:
            raise TypeError(f"a request has no {unknown[0]!r}; known are {', '.join(known)}")
        given = {name: value for name, value in values.items() if name in own}
        if spread := [name for name in _BUDGET if values.get(name) is not None]:
            if values.get("budget") is not None:
                raise TypeError(f"budget and {spread[0]} exclude each other: give a Budget that holds both")
            given["budget"] = _budget(**{part: values.get(name) for name, part in _BUDGET.items()})
        sampling = SamplingParams(**{name: values[name] for name in _SAMPLING if name in values})
        spending = spending_policy(**{name: values[name] for name in _SPENDING if values.get(name) is not None})
        return cls(**given, sampling=sampling, spending=spending)


def _budget(nats: float | None, max_shift: float | None, expected_tokens: int | None) -> Budget:
    """Return the budget of its parts; of nats and max_shift, `Request.as_dict` gives one and what follows from it."""
    if nats is not None and max_shift is not None and nats == Budget(max_shift=max_shift).limit:
        nats = None
    return Budget(nats, max_shift, expected_tokens)


_FIXED_BLOCKS = (
    "block verification of a relaxed rule needs a draft model and a fixed number of proposals, because the proposals "
    "at a position must have the same law in every step; use verification='token'"
)
