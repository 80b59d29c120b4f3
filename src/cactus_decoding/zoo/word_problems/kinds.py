"""Whether a text is of the kinds that the bundled models were trained on."""

from __future__ import annotations

import re
from functools import cache
from itertools import islice

from cactus_decoding.zoo.word_problems.generator import word_problems

_STORIES = 600
"""How many are read for their words: all that the families have."""
_LARGEST_NUMBER = 999
_FEW_WORDS = 0.25
"""The part of its words that no story needs to have: stories in other words are answered now and then."""


def unlike_stories(text: str) -> str:
    """Return why a text is none of the stories that the bundled models know; nothing if it may be one.

    Words, numbers and the question's form are looked at, not the sense: what passes need not be answered rightly.

    Example:
        >>> unlike_stories("Anna has 43 stamps. She gives away 17 stamps. How many stamps does Anna have left?")
        ''
        >>> unlike_stories("Why is the sky blue? 2 reasons?")
        "no story has 'why', 'sky', 'blue'"
    """
    words = _words_of(text)
    unknown = [word for word in words if word not in _known_words()]
    if len(unknown) > len(words) * _FEW_WORDS:
        return f"no story has {', '.join(map(repr, islice(dict.fromkeys(unknown), 3)))}"
    numbers = [int(digits) for digits in re.findall(r"\d+", text)]
    if not numbers:
        return "it has no number"
    return f"no story has {max(numbers)}" if max(numbers) > _LARGEST_NUMBER else ""


def _words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.lower())


@cache
def _known_words() -> frozenset[str]:
    stories = islice(word_problems("train"), _STORIES)
    return frozenset(word for story in stories for word in _words_of(f"question answer {story.question}"))
