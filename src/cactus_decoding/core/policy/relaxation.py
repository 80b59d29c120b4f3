"""Where a response may be relaxed at all: what is protected, what is too important, and in which phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cactus_decoding.core.declared import Model, Setting, build, settings_of, values_of
from cactus_decoding.core.policy.importance_limit import ImportanceLimit
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.protection import Protection

if TYPE_CHECKING:
    from cactus_decoding.core.policy.fitted import FittedPolicy
    from cactus_decoding.core.policy.vocabulary import Vocabulary


class RelaxationPolicy(Model):
    """Where a rule may relax; everywhere else positions are judged losslessly, and cost nothing.

    It looks at both models' rows and at the tokens before a position, never at the drafted token: the rule that it
    makes of another one has a relaxed target wherever that one has, and no guarantee is touched.

    Attributes:
        protection: which tokens must not be relaxed away; None protects none.
        limit: how important a position may be; None asks for no importance.
        phases: in which part of a response.

    Example:
        >>> RelaxationPolicy().everywhere
        True
    """

    protection: Protection | None = None
    limit: Annotated[ImportanceLimit | None, Setting(group="importance")] = None
    phases: Phases = Phases()

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
        if self.phases.plain_marks:
            said.append("within {} {}".format(*self.phases.plain_marks))
        return ", ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as flat names and plain values: the arguments of `relaxation_policy`."""
        return values_of(RelaxationPolicy, self)

    def fit(self, tokenizer: Any, size: int) -> FittedPolicy | None:
        """Return the policy for a model's tokens; None where it forbids nothing.

        Raises `OSError` for a file of importance that cannot be read; `TypeError` if tokens' texts must be known, and
        there is no tokenizer; `ValueError` if a pattern matches no token of the vocabulary, or all; for the importance
        of other tokens.
        """
        if self.everywhere:
            return None
        from cactus_decoding.core.policy.vocabulary import Vocabulary

        reads_texts = self.protection is not None or self.limit is not None or self.phases.reads_text
        return self.fit_vocabulary(Vocabulary.of(tokenizer, size) if reads_texts else Vocabulary(()))

    def fit_vocabulary(self, vocabulary: Vocabulary) -> FittedPolicy:
        """Return the policy for tokens that say what a vocabulary says."""
        from cactus_decoding.core.policy.fitted import FittedPolicy

        mask = None if self.protection is None else self.protection.mask(vocabulary)
        importance = None if self.limit is None else self.limit.fit(vocabulary)
        return FittedPolicy(vocabulary, self.phases, self.protection, mask, self.limit, importance)


POLICY_SETTINGS = tuple(settings_of(RelaxationPolicy))
"""Flat names of what a request may set of a policy."""


def relaxation_policy(*values: Any, **settings: Any) -> RelaxationPolicy:
    """Return the policy that the flat names of a request ask for; None is as good as absent.

    Values without a name are those of the first of `POLICY_SETTINGS`.

    Raises `TypeError` for a value of the wrong type, or an unknown name; `ValueError` for one out of range, a threshold
    without a pattern, or a limit of no importance.

    Example:
        >>> relaxation_policy("digits", lossless_tokens=10).protection
        Protection(pattern='digits', threshold=0.01)
    """
    given = dict(zip(POLICY_SETTINGS, values, strict=False)) | settings
    if unknown := [name for name in given if name not in POLICY_SETTINGS]:
        raise TypeError(f"a relaxation policy has no {unknown[0]!r}; known are {', '.join(POLICY_SETTINGS)}")
    given = {name: value for name, value in given.items() if value is not None}
    policy = build(RelaxationPolicy, given)
    assert policy is not None
    return policy
