"""The package's public names: the lazy ones are those that type checkers and the documentation see."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest

import cactus_decoding
from cactus_decoding.rules import RULE_CLASSES


def test_names_are_imported_from_where_type_checkers_see_them():
    tree = ast.parse(inspect.getsource(cactus_decoding))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen.pop("*") == "cactus_decoding.rules"
    seen |= dict.fromkeys(["RULES", "Rule", "parse_rule", *RULE_CLASSES], "cactus_decoding.rules")
    homes = {name: f"cactus_decoding.{home}" for name, home in cactus_decoding._homes().items()}
    assert homes == seen
    assert sorted(cactus_decoding.__all__) == sorted(homes)
    assert set(homes) <= set(dir(cactus_decoding))


def test_every_name_is_there_and_others_are_not():
    namespace: dict[str, object] = {}
    exec("from cactus_decoding import *", namespace)
    assert set(cactus_decoding.__all__) <= set(namespace)
    with pytest.raises(AttributeError, match="has no attribute 'frob'"):
        cactus_decoding.frob  # noqa: B018


LOADED = """
import sys
from cactus_decoding import generate
own = [module for name, module in sys.modules.items() if name.partition(".")[0] == "cactus_decoding"]
print(sum(len(open(module.__file__, encoding="utf-8").readlines()) for module in own))
"""


def test_whoever_generates_loads_little_of_the_package():
    """What a request does not ask for is imported where it is asked for."""
    lines = int(subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True).stdout)
    assert lines <= 6000
