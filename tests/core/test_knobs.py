"""What a dataclass's annotations say of its fields, and what they allow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from cactus_decoding import RULES, Budget, SamplingParams
from cactus_decoding.core.knobs import Knob, check_knobs, parameters


@dataclass(frozen=True)
class Oven:
    """Something with knobs of every kind."""

    heat: Annotated[float, Knob("how hot", "degrees", gt=0, lt=300)]
    trays: Annotated[int, Knob("how many", ge=1, le=4)] = 1
    mode: Annotated[Literal["fan", "grill"], Knob("what heats")] = "fan"
    minutes: Annotated[float | None, Knob("until it stops", ge=0)] = None
    label: str = "no knob"
    used: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_knobs(self)


def test_a_field_is_described_by_its_annotation() -> None:
    heat, trays, mode, minutes, label = parameters(Oven)
    assert (heat.name, heat.kind, heat.required, heat.optional) == ("heat", float, True, False)
    assert (heat.knob.doc, heat.knob.unit) == ("how hot", "degrees")
    assert (trays.kind, trays.default, trays.required) == (int, 1, False)
    assert (mode.kind, mode.choices, mode.default) == (str, ("fan", "grill"), "fan")
    assert (minutes.kind, minutes.optional, minutes.default) == (float, True, None)
    assert (label.kind, label.choices, label.knob) == (str, (), Knob())


@pytest.mark.parametrize(
    "given",
    [
        {"heat": 1e-9},
        {"heat": 299.9, "trays": 4, "mode": "grill", "minutes": 0},
        {"heat": 100, "minutes": math.inf},
    ],
)
def test_what_the_limits_allow_passes(given: dict[str, Any]) -> None:
    Oven(**given)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"heat": 0}, ValueError, r"heat must be in \(0, 300\), but is 0"),
        ({"heat": 300}, ValueError, r"heat must be in \(0, 300\), but is 300"),
        ({"heat": math.nan}, ValueError, "heat must be in"),
        ({"heat": None}, TypeError, "heat must be a number, but is None"),
        ({"heat": 1, "trays": 5}, ValueError, "trays must be between 1 and 4, but is 5"),
        ({"heat": 1, "trays": None}, TypeError, "trays must be an integer, but is None"),
        ({"heat": 1, "mode": "steam"}, ValueError, "mode must be one of fan, grill, but is 'steam'"),
        ({"heat": 1, "minutes": -1}, ValueError, r"minutes must be in \[0, inf\], but is -1"),
    ],
)
def test_what_they_do_not_allow_is_refused(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Oven(**given)


@pytest.mark.parametrize("described", [*RULES.values(), SamplingParams, Budget], ids=lambda each: each.__name__)
def test_everything_that_the_page_shows_is_described(described: type) -> None:
    for parameter in parameters(described):
        assert parameter.knob.doc
        limits = [getattr(parameter.knob, each) for each in ("ge", "gt", "le", "lt")]
        assert parameter.choices or any(each is not None for each in limits)
        if not parameter.required:
            parameter.check(parameter.default)
