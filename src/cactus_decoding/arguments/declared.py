"""What a class's source declares, read without what it computes with: a mistaken knob need not wait for torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cactus_decoding.arguments.contributed import Contributed
from cactus_decoding.arguments.knobs import check_knobs
from cactus_decoding.arguments.spelling import parse

_PACKAGE = Path(__file__).parents[1]
_LIGHT = {f"cactus_decoding.arguments.{name}" for name in ("knobs", "spelling", "values")}
"""What knobs and their checks are made of, beside the standard library."""


class _Checked:
    """Stands for the base class in a declaration."""

    def __post_init__(self) -> None:
        check_knobs(self)


class _Declarations(Mapping[str, type[Any]]):
    """The classes of a table, with their fields and checks alone."""

    def __init__(self, known: Contributed[Any]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> type[Any]:
        return _declaration(self._known.place(name))

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def check_declared(kind: str, text: str, known: Contributed[Any]) -> None:
    """Raise `ValueError` where `parse` would for one of the package's own classes; none is imported.

    What a class checks by what it computes with, it says when it is made.

    Example:
        >>> from cactus_decoding.rules import RULES
        >>> check_declared("rule", "clamped:width=-1", RULES)
        Traceback (most recent call last):
        ValueError: width must be in [0, 500], but is -1.0
    """
    try:
        parse(kind, text, _Declarations(known))
    except (NameError, AttributeError):
        return


@cache
def _declaration(place: str) -> type[Any]:
    """Return a dataclass with its fields and its checks alone."""
    home, _, wanted = place.partition(":")
    path = _PACKAGE.joinpath(*home.split(".")[1:])
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    module = ast.parse(source.read_text(encoding="utf-8"))
    module.body = [*_declared(module.body, wanted)]
    names: dict[str, Any] = {"__name__": __name__, "_Checked": _Checked}
    # without inheriting from this file annotations are objects, and no text
    exec(compile(ast.fix_missing_locations(module), source.name, "exec", dont_inherit=True), names)
    made: type[Any] = names[wanted]
    return made


def _declared(body: list[ast.stmt], wanted: str) -> Iterator[ast.stmt]:
    for node in body:
        light = _is_plain(node) or (isinstance(node, ast.Import) and node.names[0].name in sys.stdlib_module_names)
        if isinstance(node, ast.ImportFrom):
            home = node.module or ""
            light = home in _LIGHT or home.partition(".")[0] in sys.stdlib_module_names - {"__future__"}
        if light:
            yield node
        elif isinstance(node, ast.ClassDef) and node.name == wanted:
            node.bases = [ast.Name("_Checked", ast.Load())]
            node.body = [*filter(_is_kept, node.body), ast.Pass()]
            yield node


def _is_plain(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)


def _is_kept(node: ast.stmt) -> bool:
    """Say whether a statement of a class is a public field, or what checks of fields may call."""
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and not node.target.id.startswith("_")
    if not isinstance(node, ast.FunctionDef):
        return _is_plain(node)
    node.returns = None  # a method's types may be what is heavy
    return node.name in ("__post_init__", "__str__") or [ast.unparse(each) for each in node.decorator_list] == [
        "property"
    ]
