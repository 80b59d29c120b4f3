"""`cactus rules`: the acceptance rules that there are."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def rules() -> None:
    """List the acceptance rules, how to spell them, and what each guarantees per position."""
    from cactus_decoding.core.rules import RULES
    from cactus_decoding.core.rules.base import GreedyRule

    *others, last = (name for name, rule in RULES.items() if issubclass(rule, GreedyRule))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("rule", style="bold")
    table.add_column("spelling")
    table.add_column("guarantee at each position", ratio=1)
    for name, rule in RULES.items():
        for preset in rule.presets:
            table.add_row(name, preset.spelling, preset.guarantee)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "h is the relaxed target, the distribution that a proposal is tested against. Parameters follow the name, as "
        f"in cactus:delta=0.5,solver=exact. At temperature 0 all but {', '.join(others)} and {last} accept only the "
        "target's most likely token. A budget (cactus generate --budget) bounds what a rule does to a whole response."
    )
