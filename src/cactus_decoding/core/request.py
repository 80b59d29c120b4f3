"""What is asked of a response, checked once: sampling, rule, budget, verification, draft length, limits and seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from cactus_decoding.core.compatibility import NEEDS_BLOCKS, check_scheme
from cactus_decoding.core.drafting.lengths.base import FixedLength, PerResponse
from cactus_decoding.core.drafting.registry import as_draft_length, proposals_of
from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.knobs import build, settings_of, values_of
from cactus_decoding.core.policy.budget import Budget, as_budget
from cactus_decoding.core.policy.decide import check_paced
from cactus_decoding.core.policy.relaxation import POLICY_SETTINGS, RelaxationPolicy, relaxation_policy
from cactus_decoding.core.rules import Lossless, as_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.settings import NUM_SPECULATIVE_TOKENS, PARTS, SETTINGS
from cactus_decoding.core.types import AcceptanceRule, Drafter, DraftLength, LogitsToProbs, judges_untempered
from cactus_decoding.core.types.drafting import check_drafter
from cactus_decoding.core.values import shown
from cactus_decoding.core.verification.declarations import read_scheme
from cactus_decoding.core.verification.walk import Verifier

if TYPE_CHECKING:
    from cactus_decoding.core.policy.fitted import FittedPolicy
    from cactus_decoding.core.policy.importance import Importance
    from cactus_decoding.core.policy.importance_limit import ImportanceLimit
    from cactus_decoding.core.policy.protection import Protection


class Settings(TypedDict, total=False):
    """The keyword arguments that make a `Request`, by their flat names; see `SETTINGS`."""

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
    tree: TreeShape | str | None
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
        verification: one of `VERIFICATIONS`: ``token`` for one proposal after another, ``block`` for all of a step
            jointly, which accepts more and is open to rules whose relaxed target does not depend on the drafted token.
            In a tree ``token`` goes on behind recovered tokens that are proposals too, ``joint`` is what a block is in
            a chain, and ``recursive`` and ``traversal`` are there to compare with. ``fly`` relaxes by itself.
        num_speculative_tokens: proposals per step, 0 or more (0 is plain sampling from the target), or a draft length
            that chooses their number, such as `AdaptiveLength`, or its spelling; of a tree, how many of its tokens can
            be kept.
        tree: the shape of the tree that a step proposes, such as `StaticTree`, or its spelling; None for chains.
        sampling: temperature and truncation.
        max_new_tokens: upper limit of the response's length, 1 or more; the context window is another.
        stop: strings that end the response.
        seed: the same seed gives the same response on the same machine, with ``auto`` by the same profile; None draws
            one. `AdaptiveLength` goes on learning from response to response, and then proposes other tokens.
        policy: where the rule may relax at all: not where a protected token may be written, not at important
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
    num_speculative_tokens: DraftLength = None  # type: ignore[assignment]  # which becomes a length
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None
    policy: RelaxationPolicy = field(default_factory=RelaxationPolicy)
    tree: TreeShape | None = None

    if TYPE_CHECKING:  # what the constructor takes is wider than what the attributes hold

        def __init__(
            self,
            rule: AcceptanceRule | str = ...,
            budget: Budget | float | None = ...,
            verification: str = ...,
            num_speculative_tokens: DraftLength | int | str | None = ...,
            sampling: SamplingParams = ...,
            max_new_tokens: int = ...,
            stop: Sequence[str] = ...,
            seed: int | None = ...,
            policy: RelaxationPolicy = ...,
            tree: TreeShape | str | None = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        least, default = read_scheme(self.verification)[1].min_proposals, NUM_SPECULATIVE_TOKENS
        default += 0 if least <= default else least - 1
        proposals = proposals_of(self.num_speculative_tokens, self.tree) or FixedLength(default)
        tree = proposals if isinstance(proposals, TreeShape) else None
        length = proposals if tree is None else FixedLength(tree.max_draft_tokens)
        for name, value in (
            ("rule", as_rule(self.rule)),
            ("budget", as_budget(self.budget)),
            ("num_speculative_tokens", length),
            ("tree", tree),
            *((name, SETTINGS[name].check(getattr(self, name))) for name in ("max_new_tokens", "seed")),
        ):
            object.__setattr__(self, name, value)
        if not isinstance(self.policy, RelaxationPolicy):
            raise TypeError(f"policy must be a RelaxationPolicy, but is {shown(self.policy)}")
        if not isinstance(self.sampling, SamplingParams):
            raise TypeError(f"sampling must be SamplingParams, but is {shown(self.sampling)}")
        if isinstance(self.stop, str) or not isinstance(self.stop, Iterable):
            raise ValueError(f"stop must be a sequence of strings that are not empty, but is {shown(self.stop)}")
        try:
            object.__setattr__(self, "stop", tuple(self.stop))
        except TypeError as error:  # such as a tensor without a dimension
            raise TypeError(f"stop must be a sequence of strings, but is {shown(self.stop)}") from error
        if not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"stop must be a sequence of strings that are not empty, but is {shown(list(self.stop))}")
        self._check_together()

    def _check_together(self) -> None:
        """Raise `ValueError` for a combination that would not keep what it promises."""
        rule, budget = self.rule, self.budget
        if self.policy.limit is not None and self.policy.limit.scale:
            from cactus_decoding.core.policy.fitted import check_scalable

            check_scalable(rule)
        if judges_untempered(rule):
            name = getattr(rule, "name", rule)
            if self.sampling.temperature != 0:
                raise ValueError(f"{name} is a rule for temperature 0 (greedy decoding); set the temperature to 0")
            if self.verification != "token":
                raise ValueError(f"{name} draws nothing, so verification must be 'token'")
            if budget is not None and (budget.max_shift is not None or budget.expected_tokens is not None):
                raise ValueError(
                    f"with {name} a budget limits the log-probability given up: give its nats, and max_relaxed"
                )
            return
        if budget is not None and budget.max_relaxed is not None:
            raise ValueError(
                f"max_relaxed counts the tokens that rules for temperature 0 relax, but the rule is {rule}"
            )
        paced = budget is not None and budget.expected_tokens is not None
        limited = budget is not None or not self.policy.everywhere
        check_scheme(self.verification, rule, self.num_speculative_tokens, self.tree, limited=limited, paced=paced)
        if paced:
            check_paced(rule)

    @property
    def lossy(self) -> bool:
        """Whether the way to verify relaxes by itself, whatever the rule."""
        return read_scheme(self.verification)[0].lossy

    @property
    def draft_length(self) -> DraftLength:
        """What chooses the proposals of a step: the tree's shape, or how long chains are."""
        return self.num_speculative_tokens if self.tree is None else self.tree

    def proposing(self, length: DraftLength | int | str) -> Request:
        """Return the request with other proposals: a number, a draft length or a tree's shape, or a spelling of these.

        Example:
            >>> str(Request().proposing("confidence:threshold=0.3").num_speculative_tokens)
            'confidence:threshold=0.3'
        """
        made = as_draft_length(length)
        tree = made if isinstance(made, TreeShape) else None
        changes: dict[str, Any] = {"num_speculative_tokens": made if tree is None else None, "tree": tree}
        return replace(self, **changes)

    def check_room(self, target: int | None, draft: int | None, num_tokens: int) -> None:
        """Raise `ValueError` where a prompt leaves no room in either context window for the proposals of a step.

        What chooses proposals by itself goes without where there is no room.
        """
        from cactus_decoding.core.models.base import check_fits

        length = self.draft_length
        most = getattr(length, "first_draft_tokens", length.max_draft_tokens)  # schedules may begin with fewer
        proposals = 0 if isinstance(length, PerResponse) else most
        check_fits("target", target, num_tokens, proposals)
        if proposals:
            check_fits("draft", draft, num_tokens, proposals)

    def check_chain(self, reader: str) -> None:
        """Raise `ValueError` for a tree, on behalf of what reads chains of proposals only."""
        if self.tree is not None:
            raise ValueError(f"{reader} reads chains of proposals only, but tree is {self.tree}")

    def check_drafter(self, drafter: Drafter) -> None:
        """Raise `TypeError` for what is no drafter, and `ValueError` where verification would not keep its promise."""
        check_drafter(drafter)
        if self.tree is not None and not drafter.grows_trees:
            raise ValueError(
                f"a {type(drafter).__name__} proposes chains only, but tree is {self.tree}: give "
                "num_speculative_tokens, or a draft model"
            )
        if isinstance(self.draft_length, PerResponse) and not drafter.may_be_left_out:
            what = f"{self.draft_length} leaves its drafter out of some steps, which a {type(drafter).__name__}"
            raise ValueError(f"{what} does not bear: give a number, or a draft model, suffix or ngram")
        jointly = read_scheme(self.verification)[0].judges_steps and not isinstance(self.rule, Lossless)
        if jointly and not drafter.fixed_blocks:
            raise ValueError(NEEDS_BLOCKS.format(how=self.verification))

    def verifier(
        self,
        to_probs: LogitsToProbs,
        to_untempered: LogitsToProbs,
        sampling: SamplingParams | None = None,
        fitted: FittedPolicy | None = None,
    ) -> Verifier:
        """Return what decides on the steps of this response; arguments are those of `Verifier`.

        Raises:
            ValueError: without ``fitted``, where this request's has to be fitted to a vocabulary.
        """
        if fitted is None and not self.policy.everywhere:
            raise ValueError("what is protected are tokens of a vocabulary: give fitted=request.policy.fit(…)")
        greedy = self.sampling.temperature == 0
        return Verifier(self.rule, to_probs, to_untempered, sampling, self.budget, self.verification, fitted, greedy)

    def as_dict(self) -> dict[str, Any]:
        """Return the request as flat names and plain values, for JSON; a budget by its limit in nats."""
        budget, length = self.budget, self.num_speculative_tokens
        limits = values_of(Budget, budget) | ({} if budget is None else {"budget_nats": budget.limit})
        if limits["max_relaxed"] is None:
            del limits["max_relaxed"]
        return {
            "rule": str(self.rule),
            **limits,
            **self.policy.as_dict(),
            "verification": self.verification,
            "num_speculative_tokens": length.max_draft_tokens if type(length) is FixedLength else str(length),
            "tree": None if self.tree is None else str(self.tree),
            **values_of(SamplingParams, self.sampling),
            "max_new_tokens": self.max_new_tokens,
            "stop": list(self.stop),
            "seed": self.seed,
        }

    @classmethod
    def of(cls, request: Request | None, settings: Mapping[str, Any]) -> Request:
        """Return the request that is given as one object or else by its parts; raise `TypeError` for both."""
        if request is None:
            return cls.from_dict(settings)
        if settings:
            raise TypeError(f"give either a request or settings, but not both: {', '.join(settings)}")
        if not isinstance(request, Request):
            raise TypeError(
                f"request must be a Request, but is {shown(request)}; give its parts by name: rule='lossless'"
            )
        return request

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        """Return the request of flat names: those of `as_dict`, or ``budget`` in the place of its parts.

        Raises:
            TypeError: for an unknown name, or a value of the wrong type.
            ValueError: for a value out of range, or a combination that would not keep what it promises.
        """
        known = [*SETTINGS, "budget"]
        if unknown := [name for name in values if name not in known]:
            raise TypeError(f"a request has no {unknown[0]!r}; known are {', '.join(known)}")
        given = {name: value for name, value in values.items() if name in (*_OWN, "budget")}
        if spread := [name for name in _BUDGET if values.get(name) is not None]:
            if values.get("budget") is not None:
                raise TypeError(f"budget and {spread[0]} exclude each other: give a Budget that holds both")
            given["budget"] = _budget(values)
        policy = relaxation_policy(**{name: values[name] for name in POLICY_SETTINGS if name in values})
        return cls(**given, sampling=build(SamplingParams, values) or SamplingParams(), policy=policy)


_BUDGET = tuple(settings_of(Budget))
_OWN = tuple(name for part in ("judging", "proposals", "answer") for name in settings_of(PARTS[part]))


def _budget(values: Mapping[str, Any]) -> Budget:
    """Return the budget of its parts; of nats and max_shift, `Request.as_dict` gives one and what follows from it."""
    shift = values.get("max_shift")
    if shift is not None and values.get("budget_nats") == Budget(max_shift=shift).limit:
        values = {**values, "budget_nats": None}
    return build(Budget, values) or Budget()
