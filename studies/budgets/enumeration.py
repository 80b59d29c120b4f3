"""What budgets promise, by enumerating all responses of a toy pair: a table in docs/studies/tables/budgets.md.

    python -m studies.budgets.enumeration       half a minute

The enumeration is that of the tests (tests/support/tree_enumeration.py).
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from support.exact_enumeration import make_rows
from support.tree_enumeration import Charge, Models, Step, charged, divergence, product_law, respond, uniform_shape
from torch import Tensor

from cactus_decoding import Budget, audit, parse_rule
from cactus_decoding.core.policy import decide
from cactus_decoding.core.policy.decide import Policy, PolicyState
from cactus_decoding.core.schemes import VERIFICATIONS
from scripts.pages import table
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "enumeration.json"
LIMITS = (0.02, 0.1, 0.5)
PROPOSALS, LENGTH = 2, 5
CLAMPED = "clamped:width=1.0"
RULES = (
    "cactus:delta=0.1",
    "cactus:delta=0.1,solver=exact",
    "cactus:delta=1.0",
    "ensemble:weight=0.3",
    "lenience:lenience=0.6",
    CLAMPED,
    "typical:recovery=sample",
    "top_k:k=2",
)


class Markov(Models):
    """A toy pair whose rows depend on the previous token; one of the target's excludes a token."""

    def __init__(self) -> None:
        target, draft = (rows.sqrt() for rows in make_rows(4, 4, seed=5))
        target[1, 2] = 0.0
        self.vocabulary, self.rows = 4, [each / each.sum(-1, keepdim=True) for each in (target, draft)]

    def __call__(self, text: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        target, draft = self.rows
        before = text[-1] if text else 0
        return target[before], draft[before]


def forgets_the_rejected_position(policy: Policy, state: PolicyState, step: Step) -> PolicyState:
    """Charge accepted positions only, which is wrong."""
    kept = [visit.decision for visit in step.walk.visits if visit.accepted]
    return policy.end_step(state, kept, step.tokens)


def moved(rule: str, budget: Budget | None, scheme: str = "token", charge: Charge = charged) -> float | None:
    """Return KL(distribution of responses || the target's); None stands for infinity."""
    pair, shape = Markov(), uniform_shape(PROPOSALS, 0, 1)
    verify, policy = VERIFICATIONS[scheme].function, Policy(parse_rule(rule), budget)
    law = respond(verify, policy, pair, shape, LENGTH, charge=charge).law
    kl = divergence(law, product_law(lambda text: pair(text)[0], pair.vocabulary, LENGTH))
    return kl if math.isfinite(kl) else None


def measure(_: Namespace) -> dict[str, Any]:
    """Return of each rule, and of variants of one, what it costs at a position, without a budget, and under budgets."""
    found = []
    for rule in RULES:
        worst = audit(rule, *Markov().rows).kl.max().item()
        row = {"rule": rule, "one_position": worst if math.isfinite(worst) else None, "unlimited": moved(rule, None)}
        found.append(row | {"budgets": [moved(rule, Budget(nats=limit)) for limit in LIMITS]})
    variants: dict[str, Callable[[float], float | None]] = {
        "block verification": lambda limit: moved(CLAMPED, Budget(nats=limit), scheme="joint"),
        "paced": lambda limit: moved(CLAMPED, Budget(nats=limit, expected_tokens=LENGTH)),
        "wrong: forgets the rejected position": lambda limit: moved(
            CLAMPED, Budget(nats=limit), charge=forgets_the_rejected_position
        ),
        "wrong: admits while anything is left": admitting_while_anything_is_left,
    }
    for name, kept in variants.items():
        budgets = [kept(limit) for limit in LIMITS]
        found.append({"rule": f"{CLAMPED}, {name}", "one_position": None, "unlimited": None, "budgets": budgets})
    return {"rows": found, "proposals": PROPOSALS, "length": LENGTH, "limits": LIMITS}


def admitting_while_anything_is_left(limit: float) -> float | None:
    with mock.patch.object(decide, "affords", lambda state, cost: state.spent < state.limit):
        return moved(CLAMPED, Budget(nats=limit))


def shown(result: Any) -> dict[str, str]:
    """Return the table; what is above its budget is set in bold."""

    def number(kl: float | None, limit: float = math.inf) -> str:
        said = "∞" if kl is None else f"{kl:.4f}"
        return f"**{said}**" if limit < math.inf and (kl is None or kl > limit) else said

    cells = []
    for row in result["rows"]:
        variant = ", wrong" in row["rule"] or row["unlimited"] is None
        plain = ["" if variant else number(row[key]) for key in ("one_position", "unlimited")]
        cells.append([row["rule"], *plain, *map(number, row["budgets"], LIMITS)])
    head = "rule", "one position, at most", "a response, no budget", *(f"budget {limit:g}" for limit in LIMITS)
    return {"enumeration": table(head, cells)}


if __name__ == "__main__":
    study(__doc__, RESULTS, "studies/tables/budgets.md", measure, shown)
