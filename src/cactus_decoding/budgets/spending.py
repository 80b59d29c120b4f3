"""Where a response may be relaxed at all: what is protected, what is too important, and in which phases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.arguments.checks import check_integer, shown
from cactus_decoding.budgets.importance import Importance, ImportanceLimit
from cactus_decoding.budgets.phases import Mark, Phases, PhaseState, as_text
from cactus_decoding.budgets.protection import Protection, protected_mass
from cactus_decoding.budgets.scaling import RulePerPosition, scaled
from cactus_decoding.budgets.vocabulary import Vocabulary
from cactus_decoding.rules import Lossless
from cactus_decoding.sampling.sparse_probs import LazyRows
from cactus_decoding.types import AcceptanceRule


@dataclass(frozen=True)
class SpendingPolicy:
    """Where a rule may relax; everywhere else positions are judged losslessly, and cost nothing.

    It looks at both models' rows and at the tokens before a position, never at the drafted token: the rule that it
    makes of another one has a relaxed target wherever that one has, and no guarantee is touched.

    Attributes:
        protection: which tokens must not be relaxed away; None protects none.
        phases: in which part of a response.
        limit: how important a position may be; None asks for no importance.

    Example:
        >>> SpendingPolicy().everywhere
        True
    """

    protection: Protection | None = None
    phases: Phases = field(default_factory=Phases)
    limit: ImportanceLimit | None = None

    @property
    def everywhere(self) -> bool:
        """Whether it forbids nothing."""
        return self.protection is None and self.phases == Phases() and self.limit is None

    def __str__(self) -> str:
        """The policy for people, such as ``protecting digits``; empty if it forbids nothing."""
        said = []
        if self.protection is not None:
            above = "" if self.protection.threshold == 0.01 else f" above {self.protection.threshold:g}"
            said.append(f"protecting {self.protection.pattern}{above}")
        if self.limit is not None:
            said.append(str(self.limit))
        if self.phases.lossless_tokens:
            said.append(f"after {self.phases.lossless_tokens} tokens")
        if self.phases.relax_within is not None:
            said.append("within {} {}".format(*map(_plain, self.phases.relax_within)))
        return ", ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as flat names and plain values: the arguments of `spending_policy`."""
        protection, phases, limit = self.protection, self.phases, self.limit
        return {
            "protect": None if protection is None else protection.pattern,
            "protect_threshold": None if protection is None else protection.threshold,
            "importance": None if limit is None else limit.path,
            "max_importance": None if limit is None else limit.max_importance,
            "importance_scale": limit is not None and limit.scale,
            "lossless_tokens": phases.lossless_tokens,
            "relax_within": None if phases.relax_within is None else list(map(_plain, phases.relax_within)),
        }

    def fit(self, tokenizer: Any, size: int) -> FittedPolicy | None:
        """Return the policy for a model's tokens; None where it forbids nothing.

        Args:
            tokenizer: of transformers.
            size: of the target's rows.

        Raises:
            OSError: for a file of importance that cannot be read.
            TypeError: if tokens' texts must be known, and there is no tokenizer.
            ValueError: if a pattern matches no token of the vocabulary, or all; for the importance of other tokens.
        """
        if self.everywhere:
            return None
        reads_texts = self.protection is not None or self.limit is not None or self.phases.reads_text
        return self.fit_vocabulary(Vocabulary.of(tokenizer, size) if reads_texts else Vocabulary(()))

    def fit_vocabulary(self, vocabulary: Vocabulary) -> FittedPolicy:
        """Return the policy for tokens that say what a vocabulary says."""
        mask = None if self.protection is None else self.protection.mask(vocabulary)
        return FittedPolicy(self, vocabulary, mask, None if self.limit is None else self.limit.fit(vocabulary))


