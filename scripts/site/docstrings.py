"""Docstrings are written for Python's own help; here their formulas and doctests become the site's Markdown."""

from __future__ import annotations

import re

import griffe

FORMULA = re.compile(r"^( *)\.\. math:: *(.*?)$", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]*)`")
DOCTEST = re.compile(r"^( *)(>>> .*(?:\n\1\S.*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrite every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Take an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    r"""Return a docstring with fenced formulas and doctests.

    >>> as_markdown("Example:\n    >>> 1 + 1\n    2")
    'Example:\n    ```pycon\n    >>> 1 + 1\n    2\n    ```'
    """
    docstring = FORMULA.sub(r"\1$$\n\1\2\n\1$$", docstring)
    docstring = INLINE.sub(r"`\1`", docstring)
    return DOCTEST.sub(r"\1```pycon\n\1\2\n\1```", docstring)
