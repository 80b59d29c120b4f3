"""Write the types of a request's keyword arguments, for editors and type checkers, from the fields of `Request`.

Run it after a field was added or changed: ``python scripts/write_keywords.py``. A test says if that was forgotten.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BeforeValidator, PlainValidator

from cactus_decoding.core.declared import Declared, fields_of, settings_of, switch
from cactus_decoding.core.request import Request

FILE = Path(__file__).parents[1] / "src" / "cactus_decoding" / "core" / "keywords.py"
HEAD = '''"""Keyword arguments that make a request, with their types; written by ``scripts/write_keywords.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
'''
CLASSES = {
    "RequestKeywords": "What `Request` takes by name.",
    "RequestSettings": "The settings of a request by their flat names, which `Request.from_dict` takes.",
}


def accepted(declared: Declared) -> tuple[str, dict[str, str]]:
    """Return what a field or its converter takes, as it is written, and the modules of the names in that."""
    for each in declared.field.metadata:
        if isinstance(each, PlainValidator | BeforeValidator):
            function: Any = each.func
            parameter = next(iter(function.__annotations__))
            return function.__annotations__[parameter], imported(function.__module__)
    kinds = get_args(declared.field.annotation) or (declared.field.annotation,)
    text = " | ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    return text, {kind.__name__: kind.__module__ for kind in kinds}


@cache
def imported(module: str) -> dict[str, str]:
    """Return where the names of a module come from: other modules, or the module itself."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    own = {each.name: module for each in tree.body if isinstance(each, ast.ClassDef)}
    found = (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and each.module)
    return own | {alias.asname or alias.name: str(each.module) for each in found for alias in each.names}


def settings() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield every setting's flat name, what it takes, and the modules of the names in that."""
    budget = next(each for each in fields_of(Request) if each.name == "budget")
    yield "budget", *accepted(budget)
    for name, each in settings_of(Request).items():
        text, names = accepted(each)
        if key := switch(each.part):  # what belongs to a part that there need not be
            part = f" | {each.part.__name__}" if key == name else ""
            text, names = f"{text}{part} | None", names | {each.part.__name__: each.part.__module__}
        yield name, text, names


def keywords() -> str:
    """Return the text of the file."""
    fields = {
        "RequestKeywords": [(each.name, *accepted(each)) for each in fields_of(Request)],
        "RequestSettings": [*settings()],
    }
    imports, classes = set(), ""
    for name, doc in CLASSES.items():
        classes += f'\n\nclass {name}(TypedDict, total=False):\n    """{doc}"""\n\n'
        for field, text, names in fields[name]:
            classes += f"    {field}: {text}\n"
            for word in re.findall(r"\w+", text):
                if not hasattr(builtins, word):
                    imports.add((names[word], word))
    modules = sorted({module for module, _ in imports}, key=lambda module: (module.startswith("cactus"), module))
    lines = [
        f"    from {module} import {', '.join(sorted(word for home, word in imports if home == module))}"
        for module in modules
    ]
    first = sum(not module.startswith("cactus") for module in modules)
    return HEAD + "\n".join([*lines[:first], "", *lines[first:]]) + "\n" + classes


if __name__ == "__main__":
    FILE.write_text(keywords(), encoding="utf-8")
