"""What budgets promise, by enumerating all responses of a toy pair: a table in docs/studies/tables/budgets.md.

    python -m studies.budgets.enumeration       seconds

The enumeration is that of the tests (tests/support/exact_responses.py).
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.exact_enumeration import markov_pair  # noqa: E402
from support.exact_responses import Pair, kl_of_laws, respond, target_law  # noqa: E402
from support.wrong_meters import forgets_the_rejected_position, looks_at_the_past_only  # noqa: E402

from cactus_decoding import audit, parse_rule  # noqa: E402
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


def measure(_: Namespace) -> dict[str, Any]:
    """Return KL(law of responses || target's law) for each rule and budget; None stands for infinity."""
    pair = Pair(*markov_pair())
    expected = target_law(pair, LENGTH)

    def moved(rule: str, **given: Any) -> float | None:
        law = respond(parse_rule(rule), pair, proposals=PROPOSALS, length=LENGTH, **given).law
        kl = kl_of_laws(law, expected)
        return kl if math.isfinite(kl) else None

    found = []
    for rule in RULES:
        worst = audit(rule, *pair).kl.max().item()
        row = {"rule": rule, "one_position": worst if math.isfinite(worst) else None, "unlimited": moved(rule)}
        found.append(row | {"budgets": [moved(rule, limit=limit) for limit in LIMITS]})
    clamped = "clamped:width=1.0"
    variants: tuple[tuple[str, Any], ...] = (
        ("block verification", lambda limit: {"block": True}),
        ("paced", lambda limit: {"expected_tokens": LENGTH}),
        ("wrong: forgets the rejected position", lambda limit: {"charge": forgets_the_rejected_position}),
        ("wrong: admits while anything is left", lambda limit: {"admit": looks_at_the_past_only}),
    )
    for name, given in variants:
        budgets = [moved(clamped, limit=limit, **given(limit)) for limit in LIMITS]
        found.append({"rule": f"{clamped}, {name}", "one_position": None, "unlimited": None, "budgets": budgets})
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
