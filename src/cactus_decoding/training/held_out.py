"""Problems that nothing may learn from."""

from __future__ import annotations

from cactus_decoding.arguments.spelling import parse
from cactus_decoding.evaluation.tasks.sources import SOURCES, WordProblems


def check_not_held_out(spelling: str) -> None:
    """Raise `ValueError` for a task of the bundled word problems that is kept for tests.

    Example:
        >>> check_not_held_out("word_problems:split=train")
        >>> check_not_held_out("word_problems")
        Traceback (most recent call last):
        ValueError: the problems of 'word_problems' are held out for tests: learn from word_problems:split=train, or
        split=validation
    """
    source = parse("task", spelling, SOURCES)
    if isinstance(source, WordProblems) and source.split == "test":
        raise ValueError(
            f"the problems of {spelling!r} are held out for tests: learn from word_problems:split=train, or "
            "split=validation"
        )
