"""`cactus rules`: what there is to choose from, and what each choice guarantees."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

GUARANTEES = {
    "lossless": "Exact: emits the target's own distribution.",
    "cactus:delta=0.5": "Given the drafted token, KL(h‖target) ≤ delta while its lifted probability g ≤ 1/2; "
    "above that it can overspend, up to log(1 + 2·delta). Not a bound on what is emitted on average.",
    "cactus:delta=0.5,solver=exact": "Given the drafted token, KL(h‖target) ≤ delta, never overspent. "
    "Not a bound on what is emitted on average.",
    "ensemble:weight=0.2": "Total variation to the target ≤ weight × that of the draft to the target; KL is unbounded.",
    "lenience:lenience=0.5": "No accepted token is more than 1/lenience times as likely as under the target; "
    "nothing about the whole distribution.",
    "clamped:width=1.0": "Every token's ratio to its target probability stays within e^±width.",
    "clamped:max_kl=0.1": "KL(emitted‖target) ≤ max_kl at every position.",
    "typical": "None: what it accepts is distributed as the draft's.",
    "top_k:k=5": "None: what it accepts is distributed as the draft's.",
    "relaxed_greedy:margin=0.5,top=3": "For temperature 0: no token gives up more than margin nats of log-probability.",
}
"""A spelling of every rule, and what it guarantees per position."""


def rules() -> None:
    """List the acceptance rules, how to spell them, and what each guarantees per position."""
    from cactus_decoding import parse_rule

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("rule", style="bold")
    table.add_column("spelling")
    table.add_column("guarantee at each position", ratio=1)
    for spelling, guarantee in GUARANTEES.items():
        table.add_row(parse_rule(spelling).name, spelling, guarantee)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "h is the relaxed target, the distribution that a proposal is tested against. Parameters follow the name, as "
        "in cactus:delta=0.5,solver=exact. At temperature 0 every rule but relaxed_greedy accepts only the target's "
        "most likely token. A budget (cactus generate --budget) bounds what a rule does to a whole response."
    )
