"""The names of the package that trains: they are there, and cost nothing before they are asked for."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest

from cactus_decoding.lab import training


def test_names_are_imported_from_where_type_checkers_see_them() -> None:
    tree = ast.parse(inspect.getsource(training))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert {name: f"cactus_decoding.lab.training.{home}" for name, home in training._NAMES.items()} == seen
    for name, home in seen.items():
        assert getattr(training, name).__module__ == home
    with pytest.raises(AttributeError, match="has no attribute 'frob'"):
        training.frob  # noqa: B018


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, cactus_decoding.lab.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
