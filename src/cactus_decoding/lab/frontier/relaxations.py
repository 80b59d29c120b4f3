"""What a point of the frontier is about: a rule, and the policy that says where it may relax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import recorded_rule
from cactus_decoding.lab.evaluation.tasks.task import Task, number

EVERYWHERE = RelaxationPolicy()
NONE = "none"
"""How a command line says that nothing is protected."""


class Relaxation(NamedTuple):
    """A rule's spelling and the policy that says where it may relax: elsewhere the lossless rule decides.

    Example:
        >>> str(Relaxation("clamped:width=3.0", relaxation_policy("digits")))
        'clamped:width=3.0 protecting digits'
    """

    rule: str
    policy: RelaxationPolicy = EVERYWHERE

    def __str__(self) -> str:
        return f"{self.rule} {self.policy}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        """Return both for JSON, flat; of a policy that forbids nothing, nothing."""
        return {"rule": self.rule} | ({} if self.policy.everywhere else self.policy.as_dict())


LOSSLESS = Relaxation("lossless")


def asking(request: Request, relaxation: Relaxation, length: int) -> Request:
    """Return a request with another relaxation and number of proposals."""
    rule, policy = recorded_rule(relaxation.rule), relaxation.policy
    return request.replace(rule=rule, policy=policy).proposing(length)


def parse_policies(protect: Sequence[str], **protection: Any) -> list[RelaxationPolicy]:
    """Return a policy for each set of protected tokens, each once; ``none`` protects nothing.

    ``protection`` is what else is said of `Protection`, by the names of a request's settings.

    Example:
        >>> [str(policy) for policy in parse_policies(["none", "digits"])]
        ['', 'protecting digits']
    """
    given = [name for name, value in protection.items() if value is not None]
    if given and all(pattern == NONE for pattern in protect):
        option = given[0].replace("_", "-")
        raise ValueError(f"--{option} is that of protected tokens: give --protect too, such as --protect digits")
    made = [EVERYWHERE if pattern == NONE else relaxation_policy(protect=pattern, **protection) for pattern in protect]
    return list(dict.fromkeys(made))


def answers_are_numbers(task: Task) -> bool:
    """Say whether every problem has a number for its answer, so that digits are what must not change."""
    return all(problem.answer is not None and number(problem.answer) is not None for problem in task.problems)