@dataclass(frozen=True, eq=False)
class FittedPolicy:
    """A spending policy that knows what the tokens say.

    Attributes:
        policy: what is asked for.
        vocabulary: the tokens' texts.
        mask: which tokens are protected, ``[vocabulary]``; None if none are.
        importance: of these tokens; None if nobody asks for it.
    """

    policy: SpendingPolicy
    vocabulary: Vocabulary
    mask: Tensor | None
    importance: Importance | None = None

    @cached_property
    def token_ids(self) -> Tensor | None:
        """The protected tokens, ascending, ``[tokens]``; None if none are."""
        return None if self.mask is None else self.mask.nonzero().squeeze(1)

    @property
    def reads_target_only(self) -> bool:
        """Whether the target's row and the past decide alone."""
        return self.importance is None

    def begin(self, prompt_ids: Sequence[int]) -> PhaseState:
        """Return the state behind a prompt."""
        return self.policy.phases.begin(prompt_ids, self.vocabulary)

    def after(self, state: PhaseState, token_ids: Sequence[int]) -> PhaseState:
        """Return the state behind further tokens."""
        return self.policy.phases.after(state, token_ids, self.vocabulary)

    def relaxable(
        self, state: PhaseState, target_probs: Tensor, draft_probs: Tensor | None, draft_token_ids: Sequence[int]
    ) -> Tensor:
        """Return which of a step's drafted positions may be relaxed, ``[k]``.

        Args:
            state: behind the tokens before the step.
            target_probs: the target's rows at these positions, ``[k, vocabulary]``.
            draft_probs: the draft's rows likewise; None for a deterministic draft.
            draft_token_ids: drafted tokens, ``[k]``: each is looked at for the positions behind it, and, as all that a
                deterministic draft could propose, for its own.
        """
        allowed = torch.tensor(
            self.policy.phases.relaxable(state, draft_token_ids, self.vocabulary),
            dtype=torch.bool,
            device=target_probs.device,
        )
        if self.token_ids is not None and self.policy.protection is not None:
            mass = protected_mass(target_probs, self.token_ids.to(target_probs.device))
            allowed &= mass <= self.policy.protection.threshold
        if self.importance is not None and self.policy.limit is not None:
            importance = self.importance(target_probs, draft_probs, draft_token_ids)
            allowed &= importance <= self.policy.limit.max_importance
        return allowed

    def scaled(
        self, rule: AcceptanceRule, target_probs: Tensor, draft_probs: Tensor | None, draft_token_ids: Sequence[int]
    ) -> AcceptanceRule:
        """Return what judges a step's positions where they may be relaxed: the rule, its knob as important as they are.

        The arguments are those of `relaxable`.
        """
        limit = self.policy.limit
        if self.importance is None or limit is None or not limit.scale or not len(target_probs):
            return rule
        if isinstance(rule, Lossless):
            return rule
        importance = self.importance(target_probs, draft_probs, draft_token_ids)
        return RulePerPosition([scaled(rule, 1 - one) for one in importance.tolist()])

    def relaxable_lazily(self, state: PhaseState, draft_token_ids: Sequence[int]) -> Callable[[LazyRows, int], bool]:
        """Return what says the same as `relaxable` of one position after another, reading no more than decides it.

        Args:
            state: behind the tokens before the step.
            draft_token_ids: drafted tokens, ``[k]``.

        Returns:
            A function of the target's rows at these positions, and of the position.
        """
        allowed = self.policy.phases.relaxable(state, draft_token_ids, self.vocabulary)
        return lambda rows, position: allowed[position] and self._relaxable_row(rows, position)

    def _relaxable_row(self, rows: LazyRows, row: int) -> bool:
        if self.token_ids is None or self.policy.protection is None:
            return True
        threshold, rough = self.policy.protection.threshold, rows.roughly(row)
        if rough is not None:
            least, most = rough.mass_bounds(self.token_ids)
            if most <= threshold or least > threshold:
                return most <= threshold
        return rows.at(row).mass(self.token_ids) <= threshold


def spending_policy(
    protect: str | Protection | None = None,
    protect_threshold: float | None = None,
    lossless_tokens: int = 0,
    relax_within: Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | None = None,
    importance: str | Path | Importance | ImportanceLimit | None = None,
    max_importance: float | None = None,
    importance_scale: bool = False,
) -> SpendingPolicy:
    """Return the policy that the flat names of a request ask for.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for one out of range, a threshold without a pattern, or a limit of no importance.

    Example:
        >>> spending_policy("digits", lossless_tokens=10).protection
        Protection(pattern='digits', threshold=0.01)
    """
    if protect_threshold is not None:
        if not isinstance(protect, str):
            raise ValueError(f"protect_threshold is that of a pattern in protect, but protect is {shown(protect)}")
        protection: Protection | None = Protection(protect, protect_threshold)
    elif protect is None or isinstance(protect, Protection):
        protection = protect
    else:
        protection = Protection(protect)
    check_integer("lossless_tokens", lossless_tokens, 0)
    limit = _limit(importance, max_importance, importance_scale)
    return SpendingPolicy(protection, Phases(lossless_tokens, _marks(relax_within)), limit)


def _limit(given: Any, max_importance: float | None, scale: bool) -> ImportanceLimit | None:
    if given is None or isinstance(given, ImportanceLimit):
        asked = {"max_importance": max_importance, "importance_scale": scale or None}
        for name, value in asked.items():
            if value is not None:
                raise ValueError(f"{name} is {shown(value)}, but importance is {shown(given)}: give a file's path")
        return given
    if max_importance is None:
        return ImportanceLimit(given, 1.0, scale) if scale else ImportanceLimit(given)
    return ImportanceLimit(given, max_importance, scale)


def _marks(given: object) -> tuple[Mark, Mark] | None:
    if given is None:
        return None
    wrong = (
        "relax_within must be two different texts, an opening and a closing mark, or two token ids or lists of these, "
        f"but is {shown(given)}"
    )
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(wrong)
    marks = [mark if isinstance(mark, str) else _token_ids(mark, wrong) for mark in given]
    if len({isinstance(mark, str) for mark in marks}) > 1:
        raise TypeError(wrong)
    if len(marks) != 2 or not all(marks) or marks[0] == marks[1]:
        raise ValueError(wrong)
    opening, closing = map(as_text, marks)
    if opening in closing or closing in opening:
        raise ValueError(
            f"relax_within must be two marks of which neither has the other in it, but is {shown(given)}: a span would "
            "open or close at the wrong one"
        )
    return marks[0], marks[1]


def _token_ids(given: object, wrong: str) -> tuple[int, ...]:
    ids = (given,) if isinstance(given, int) else given
    if not isinstance(ids, Sequence) or any(not isinstance(token, int) or isinstance(token, bool) for token in ids):
        raise TypeError(wrong)
    if not all(0 <= token <= sys.maxunicode for token in ids):
        raise ValueError(wrong)
    return tuple(ids)


def _plain(mark: Mark) -> str | int | list[int]:
    """Return a mark as it is written: a text, a token id or several."""
    if isinstance(mark, str):
        return mark
    return mark[0] if len(mark) == 1 else list(mark)
