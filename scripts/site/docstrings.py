"""Docstrings are written for Python's own help; here their formulas and doctests become the site's Markdown.

Fields that say what they are in their `Setting` are described by that.
"""

from __future__ import annotations

import ast
import re

import griffe

FORMULA = re.compile(r"^( *)\.\. math:: *(.*(?:\n\1 +\S.*)*)$", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]*)`")
DOCTEST = re.compile(r"^( *)(>>> .*(?:\n\1\S.*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrite every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Take an object that was read."""
        if isinstance(obj, griffe.Attribute) and obj.docstring is None and (said := described(str(obj.annotation))):
            obj.docstring = griffe.Docstring(said, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def described(annotation: str) -> str:
    """Return what a field's annotation says of it; nothing where it says nothing, or works it out.

    >>> described("Annotated[float, Setting('budget; 0 is lossless', 'nats', ge=0)]")
    'Budget; 0 is lossless.'
    """
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        args = node.args if isinstance(node, ast.Call) and ast.unparse(node.func) == "Setting" else []
        if args and isinstance(args[0], ast.Constant):
            said = str(args[0].value)
            return said[:1].upper() + said[1:].rstrip(".") + "."
    return ""


def as_markdown(docstring: str) -> str:
    r"""Return a docstring with fenced formulas and doctests.

    >>> as_markdown("Example:\n    >>> 1 + 1\n    2")
    'Example:\n    ```pycon\n    >>> 1 + 1\n    2\n    ```'
    >>> as_markdown("Of two lines:\n\n.. math:: a +\n    b\n\nthen")
    'Of two lines:\n\n$$\na + b\n$$\n\nthen'
    """
    docstring = FORMULA.sub(
        lambda found: "{0}$$\n{0}{1}\n{0}$$".format(found[1], " ".join(found[2].split())), docstring
    )
    docstring = INLINE.sub(r"`\1`", docstring)
    return DOCTEST.sub(r"\1```pycon\n\1\2\n\1```", docstring)
