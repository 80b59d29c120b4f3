"""Where a response may be relaxed at all: what is protected, and in which phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.arguments.checks import check_integer, shown
from cactus_decoding.budgets.phases import Phases, PhaseState
from cactus_decoding.budgets.protection import Protection, protected_mass
from cactus_decoding.budgets.vocabulary import Vocabulary
from cactus_decoding.sampling.sparse_probs import LazyRows


@dataclass(frozen=True)
class SpendingPolicy:
    """Where a rule may relax; everywhere else positions are judged losslessly, and cost nothing.

    It looks at the target's row and at the tokens before a position, never at the drafted token: the rule that it
    makes of another one has a relaxed target wherever that one has, and no guarantee is touched.

    Attributes:
        protection: which tokens must not be relaxed away; None protects none.
        phases: in which part of a response.

    Example:
        >>> SpendingPolicy().everywhere
        True
    """

    protection: Protection | None = None
    phases: Phases = field(default_factory=Phases)

    @property
    def everywhere(self) -> bool:
        """Whether it forbids nothing."""
        return self.protection is None and self.phases == Phases()

    def __str__(self) -> str:
        """The policy for people, such as ``protecting digits``; empty if it forbids nothing."""
        said = []
        if self.protection is not None:
            above = "" if self.protection.threshold == 0.01 else f" above {self.protection.threshold:g}"
            said.append(f"protecting {self.protection.pattern}{above}")
        if self.phases.lossless_tokens:
            said.append(f"after {self.phases.lossless_tokens} tokens")
        if self.phases.relax_within is not None:
            said.append("within {} {}".format(*self.phases.relax_within))
        return ", ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as flat names and plain values: the arguments of `spending_policy`."""
        protection, phases = self.protection, self.phases
        return {
            "protect": None if protection is None else protection.pattern,
            "protect_threshold": None if protection is None else protection.threshold,
            "lossless_tokens": phases.lossless_tokens,
            "relax_within": None if phases.relax_within is None else list(phases.relax_within),
        }

    def fit(self, tokenizer: Any, size: int) -> FittedPolicy | None:
        """Return the policy for a model's tokens; None where it forbids nothing.

        Args:
            tokenizer: of transformers.
            size: of the target's rows.

        Raises:
            TypeError: if tokens' texts must be known, and there is no tokenizer.
            ValueError: if a pattern matches no token of the vocabulary, or all.
        """
        if self.everywhere:
            return None
        reads_texts = self.protection is not None or self.phases.relax_within is not None
        return self.fit_vocabulary(Vocabulary.of(tokenizer, size) if reads_texts else Vocabulary(()))

    def fit_vocabulary(self, vocabulary: Vocabulary) -> FittedPolicy:
        """Return the policy for tokens that say what a vocabulary says."""
        mask = None if self.protection is None else self.protection.mask(vocabulary)
        return FittedPolicy(self, vocabulary, mask)


@dataclass(frozen=True, eq=False)
class FittedPolicy:
    """A spending policy that knows what the tokens say.

    Attributes:
        policy: what is asked for.
        vocabulary: the tokens' texts.
        mask: which tokens are protected, ``[vocabulary]``; None if none are.
    """

    policy: SpendingPolicy
    vocabulary: Vocabulary
    mask: Tensor | None

    @cached_property
    def token_ids(self) -> Tensor | None:
        """The protected tokens, ascending, ``[tokens]``; None if none are."""
        return None if self.mask is None else self.mask.nonzero().squeeze(1)

    def begin(self, prompt_ids: Sequence[int]) -> PhaseState:
        """Return the state behind a prompt."""
        return self.policy.phases.begin(prompt_ids, self.vocabulary)

    def after(self, state: PhaseState, token_ids: Sequence[int]) -> PhaseState:
        """Return the state behind further tokens."""
        return self.policy.phases.after(state, token_ids, self.vocabulary)

    def relaxable(self, state: PhaseState, target_probs: Tensor, draft_token_ids: Sequence[int]) -> Tensor:
        """Return which of a step's drafted positions may be relaxed, ``[k]``.

        Args:
            state: behind the tokens before the step.
            target_probs: the target's rows at these positions, ``[k, vocabulary]``.
            draft_token_ids: drafted tokens, ``[k]``: each is looked at for the positions behind it.
        """
        allowed = torch.tensor(
            self.policy.phases.relaxable(state, draft_token_ids, self.vocabulary),
            dtype=torch.bool,
            device=target_probs.device,
        )
        if self.token_ids is not None and self.policy.protection is not None:
            mass = protected_mass(target_probs, self.token_ids.to(target_probs.device))
            allowed &= mass <= self.policy.protection.threshold
        return allowed

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
    relax_within: Sequence[str] | None = None,
) -> SpendingPolicy:
    """Return the policy that the flat names of a request ask for.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for one out of range, or a threshold without a pattern.

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
    return SpendingPolicy(protection, Phases(lossless_tokens, _marks(relax_within)))


def _marks(given: object) -> tuple[str, str] | None:
    if given is None:
        return None
    wrong = f"relax_within must be two different texts, an opening and a closing mark, but is {shown(given)}"
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(wrong)
    marks = tuple(given)
    if not all(isinstance(mark, str) for mark in marks):
        raise TypeError(wrong)
    if len(marks) != 2 or not all(marks) or marks[0] == marks[1]:
        raise ValueError(wrong)
    return marks[0], marks[1]
