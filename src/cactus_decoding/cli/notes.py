"""What a user may not know of a pair, each in a line on stderr."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from cactus_decoding import Pair


def default_draft(target: str | None, draft: str | None) -> str | None:
    """Return what drafts: where a target is named alone, look-up in the text; None for the bundled pair's own draft."""
    from cactus_decoding.core.drafting.registry import LOOK_UP
    from cactus_decoding.zoo import BUNDLED

    return LOOK_UP if draft is None and target not in (None, BUNDLED) else draft


def say_looked_up(by: str | None = None) -> None:
    """Say what drafts where nobody said it."""
    from cactus_decoding.core.drafting.registry import LOOK_UP

    say(
        f"no --draft is given, so proposals are looked up in the text ({by or LOOK_UP}); a small model of the same "
        "family, --draft MODEL, proposes more of what is kept"
    )


def say_of_prompt(pair: Pair, prompt: str, *, chat: bool, raw: bool) -> None:
    """Say where a prompt is not what a model was made for; with ``raw`` the user knows what it is."""
    for note in () if raw else _of_prompt(pair, prompt, chat):
        say(note)


def _of_prompt(pair: Pair, prompt: str, chat: bool) -> Iterator[str]:
    from cactus_decoding.zoo.word_problems.examples import unlike_stories

    if pair.bundled:
        if unlike := unlike_stories(prompt):
            yield (
                f"the bundled models know word problems of their own kinds only, and this is none ({unlike}): expect "
                "no sense; --target MODEL asks your own"
            )
    elif not chat and getattr(pair.tokenizer, "chat_template", None):
        yield (
            "the target has a chat template, but the prompt is continued as plain text: give --chat to ask by it, or "
            "--raw if that is meant"
        )


class _Sayer(logging.Handler):
    """Says what is logged as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        say(record.getMessage())


def say_what_is_logged(name: str) -> None:
    """Say from now on what a logger of this package tells users."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, _Sayer) for each in logger.handlers):
        logger.addHandler(_Sayer())
        logger.setLevel(logging.INFO)


def say(note: str) -> None:
    """Write a note."""
    typer.echo(f"cactus: note: {note}", err=True)
