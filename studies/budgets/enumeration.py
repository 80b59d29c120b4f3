"""What budgets promise, by enumerating all responses of a toy pair: a table in docs/studies/tables/budgets.md.

    python -m studies.budgets.enumeration       half a minute

The enumeration is that of the tests (tests/support/tree_enumeration.py).
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.exact_enumeration import make_rows  # noqa: E402
from support.tree_enumeration import (  # noqa: E402
    Charge,
    Models,
    Step,
    charged,
    divergence,
    product_law,
    respond,
    uniform_shape,
)
from torch import Tensor  # noqa: E402

from cactus_decoding import Budget, audit, parse_rule  # noqa: E402
from cactus_decoding.core.policy import decide  # noqa: E402
from cactus_decoding.core.policy.decide import Policy, PolicyState  # noqa: E402
from cactus_decoding.core.verification.walk import SCHEMES  # noqa: E402
from scripts.pages import table  # noqa: E402
from studies.study import study  # noqa: E402

RESULTS = Path(__file__).with_name("results") / "enumeration.json"
LIMITS = (0.02, 0.1, 0.5)
PROPOSALS, LENGTH = 2, 5
RULES = (
    "cactus:delta=0.1",
    "cactus:delta=0.1,solver=exact",
    "cactus:delta=1.0",
    "ensemble:weight=0.3",
    "lenience:lenience=0.6",
    "clamped:width=1.0",
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
    kept = [step.judge.decisions[trial.parent] for trial in step.walk.trials if trial.accepted]
    return policy.end_step(state, kept, step.tokens)


def moved(rule: str, budget: Budget | None, scheme: str = "token", charge: Charge = charged) -> float | None:
    """Return KL(distribution of responses || the target's); None stands for infinity."""
    pair, shape = Markov(), uniform_shape(PROPOSALS, 0, 1)
    law = respond(SCHEMES[scheme], Policy(parse_rule(rule), budget), pair, shape, LENGTH, charge=charge).law
    kl = divergence(law, product_law(lambda text: pair(text)[0], pair.vocabulary, LENGTH))
    return kl if math.isfinite(kl) else None


def measure(_: Namespace) -> dict[str, Any]:
    found = []
    for rule in RULES:
        worst = audit(rule, *Markov().rows).kl.max().item()
        row = {"rule": rule, "one_position": worst if math.isfinite(worst) else None, "unlimited": moved(rule, None)}
        found.append(row | {"budgets": [moved(rule, Budget(nats=limit)) for limit in LIMITS]})
    clamped, budgets = "clamped:width=1.0", [Budget(nats=limit) for limit in LIMITS]
    variants = {
        "block verification": [moved(clamped, each, scheme="joint") for each in budgets],
        "paced": [moved(clamped, Budget(nats=limit, expected_tokens=LENGTH)) for limit in LIMITS],
        "wrong: forgets the rejected position": [
            moved(clamped, each, charge=forgets_the_rejected_position) for each in budgets
        ],
    }
    right = decide.affords
    decide.affords = lambda state, cost: state.spent < state.limit
    variants["wrong: admits while anything is left"] = [moved(clamped, each) for each in budgets]
    decide.affords = right
    for name, kept in variants.items():
        found.append({"rule": f"{clamped}, {name}", "one_position": None, "unlimited": None, "budgets": kept})
    return {"rows": found, "proposals": PROPOSALS, "length": LENGTH, "limits": LIMITS}


def shown(result: Any) -> dict[str, str]:
    """Return the table; what is above its budget is set in bold."""
    head = "rule", "one position, at most", "a response, no budget", *(f"budget {limit:g}" for limit in LIMITS)
    cells = []
    for row in result["rows"]:
        variant = ", wrong" in row["rule"] or row["unlimited"] is None
        plain = ["" if variant else _number(row[key]) for key in ("one_position", "unlimited")]
        kept = [
            f"**{_number(kl)}**" if kl is None or kl > limit else _number(kl)
            for kl, limit in zip(row["budgets"], LIMITS, strict=True)
        ]
        cells.append([row["rule"], *plain, *kept])
    return {"enumeration": table(head, cells)}


def _number(kl: float | None) -> str:
    return "∞" if kl is None else f"{kl:.4f}"


if __name__ == "__main__":
    study(__doc__, RESULTS, "studies/tables/budgets.md", measure, shown)
