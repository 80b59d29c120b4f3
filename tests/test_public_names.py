"""The package's public names: the lazy ones are those that type checkers and the documentation see."""

from __future__ import annotations

import ast
import inspect

import pytest

import cactus_decoding
from cactus_decoding.core import rules


def test_names_are_imported_from_where_type_checkers_see_them():
    tree = ast.parse(inspect.getsource(cactus_decoding))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen.pop("*") == "cactus_decoding.core.rules"
    seen |= dict.fromkeys(rules.__all__, "cactus_decoding.core.rules")
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
