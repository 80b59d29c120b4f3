"""Where a response may be relaxed at all: which tokens are protected, and in which phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.declared import Model, build, settings_of, values_of
from cactus_decoding.core.policy.phases import Phases, PhaseState
from cactus_decoding.core.policy.protection import Protection, may_relax
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.types import AcceptanceRule

if TYPE_CHECKING:
    from torch import Tensor

    from cactus_decoding.core.policy.position import Position


class RelaxationPolicy(Model):
    """Where a rule may relax; everywhere else positions are judged losslessly, and cost nothing.

    It depends on both models' rows and on the tokens before a position, never on the drafted token. So a rule under a
    policy has a relaxed target wherever the rule itself has one, and every guarantee holds.
    """

    protection: Protection | None = None
    phases: Phases = Phases()

    @property
    def everywhere(self) -> bool:
        return self == RelaxationPolicy()

    def __str__(self) -> str:
        """The policy for people, such as ``protecting digits``; empty if it forbids nothing."""
        said = []
        if self.protection is not None:
            above = "" if self.protection.threshold == 0.01 else f" above {self.protection.threshold:g}"
            said.append(f"protecting {self.protection.pattern}{above}")
        if self.phases.lossless_tokens:
            said.append(f"after {self.phases.lossless_tokens} tokens")
        if self.phases.plain_marks:
            said.append("within {} {}".format(*self.phases.plain_marks))
        return ", ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as flat names and plain values: the arguments of `relaxation_policy`."""
        return values_of(RelaxationPolicy, self)

    def fit(self, tokenizer: Any, size: int) -> FittedPolicy | None:
        if self.everywhere:
            return None
        reads_texts = self.protection is not None or self.phases.reads_text
        return self.fit_vocabulary(Vocabulary.of(tokenizer, size) if reads_texts else Vocabulary(()))

    def fit_vocabulary(self, vocabulary: Vocabulary) -> FittedPolicy:
        mask = None if self.protection is None else self.protection.mask(vocabulary)
        return FittedPolicy(vocabulary, self.phases, self.protection, mask)


POLICY_SETTINGS = tuple(settings_of(RelaxationPolicy))  # the flat names that a request may set


def relaxation_policy(*values: Any, **settings: Any) -> RelaxationPolicy:
    given = dict(zip(POLICY_SETTINGS, values, strict=False)) | settings
    if unknown := [name for name in given if name not in POLICY_SETTINGS]:
        known = f"known are {', '.join(POLICY_SETTINGS)}{suggestion(unknown[0], POLICY_SETTINGS)}"
        raise TypeError(f"a relaxation policy has no {unknown[0]!r}; {known}")
    given = {name: value for name, value in given.items() if value is not None}
    policy = build(RelaxationPolicy, given)
    assert policy is not None
    return policy


@dataclass(frozen=True, eq=False)
class FittedPolicy:
    vocabulary: Vocabulary
    phases: Phases
    protection: Protection | None = None
    mask: Tensor | None = None  # the protected tokens, ``[vocabulary]``

    @cached_property
    def token_ids(self) -> Tensor | None:
        """The protected tokens, ascending, ``[tokens]``; None if there are none."""
        return None if self.mask is None else self.mask.nonzero().squeeze(1)

    def begin(self, prompt_ids: Sequence[int]) -> PhaseState:
        return self.phases.begin(prompt_ids, self.vocabulary)

    def after(self, state: PhaseState, token_ids: Sequence[int]) -> PhaseState:
        return self.phases.after(state, token_ids, self.vocabulary)

    def relaxes(self, rule: AcceptanceRule, state: PhaseState, position: Position) -> bool:
        """Return whether a rule may judge a position."""
        if not self.phases.relaxes(state):
            return False
        if self.protection is None or self.token_ids is None:
            return True
        from cactus_decoding.core.rules.base import GreedyRule  # with torch, which settings alone do not need

        mass = position.mass(self.token_ids, untempered=isinstance(rule, GreedyRule))
        return may_relax(mass, self.protection.threshold)
