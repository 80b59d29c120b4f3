"""Options that several commands share, and what is done before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cactus_decoding import Budget

SAMPLING, BUDGET, RUNNING, OUTPUT = "Sampling", "Budget", "Running", "Output"

NumSpeculativeTokens = Annotated[
    int, typer.Option(min=0, metavar="N", help="Tokens that the draft proposes per step.", rich_help_panel=RUNNING)
]
Temperature = Annotated[
    float,
    typer.Option(metavar="T", help="0 takes the most likely token; 1 leaves the model's probabilities as they are.",
                 rich_help_panel=SAMPLING),
]  # fmt: skip
TopK = Annotated[
    int, typer.Option(min=0, metavar="K", help="Keep the K most likely tokens; 0 keeps all.", rich_help_panel=SAMPLING)
]
TopP = Annotated[
    float,
    typer.Option(metavar="P", help="Keep the most likely tokens with mass P, in (0, 1].", rich_help_panel=SAMPLING),
]
MinP = Annotated[
    float,
    typer.Option(metavar="P", help="Drop tokens less than P times as likely as the most likely, in [0, 1].",
                 rich_help_panel=SAMPLING),
]  # fmt: skip
DraftLength = Annotated[
    str,
    typer.Option(
        "--num-speculative-tokens",
        metavar="N",
        help="Tokens that the draft proposes per step; or 'confidence:threshold=0.4' to stop where it is unsure, or "
        "'adaptive' to propose as many as are worth their time.",
        rich_help_panel=RUNNING,
    ),
]
MaxNewTokens = Annotated[
    int, typer.Option(min=1, metavar="N", help="Upper limit of an answer's length.", rich_help_panel=SAMPLING)
]
Nats = Annotated[
    float | None,
    typer.Option("--budget", min=0, metavar="NATS", show_default="none", rich_help_panel=BUDGET,
                 help="Limit on how far the distribution of a whole answer may move from the target's; 'inf' only "
                 "measures. With relaxed_greedy: on the log-probability given up."),
]  # fmt: skip
MaxShift = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="P", show_default="none", rich_help_panel=BUDGET,
                 help="The same by its consequence: no event's probability moves by more than P."),
]  # fmt: skip
ExpectedTokens = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", show_default="none", rich_help_panel=BUDGET,
                 help="Spread the budget over this many tokens by moving the width of clamped:width=…"),
]  # fmt: skip
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="CPU threads.",
        show_default="1 for small models such as the bundled pair, else torch's own",
        rich_help_panel=RUNNING,
    ),
]


def budget_of(nats: float | None, max_shift: float | None, expected_tokens: int | None, rule: str) -> Budget | None:
    """Return the budget that the options ask for; raise `ValueError` if they do not go together."""
    from cactus_decoding import Budget

    if nats is None and max_shift is None:
        if expected_tokens is not None:
            raise ValueError("--expected-tokens spreads a budget: give --budget or --max-shift too")
        return None
    if rule == "lossless":
        raise ValueError("the lossless rule spends nothing of a budget: give --rule, such as --rule clamped:width=1")
    if nats is not None and max_shift is not None:
        raise ValueError("--budget and --max-shift exclude each other: give one of them")
    return Budget(nats=nats, max_shift=max_shift, expected_tokens=expected_tokens)


def prepare(threads: int | None, *, small: bool) -> None:
    """Set the number of CPU threads, and keep the libraries' own progress bars and log lines out of the output.

    Args:
        threads: how many; None leaves it to torch, but takes one where ``small`` says that the models gain nothing from
            more (on a busy machine, threads that wait for each other made the bundled pair 20 times slower).
        small: whether only small models will run.
    """
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if threads is not None or small:
        torch.set_num_threads(threads or 1)
