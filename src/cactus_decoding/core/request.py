"""Everything that is asked for one response, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pydantic import BeforeValidator, PlainSerializer, PlainValidator

from cactus_decoding.core.checks import short_repr, suggestion
from cactus_decoding.core.declared import Model, Setting, build, settings_of, values_of
from cactus_decoding.core.drafting.lengths import FixedLength
from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.core.keywords import RequestKeywords
from cactus_decoding.core.keywords import RequestSettings as RequestSettings
from cactus_decoding.core.policy.budget import Budget, as_budget
from cactus_decoding.core.policy.relaxation import POLICY_SETTINGS, RelaxationPolicy
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.schemes import VERIFICATIONS, SchemeInfo, read_scheme
from cactus_decoding.core.types import AcceptanceRule, Drafter, DraftLength, check_drafter
from cactus_decoding.core.validation import NO_NAMES

if TYPE_CHECKING:
    from cactus_decoding.core.policy.relaxation import FittedPolicy
    from cactus_decoding.core.types import LogitsToProbs
    from cactus_decoding.core.verification.walk import Verifier


MAX_SEED = 2**63 - 1  # the largest integer of 64 bits, which torch's generators take
NUM_SPECULATIVE_TOKENS = 6
"""Proposals per step if a request says nothing: good for the bundled pair, and for schemes that judge equal blocks."""
AUTO = "auto"  # the default draft length for other models: `cactus_decoding.AutoLength`


def with_default_proposals(settings: Mapping[str, Any], *, automatic: bool) -> dict[str, Any]:
    """Return settings that say what a step proposes: if they do not, what is fastest on this machine.

    Where steps are judged as a whole, and for relaxed rules where the target shares its noise with the draft, the
    number stays fixed, as `check_scheme` asks for. ``automatic`` is false for the bundled pair, which has a number that
    suits it, and for drafters that have to be asked in every step.
    """
    scheme = VERIFICATIONS.get(str(settings.get("verification")).partition(":")[0])
    said = any(settings.get(name) is not None for name in ("num_speculative_tokens", "tree"))
    if not automatic or said or (scheme is not None and (scheme.judges_steps or scheme.lossy)):
        return dict(settings)
    if scheme is not None and scheme.shares_noise and _relaxes(settings.get("rule")):
        return dict(settings)
    return {**settings, "num_speculative_tokens": AUTO}


def _relaxes(rule: AcceptanceRule | str | None) -> bool:
    from cactus_decoding.core.rules import Lossless

    return rule is not None and not isinstance(_rule(rule), Lossless)


NEEDS_BLOCKS = (
    "{how} verification of a relaxed rule needs a draft model and a fixed number of proposals, "
    "because the proposals at a position must have the same distribution in every step; use verification='token'"
)


NEEDS_FIXED_NUMBER = (
    "{how} verification of a relaxed rule needs a fixed number of proposals, because what a step drafts after a "
    "rejection tells of tokens that are still to be drawn, but {given}: give num_speculative_tokens=6, "
    "tree='static=4.2.2.1' or other numbers, or use verification='token'"
)


def check_scheme(
    verification: str,
    rule: AcceptanceRule,
    draft_length: DraftLength,
    tree: TreeShape | None,
    *,
    limited: bool,
    paced: bool,
) -> None:
    from cactus_decoding.core.rules import Lossless
    from cactus_decoding.core.verification.tree import check_relaxed_target

    (scheme, knobs), what = read_scheme(verification), f"{verification} verification"
    if tree is None and not scheme.chains:
        raise ValueError(
            f"verification={scheme.name!r} is for trees, but num_speculative_tokens is "
            f"{draft_length}: give tree=, such as 'static=4.2.2.1', or use verification='block'"
        )
    if tree is not None and not scheme.trees:
        nearest = f"use verification={scheme.counterpart!r}" + ("" if scheme.lossy else ", which is the same for trees")
        raise ValueError(f"{what} is for chains; {nearest}")
    if scheme.lossy and (limited or not isinstance(rule, Lossless)):
        raise ValueError(
            f"{what} relaxes by itself, and nobody knows what that costs: it takes the lossless rule, no budget and no "
            f"relaxation policy, but the rule is {rule}"
        )
    proposals = draft_length.max_draft_tokens
    if 0 < proposals < knobs.min_proposals:
        raise ValueError(
            f"{what} would overrule nothing: it needs {knobs.min_proposals} proposals in a step, but "
            f"num_speculative_tokens is {proposals}: give at least {knobs.min_proposals}, or a smaller window"
        )
    if scheme.needs_rows:
        check_relaxed_target(rule, what)
    if tree is not None and scheme.max_drawn is not None and tree.max_drawn > scheme.max_drawn:
        raise ValueError(f"{what} takes at most one drawn child a token, but the tree is {tree}")
    if isinstance(rule, Lossless):
        return
    if scheme.shares_noise and not (draft_length if tree is None else tree).fixed:
        given = f"num_speculative_tokens is {draft_length}" if tree is None else f"tree is {tree}"
        raise ValueError(NEEDS_FIXED_NUMBER.format(how=verification, given=given))
    if not scheme.judges_steps:
        return
    if tree is None and not draft_length.fixed:
        raise ValueError(NEEDS_BLOCKS.format(how=verification))
    if tree is not None and not tree.is_even:
        raise ValueError(
            f"{what} of a relaxed rule needs a tree with as many children everywhere, such as static=2.2.2, "
            f"because a position must be judged alike in every step, but it is {tree}"
        )
    if paced:
        raise ValueError(f"{what} cannot pace a budget: the width must be the same in every step")


def _rule(rule: AcceptanceRule | str) -> AcceptanceRule:
    from cactus_decoding.core.rules import as_rule

    return as_rule(rule)


def _length(draft_length: DraftLength | int | str | None) -> DraftLength | None:
    from cactus_decoding.core.drafting.registry import as_draft_length

    return None if draft_length is None else as_draft_length(draft_length)


def _tree(tree: TreeShape | str | None) -> TreeShape | None:
    from cactus_decoding.core.drafting.registry import as_tree

    return None if tree is None else as_tree(tree)


def check_verification(verification: str) -> str:
    """Return a way to verify, or raise `ValueError` for what spells none."""
    from cactus_decoding.core.rules import RULES

    if (name := str(verification).partition(":")[0]) in RULES:
        raise ValueError(f"{name!r} is no way to verify, but a rule: --rule {verification}, rule={verification!r}")
    read_scheme(verification)
    return verification


def _stop(stop: Iterable[str]) -> tuple[str, ...]:
    wrong = "stop must be a sequence of strings that are not empty, but is"
    if isinstance(stop, str) or not isinstance(stop, Iterable):
        raise ValueError(f"{wrong} {short_repr(stop)}")
    try:
        strings = tuple(stop)
    except TypeError as error:  # such as a tensor without a dimension
        raise TypeError(f"stop must be a sequence of strings, but is {short_repr(stop)}") from error
    if not all(isinstance(each, str) and each for each in strings):
        raise ValueError(f"{wrong} {short_repr(list(strings))}")
    return strings


def _known_rule(spelling: object) -> str:
    """Return a client's rule, whose module must not be imported: no request runs code."""
    from cactus_decoding.core.rules import parse_rule

    if not isinstance(spelling, str):
        raise TypeError(f"acceptance_rule must be a string such as 'cactus:delta=1.0', but is {short_repr(spelling)}")
    parse_rule(spelling, importing=False)
    return spelling


