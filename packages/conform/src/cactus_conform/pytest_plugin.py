"""The pytest plug-in: a fixture that fails a test where an engine's speculation is not lossless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def check_conforms(engine: Any, **settings: Any) -> None:
    """Fail the calling test, with the report, unless an engine conforms; `conform` explains the arguments."""
    from cactus_conform.report import line, verdict
    from cactus_conform.suite import conform as conforms

    report = conforms(engine, **settings)
    if not report:
        pytest.fail("\n".join([*map(line, report.wrong), *verdict(report)]), pytrace=False)


@pytest.fixture
def conform() -> Callable[..., None]:
    """``conform(engine)``: see `check_conforms`."""
    return check_conforms
