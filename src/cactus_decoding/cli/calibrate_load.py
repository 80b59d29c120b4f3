"""`cactus calibrate --engine vllm`: the share of a rule that a server under load needs, from times measured here."""

from __future__ import annotations

import json
import re
import shlex
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from cactus_decoding.cli.progress import counting

if TYPE_CHECKING:
    from cactus_decoding.contrib.load_rules.shares import SharesAtSize

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
MAX_TOKENS = 64


def by_load(
    max_ms: float,
    *,
    engine: str | None,
    concurrency: str | None,
    rule: str | None,
    target: str,
    draft: str | None,
    task: str,
    draft_sampling: str,
    num_speculative_tokens: int,
    rounds: int,
    engine_arguments: str | None,
) -> dict[str, Any]:
    """Time an engine of vLLM, print the table that a server takes, and return it with its evidence.

    Raises `ValueError` for what is missing or out of range; before the engine starts, as far as that can be known.
    """
    from cactus_decoding import parse_rule, zoo
    from cactus_decoding.arguments.checks import check_choice, check_integer, check_number
    from cactus_decoding.contrib.load_rules.shares import load_table, shares_at_sizes
    from cactus_decoding.contrib.load_rules.timing import VllmUnderLoad, time_load
    from cactus_decoding.evaluation.tasks.sources import parse_task
    from cactus_decoding.files.provenance import provenance
    from cactus_decoding.integrations.common.keys import RULE_KEY
    from cactus_decoding.integrations.vllm.request import LOAD_KEY, request_of
    from cactus_decoding.policy.fitted import check_scalable
    from cactus_decoding.rules.base import Rule

    check_choice("engine", engine, ("vllm",))
    check_choice("draft_sampling", draft_sampling, ("greedy", "probabilistic"))
    check_number("--max-ms-per-token", max_ms, 0, float("inf"))
    check_integer("--num-speculative-tokens", num_speculative_tokens, 1)
    if rule is None or concurrency is None:
        raise ValueError(
            "--max-ms-per-token needs --rule, the loosest that requests may have, and --concurrency, such as 1,4,16,64"
        )
    asked = parse_rule(rule)
    check_scalable(asked, LOAD_KEY)
    request_of({RULE_KEY: str(asked)})
    if not isinstance(asked, Rule) or not asked.scalable:
        raise ValueError(f"--rule must be a relaxed rule, but is {rule}")
    sizes = _sizes(concurrency)
    if target != zoo.BUNDLED and draft is None:
        raise ValueError(f"a draft is missing for target {target!r}: give --draft a model's path or name, or 'suffix'")
    prompts = [problem.prompt for problem in islice(parse_task(task).problems, 64)]
    running = VllmUnderLoad(
        target, draft or zoo.BUNDLED, num_speculative_tokens, max(sizes), engine_arguments, draft_sampling, str(asked)
    )
    try:
        with counting("Timing the engine under load", rounds * len(sizes) * len(SHARES)) as report:
            times = time_load(
                running, asked, prompts, sizes, SHARES, rounds=rounds, max_tokens=MAX_TOKENS, report=report
            )
    finally:
        running.close()
    found = shares_at_sizes(times, max_ms / 1000)
    rows = load_table(found)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(_table(found, str(asked), max_ms))
    for line in _verdict(found, max_ms):
        console.print(line, soft_wrap=True)
    config = {RULE_KEY: str(asked), LOAD_KEY: rows}
    flags = f"--additional-config {shlex.quote(json.dumps(config))}"
    console.print(f"[bold]Use:[/bold] {escape(flags)}", soft_wrap=True)
    arguments = {"max_ms_per_token": max_ms, "concurrency": sizes, "rule": str(asked), "target": target, "draft": draft}
    arguments |= {"draft_sampling": draft_sampling}
    arguments |= {"task": task, "num_speculative_tokens": num_speculative_tokens, "rounds": rounds}
    arguments |= {"engine_args": engine_arguments, "max_tokens": MAX_TOKENS}
    return {
        "schema": 1,
        "kind": LOAD_KEY,
        "additional_config": config,
        "measured": [each.as_dict() for each in found],
        "provenance": provenance(arguments),
    }


def _sizes(text: str) -> list[int]:
    """Return numbers of requests, ascending."""
    parts = [part.strip() for part in text.split(",")]
    sizes = {int(part) for part in parts if re.fullmatch(r"[0-9]{1,6}", part)} - {0}
    if len(sizes) < len(parts):
        raise ValueError(f"--concurrency must be different numbers of at least 1, such as 1,4,16,64, but is {text!r}")
    return sorted(sizes)


def _table(found: list[SharesAtSize], rule: str, max_ms: float) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, title_justify="left",
        title=f"Milliseconds per output token, by share of {rule} (95 % interval); * needed for {max_ms:g} ms",
    )  # fmt: skip
    table.add_column("requests", justify="right")
    for share in SHARES:
        table.add_column(f"{share:g}", justify="right")
    for each in found:
        values = []
        for share, seconds in each.seconds.items():
            value, low, high = (1000 * end for end in seconds)
            ends = f" ({low:.2f}–{high:.2f})" if seconds.has_ends else ""
            values.append(f"{value:.2f}{ends}{' *' if share == each.chosen else '  '}")
        table.add_row(str(each.size), *values)
    return table


def _verdict(found: list[SharesAtSize], max_ms: float) -> list[str]:
    """Say where the limit is not kept, and where nothing is needed to keep it."""
    missed = [str(each.size) for each in found if not each.within]
    lossless = [str(each.size) for each in found if each.within and each.chosen == 0]
    said = []
    if lossless:
        said.append(f"Lossless keeps {max_ms:g} ms per token with {', '.join(lossless)} under way.")
    if missed:
        said.append(
            f"No share keeps {max_ms:g} ms per token with {', '.join(missed)} under way; the fastest one stands there."
        )
    return said