def _written_length(draft_length: DraftLength) -> int | str:
    return draft_length.max_draft_tokens if type(draft_length) is FixedLength else str(draft_length)


class Request(Model):
    """Everything that is asked for one response, frozen and checked once.

    Attributes:
        rule: an acceptance rule or its spelling.
        budget: how far the response's distribution may move, a `Budget` or its nats; with None nobody measures.
        verification: one of `VERIFICATIONS`. ``token`` verifies one proposal after another; ``block`` verifies all of a
            step jointly, which accepts more, and takes rules whose relaxed target does not depend on the drafted token.
            ``coupled`` takes the same rules, and gives one text per seed, whatever is proposed (`SharedNoise`). In a
            tree ``token`` goes on after recovered tokens that are proposals too, and ``joint`` does what a block does
            in a chain. ``fly`` relaxes by itself.
        num_speculative_tokens: proposals per step, 0 or more (0 is plain sampling from the target), or a draft length
            that chooses their number, such as `AutoLength`, or its spelling; of a tree, how many of its tokens can
            be kept.
        tree: the shape of the tree that a step proposes, such as `StaticTree`, or its spelling; None for chains.
        sampling: temperature and truncation.
        max_new_tokens: upper limit of the response's length, 1 or more; the context window is another.
        stop: strings that end the response.
        seed: the same seed gives the same response on the same machine, with ``auto`` by the same profile; None draws
            one. With ``coupled`` verification it gives the text of plain sampling.
        policy: where the rule may relax at all: not where a protected token may be written, and only in some phases.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for one out of range, or a combination that would break a promise, such as a budget's.

    Example:
        >>> request = Request.from_dict({"rule": "cactus:delta=0.5", "temperature": 0.6, "budget": 0.1})
        >>> str(request.rule), request.sampling.temperature, request.budget.limit
        ('cactus:delta=0.5', 0.6, 0.1)
        >>> Request.from_dict(request.as_dict()) == request
        True
    """

    rule: Annotated[
        AcceptanceRule,
        PlainValidator(_rule),
        PlainSerializer(str),
        Setting(
            "Acceptance rule, such as cactus:delta=0.5 ('cactus rules' lists all) or my_module:MyRule,ratio=0.5.",
            validate_default=True,
            group="judging",
            metavar="RULE",
            key="acceptance_rule",
            from_clients=_known_rule,
        ),
    ] = "lossless"  # type: ignore[assignment]  # which becomes a rule
    budget: Annotated[Budget | None, BeforeValidator(as_budget)] = None
    policy: RelaxationPolicy = RelaxationPolicy()
    verification: Annotated[
        str,
        PlainValidator(check_verification),
        Setting(
            "; ".join(f"'{each.name}': {each.summary}" for each in VERIFICATIONS.values()) + ".",
            group="proposals",
            metavar="HOW",
        ),
    ] = next(iter(VERIFICATIONS))
    num_speculative_tokens: Annotated[
        DraftLength,
        PlainValidator(_length),
        PlainSerializer(_written_length),
        Setting(
            "Tokens that the draft proposes per step; 'auto' for as many as pay on this machine, which may "
            "be none; or 'confidence:threshold=0.4' to stop where it is unsure.",
            group="proposals",
            metavar="N",
            shown=f"{NUM_SPECULATIVE_TOKENS} for the bundled pair, else {AUTO}",
        ),
    ] = None  # type: ignore[assignment]  # which becomes a length
    tree: Annotated[
        TreeShape | None,
        PlainValidator(_tree),
        PlainSerializer(lambda tree: None if tree is None else str(tree)),
        Setting(
            "Propose a tree instead: 'static=4.2.2.1' for one in which 4 may follow the text, 2 each of "
            "them, and so on, or 'best_first,nodes=16' for one of the likeliest tokens.",
            group="proposals",
            metavar="SHAPE",
        ),
    ] = None
    sampling: SamplingParams = SamplingParams()
    max_new_tokens: Annotated[
        int,
        Setting(
            "Upper limit of an answer's length.", "tokens", ge=1, group="answer", key="max_tokens", from_clients=True
        ),
    ] = 256
    stop: Annotated[
        tuple[str, ...],
        PlainValidator(_stop),
        PlainSerializer(list),
        Setting("End before this text; may be given several times.", group="answer", metavar="TEXT", from_clients=True),
    ] = ()
    seed: Annotated[
        int | None,
        Setting(
            "The same seed gives the same text.",
            ge=0,
            le=MAX_SEED,
            group="answer",
            metavar="S",
            shown="drawn",
            from_clients=True,
        ),
    ] = None

    def __init__(self, *values: Any, **given: Unpack[RequestKeywords]) -> None:
        super().__init__(*values, **given)

    def model_post_init(self, context: object) -> None:
        """Choose what a step proposes if nothing is said, and check which settings exclude each other."""
        from cactus_decoding.core.drafting.registry import proposals_of

        least, default = read_scheme(self.verification)[1].min_proposals, NUM_SPECULATIVE_TOKENS
        default += 0 if least <= default else least - 1
        proposals = proposals_of(self.num_speculative_tokens, self.tree) or FixedLength(default)
        tree = proposals if isinstance(proposals, TreeShape) else None
        draft_length = proposals if tree is None else FixedLength(tree.max_draft_tokens)
        object.__setattr__(self, "num_speculative_tokens", draft_length)
        object.__setattr__(self, "tree", tree)
        self._check_together()

    def _check_together(self) -> None:
        from cactus_decoding.core.rules.base import GreedyRule

        rule, budget = self.rule, self.budget
        if isinstance(rule, GreedyRule):
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
            from cactus_decoding.core.policy.decide import check_paced

            check_paced(rule)

    @property
    def scheme(self) -> SchemeInfo:
        """What the way to verify declares of itself."""
        return read_scheme(self.verification)[0]

    @property
    def one_text(self) -> bool:
        """Whether a seed gives one text, whatever is proposed: that of plain sampling."""
        fixed = self.scheme.shares_noise or self.sampling.temperature == 0
        return fixed and str(self.rule) == "lossless" and not self.scheme.lossy

    @property
    def warning(self) -> str | None:
        """What to say of a rule that needs truncation and has none; None for other requests."""
        from cactus_decoding.core.rules import LiftRule

        rule, relaxes = self.rule, self.draft_length.max_draft_tokens > 0
        if isinstance(rule, LiftRule) and rule.lifts_absurd_tokens and relaxes and not self.sampling.truncates:
            return (
                f"without top-p, top-k or min-p, {rule.title} also lifts tokens that the target finds absurd; a top-p "
                "of 0.95 is a good start"
            )
        return None

    @property
    def needs_fixed_blocks(self) -> bool:
        """Whether each step must propose as many tokens, because a relaxed rule judges them jointly."""
        from cactus_decoding.core.rules import Lossless

        return self.scheme.judges_steps and not isinstance(self.rule, Lossless)

    @property
    def draft_length(self) -> DraftLength:
        """What chooses the proposals of a step: the tree's shape, or how long chains are."""
        return self.num_speculative_tokens if self.tree is None else self.tree

    def proposing(self, draft_length: DraftLength | int | str) -> Request:
        """Return the request with other proposals: a number, a draft length, a tree's shape, or a spelling of these."""
        from cactus_decoding.core.drafting.registry import as_draft_length

        made = as_draft_length(draft_length)
        tree = made if isinstance(made, TreeShape) else None
        changes: dict[str, Any] = {"num_speculative_tokens": made if tree is None else None, "tree": tree}
        return self.replace(**changes)

    def check_room(self, target: int | None, draft: int | None, num_tokens: int) -> None:
        """Raise `ValueError` where a prompt leaves no room in the target's context window for the proposals of a step.

        A draft length that chooses by itself proposes nothing where there is no room. Nor does any other where the
        text has outgrown the draft's window, which therefore has to hold the proposals only.
        """
        from cactus_decoding.core.drafting.automatic import AutoLength
        from cactus_decoding.core.models.base import check_fits

        chosen = self.draft_length
        most = getattr(chosen, "first_draft_tokens", chosen.max_draft_tokens)  # schedules may begin with fewer
        proposals = 0 if isinstance(chosen, AutoLength) else most
        check_fits("target", target, num_tokens, proposals)
        if proposals:
            check_fits("draft", draft, 0, proposals)

    def check_chain(self, reader: str) -> None:
        if self.tree is not None:
            raise ValueError(f"{reader} reads chains of proposals only, but tree is {self.tree}")

    def check_drafter(self, drafter: Drafter) -> None:
        """Raise `TypeError` for what is no drafter, and `ValueError` for one that does not go with the proposals."""
        from cactus_decoding.core.drafting.automatic import AutoLength

        check_drafter(drafter)
        if self.tree is not None and not drafter.grows_trees:
            raise ValueError(
                f"a {type(drafter).__name__} proposes chains only, but tree is {self.tree}: give "
                "num_speculative_tokens, or a draft model"
            )
        if isinstance(self.draft_length, AutoLength) and not drafter.may_be_left_out:
            raise ValueError(
                f"{self.draft_length} leaves its drafter out of some steps, but a {type(drafter).__name__} must be "
                "asked in every one: give a number, or a draft model, suffix or ngram"
            )
        if self.needs_fixed_blocks and not drafter.fixed_blocks:
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
            ValueError: without ``fitted``, if this request's policy has to be fitted to a vocabulary.
        """
        from cactus_decoding.core.verification.walk import Verifier

        if fitted is None and not self.policy.everywhere:
            raise ValueError("what is protected are tokens of a vocabulary: give fitted=request.policy.fit(…)")
        greedy = self.sampling.temperature == 0
        return Verifier(self.rule, to_probs, to_untempered, sampling, self.budget, self.verification, fitted, greedy)

    def as_dict(self) -> dict[str, Any]:
        """Return the request as flat names and plain values, for JSON; a budget by its limit in nats."""
        values = values_of(Request, self) | ({} if self.budget is None else {"budget_nats": self.budget.limit})
        if values["max_relaxed"] is None:
            del values["max_relaxed"]
        return values

    @classmethod
    def of(cls, request: Request | None, settings: Mapping[str, Any]) -> Request:
        """Return the request that is given as one object or else by its parts; raise `TypeError` for both."""
        if request is None:
            return cls.from_dict(settings)
        if settings:
            raise TypeError(f"give either a request or settings, but not both: {', '.join(settings)}")
        if not isinstance(request, Request):
            raise TypeError(
                f"request must be a Request, but is {short_repr(request)}; give its parts by name: rule='lossless'"
            )
        return request

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], called: Mapping[str, str] = NO_NAMES) -> Request:
        """Return the request of flat names: those of `as_dict`, or ``budget`` in the place of its parts.

        ``called`` are what a mistake calls them, where that is something else, such as a key of a server's.

        Raises:
            TypeError: for an unknown name, or a value of the wrong type.
            ValueError: for a value out of range, or settings that exclude each other.
        """
        known = [*SETTINGS, "budget"]
        if unknown := [name for name in values if name not in known]:
            close = suggestion(unknown[0], known)
            raise TypeError(f"a request has no {unknown[0]!r}; known are {', '.join(known)}{close}")
        # of a policy None says nothing
        values = {name: value for name, value in values.items() if value is not None or name not in POLICY_SETTINGS}
        made: dict[str, Any] = {}
        if spread := [name for name in settings_of(Budget) if values.get(name) is not None]:
            if values.get("budget") is not None:
                raise TypeError(f"budget and {spread[0]} exclude each other: give a Budget that holds both")
            values = _without_what_follows(values)
        else:
            made["budget"] = values.get("budget")
        request = build(cls, values, called, **made)
        assert request is not None
        return request


def _without_what_follows(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values without the nats that follow from a shift: `Request.as_dict` gives both."""
    shift = values.get("max_shift")
    if shift is not None and values.get("budget_nats") == Budget(max_shift=shift).limit:
        return {**values, "budget_nats": None}
    return values


SETTINGS = settings_of(Request)  # every setting of a request by its flat name
DECODING = tuple(
    name for name, each in SETTINGS.items() if not {"sampling", "answer", "budget"}.intersection(each.groups)
)
"""The settings that calls of other libraries' own methods take, together with ``budget``; the rest is theirs."""
