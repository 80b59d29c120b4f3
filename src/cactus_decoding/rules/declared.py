"""What a rule's source declares, read without what the rule computes with: a mistaken knob need not wait for torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from cactus_decoding.arguments.knobs import check_knobs
from cactus_decoding.arguments.spelling import fill
from cactus_decoding.rules import RULE_CLASSES

_LIGHT = "cactus_decoding.arguments."
"""What knobs and their checks are made of, beside the standard library."""


class _Checked:
    """Stands for `Rule` in a declaration."""

    def __post_init__(self) -> None:
        check_knobs(self)


def check_declared(text: str) -> None:
    """Raise `ValueError` where a package's rule does not take the parameters of a spelling; it is not imported.

    What a rule checks by what it computes with, it says when it is made.

    Example:
        >>> check_declared("clamped:width=-1")
        Traceback (most recent call last):
        ValueError: width must be in [0, 500], but is -1.0
    """
    name, _, rest = text.strip().partition(":")
    if name in RULE_CLASSES.values():
        try:
            fill(name, _declaration(name), rest, text)
        except NameError:
            return


@cache
def _declaration(name: str) -> type[Any]:
    """Return a rule's dataclass with its fields and its checks alone."""
    wanted = next(each for each, module in RULE_CLASSES.items() if module == name)
    module = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    module.body = [*_declared(module.body, wanted)]
    names: dict[str, Any] = {"__name__": __name__, "Rule": _Checked}
    exec(
        compile(ast.fix_missing_locations(module), f"{name}.py", "exec", dont_inherit=True), names
    )  # annotations are objects, and no text
    made: type[Any] = names[wanted]
    return made


def _declared(body: list[ast.stmt], wanted: str) -> Iterator[ast.stmt]:
    for node in body:
        light = isinstance(node, ast.Import) and node.names[0].name in sys.stdlib_module_names
        if isinstance(node, ast.ImportFrom):
            home = node.module or ""
            light = home.partition(".")[0] in sys.stdlib_module_names - {"__future__"} or home.startswith(_LIGHT)
        if light:
            yield node
        elif isinstance(node, ast.ClassDef) and node.name == wanted:
            node.body = [*filter(_checks, node.body), ast.Pass()]
            yield node


def _checks(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) or (isinstance(node, ast.FunctionDef) and node.name == "__post_init__")
