"""`cactus conform`: the command of cactus-conform, a distribution of its own."""

from __future__ import annotations

import typer

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def conform(context: typer.Context) -> int:
    """Say whether an engine's speculation is lossless: whether its tokens have the distribution of the target alone.

    'cactus conform --help' lists its options, once cactus-conform is installed: pip install -e packages/conform
    """
    try:
        from cactus_conform.command import run
    except ImportError:
        from cactus_decoding.core.extras import install_conform

        raise ValueError(f"'cactus conform' needs cactus-conform: run {install_conform()}") from None
    return run(context.args, "cactus conform")
