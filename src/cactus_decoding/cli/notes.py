"""Notes on stderr, each in a line, about what a user may not know of a pair."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from cactus_decoding import Pair, Request
    from cactus_decoding.core.types import DraftLength


def default_draft(target: str | None, draft: str | None) -> str | None:
    """Return look-up in the text if only a target is named; None for the bundled pair's own draft."""
    from cactus_decoding.core.drafting.registry import LOOK_UP
    from cactus_decoding.zoo import BUNDLED

    return LOOK_UP if draft is None and target not in (None, BUNDLED) else draft


def say_looked_up(by: str | None = None) -> None:
    from cactus_decoding.core.drafting.registry import LOOK_UP

    say(
        f"no --draft is given, so proposals are looked up in the text ({by or LOOK_UP}); a small model of the same "
        "family, --draft MODEL, proposes more of what is kept"
    )


def say_of_prompt(pair: Pair, prompt: str, *, chat: bool, raw: bool) -> None:
    """Say so if a prompt is not what a model was made for; with ``raw`` the user knows what it is."""
    from cactus_decoding.zoo.word_problems.generator import unlike_stories

    if raw:
        return
    if pair.bundled:
        if unlike := unlike_stories(prompt):
            say(
                f"the bundled models know word problems of their own kinds only, and this is none ({unlike}): expect "
                "no sense; --target MODEL asks your own"
            )
    elif not chat and getattr(pair.tokenizer, "chat_template", None):
        say(
            "the target has a chat template, but the prompt is continued as plain text: give --chat to ask by it, or "
            "--raw if that is meant"
        )


def say_what_changes_nothing(request: Request) -> None:
    """Say so if a request relaxes nothing, whatever its rule or protection."""
    from cactus_decoding.core.rules import Lossless
    from cactus_decoding.core.rules.base import GreedyRule

    if isinstance(request.rule, Lossless):
        if not request.policy.everywhere:
            say(
                "the lossless rule relaxes nothing, so there is nothing to protect: give --rule, such as "
                "--rule clamped:width=1"
            )
    elif request.sampling.temperature == 0 and not isinstance(request.rule, GreedyRule):
        say(
            f"at temperature 0 {request.rule} changes nothing: every answer is the target's own greedy one; "
            "--rule relaxed_greedy relaxes there"
        )


def prepare_length(pair: Pair, length: DraftLength) -> None:
    """Have a draft length measure what it needs, and say so first, because that takes seconds."""
    from cactus_decoding.core.drafting.automatic import AutoLength

    if isinstance(length, AutoLength) and pair.pass_times(length) is None:
        typer.echo("Timing passes (a few seconds, once) …", err=True)
    pair.prepare(length)


class _Sayer(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def say_what_is_logged(name: str) -> None:
    """Show messages of one of this package's loggers as notes from now on."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, _Sayer) for each in logger.handlers):
        logger.addHandler(_Sayer())
        logger.setLevel(logging.INFO)


def say(note: str) -> None:
    typer.echo(f"cactus: note: {note}", err=True)
