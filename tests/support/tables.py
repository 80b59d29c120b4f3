"""Tables of cases that are one test: each is tried in turn, and the one that fails is named."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]
PARAMETERS = type(pytest.param())
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def all_of(names: str, cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test of what `pytest.mark.parametrize` takes, but as one test; fixtures are shared by all cases."""
    keys, held = _split(names), list(cases)

    def decorate(test: Test) -> Test:
        return _changed(test, keys, [], lambda **given: _run(test, keys, held, given))

    return decorate


def groups_of(names: str, groups: dict[str, list[Any]], *, slow: Iterable[str] = ()) -> Callable[[Test], Test]:
    """Run a test once for each group of cases, some groups in `make test-all` only."""
    keys = _split(names)
    late = {name: [pytest.mark.slow] for name in slow}
    parameters = [pytest.param(held, id=name, marks=late.get(name, [])) for name, held in groups.items()]

    def decorate(test: Test) -> Test:
        changed = _changed(test, keys, ["cases"], lambda *, cases, **given: _run(test, keys, cases, given))
        return pytest.mark.parametrize("cases", parameters)(changed)

    return decorate


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _run(test: Test, keys: list[str], cases: list[Any], given: dict[str, Any]) -> None:
    for case in cases:
        values = case.values if isinstance(case, PARAMETERS) else case if len(keys) > 1 else (case,)
        row = dict(zip(keys, values, strict=True))
        try:
            test(**given, **row)
        except BaseException as error:
            error.add_note(f"in the case {row}")
            raise


def _changed(test: Test, removed: list[str], added: list[str], run: Test) -> Test:
    """Return the test run otherwise, with arguments of its own: pytest goes by the signature."""
    signature = inspect.signature(test)
    kept = [one for name, one in signature.parameters.items() if name not in removed]
    assert len(kept) == len(signature.parameters) - len(removed), f"{test.__name__} takes no {removed}"
    changed = functools.wraps(test)(lambda **given: run(**given))
    new = [inspect.Parameter(name, POSITIONAL) for name in added]
    changed.__signature__ = signature.replace(parameters=[*kept, *new])  # type: ignore[attr-defined]
    return changed
