"""Options that several commands share, and what is done before any work."""

from __future__ import annotations

from typing import Annotated

import typer

SAMPLING, RUNNING, OUTPUT = "Sampling", "Running", "Output"

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
MaxNewTokens = Annotated[
    int, typer.Option(min=1, metavar="N", help="Upper limit of an answer's length.", rich_help_panel=SAMPLING)
]
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
