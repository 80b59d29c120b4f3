"""The package's public names: the lazy ones are those that type checkers and the documentation see."""

from __future__ import annotations

import pytest

import cactus_decoding
from cactus_decoding.core.rules import RULES


def test_every_rule_is_a_public_name() -> None:
    assert {rule.__name__ for rule in RULES.values()} <= set(cactus_decoding.__all__)


def test_every_name_is_there_and_others_are_not() -> None:
    namespace: dict[str, object] = {}
    exec("from cactus_decoding import *", namespace)
    assert set(cactus_decoding.__all__) <= set(namespace)
    with pytest.raises(AttributeError, match="frob"):
        cactus_decoding.frob  # noqa: B018


def test_every_public_name_is_documented() -> None:
    named = {name: getattr(cactus_decoding, name) for name in cactus_decoding.__all__}
    documented = {name: each for name, each in named.items() if callable(each)}
    assert len(documented) > 40
    assert [name for name, each in documented.items() if not (each.__doc__ or "").strip()] == []
