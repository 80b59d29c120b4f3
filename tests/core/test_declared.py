"""What annotations say of fields, in models and in dataclasses, and what they allow."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator, Field
from support.tables import all_of

from cactus_decoding import RULES, Budget, SamplingParams
from cactus_decoding.core.declared import (
    Model,
    Setting,
    SettingInfo,
    build,
    check_fields,
    fields_of,
    settings_of,
    values_of,
)


@dataclass(frozen=True)
class Oven:
    heat: Annotated[float, Setting("how hot", "degrees", gt=0, lt=300)]
    trays: Annotated[int, Setting("how many", ge=1, le=4)] = 1
    mode: Annotated[Literal["fan", "grill"], Setting("what heats")] = "fan"
    minutes: Annotated[float | None, Setting("until it stops", ge=0)] = None
    label: str = "no knob"
    used: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_field_is_described_by_its_annotation() -> None:
    heat, trays, mode, minutes, label = fields_of(Oven)
    assert (heat.name, heat.kind, heat.required, heat.optional) == ("heat", float, True, False)
    assert (heat.doc, heat.setting.unit) == ("how hot", "degrees")
    assert (trays.kind, trays.default, trays.required) == (int, 1, False)
    assert (mode.kind, mode.choices, mode.default) == (str, ("fan", "grill"), "fan")
    assert (minutes.kind, minutes.optional, minutes.default) == (float, True, None)
    assert (label.kind, label.choices, label.doc, label.setting) == (str, (), "", SettingInfo())
    assert (heat.limit(Gt), heat.limit(Lt), heat.limit(Ge), heat.limit(Le)) == (0, 300, None, None)


def test_a_field_is_described_once() -> None:
    @dataclass(frozen=True)
    class Twice:
        heat: Annotated[float, Field(description="how hot", gt=0), Setting("degrees")]

    with pytest.raises(TypeError, match=r"Twice\.heat must be described by one Setting, or one Field in its place"):
        fields_of(Twice)


def test_what_the_limits_allow_passes() -> None:
    for given in ({"heat": 1e-9}, {"heat": 299.9, "trays": 4, "mode": "grill", "minutes": 0}):
        Oven(**given)
    assert Oven(100, minutes=math.inf).minutes == math.inf


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
    for each in fields_of(described):
        assert each.doc
        assert each.choices or any(each.limit(end) is not None for end in (Ge, Gt, Le, Lt))
        if not each.required:
            each.check(each.default)


def shouted(text: str) -> str:
    if text == "hush":
        raise ValueError("label must be loud, but is 'hush'")
    return text.upper()


class Tray(Model):
    size: Annotated[int, Setting("", "inches", ge=1, le=4, flat="tray")]
    deep: Annotated[bool, Setting(flat="deep_tray")] = False


class Kitchen(Model):
    heat: Annotated[float, Setting("", gt=0, lt=300)]
    mode: Literal["fan", "grill"] = "fan"
    label: Annotated[str, BeforeValidator(shouted)] = "NONE"
    tray: Tray | None = None


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "true for a number": ({"heat": True}, TypeError, "heat must be a number, but is True"),
    "a text for a number": ({"heat": "3"}, TypeError, "heat must be a number, but is '3'"),
    "an array": ({"heat": np.array(3.0)}, TypeError, "heat must be a number, but is array(3.)"),
    "NaN": ({"heat": math.nan}, ValueError, "heat must be in (0, 300), but is nan"),
    "out of range": ({"heat": 300}, ValueError, "heat must be in (0, 300), but is 300"),
    "beyond floats": ({"heat": 10**400}, ValueError, "heat must be in (0, 300), but is 1000000000"),
    "a fraction beyond floats": ({"heat": Fraction(10**400)}, ValueError, "heat must be in (0, 300), but is Fraction("),
    "no such word": ({"heat": 1, "mode": "gril"}, ValueError,
                     "mode must be one of fan, grill, but is 'gril'; did you mean 'grill'?"),
    "what a converter says": ({"heat": 1, "label": "hush"}, ValueError, "label must be loud, but is 'hush'"),
    "another model": ({"heat": 1, "tray": 3}, TypeError, "tray must be a Tray, but is 3"),
    "a name that is none": ({"heat": 1, "modes": "fan"}, TypeError,
                            "a Kitchen has no 'modes'; known are heat, mode, label, tray; did you mean 'mode'?"),
    "nothing": ({}, TypeError, "a Kitchen must have heat"),
}  # fmt: skip


@pytest.mark.parametrize("make", [lambda given: Kitchen(**given), Kitchen.model_validate], ids=["made", "a mapping"])
@all_of("case", REFUSED)
def test_a_mistake_gets_one_sentence_and_none_of_pydantic(make: Callable, case: str) -> None:
    given, kind, sentence = REFUSED[case]
    with pytest.raises((TypeError, ValueError)) as caught:
        make(given)
    error = caught.value
    assert type(error) is kind
    assert str(error).startswith(sentence)
    assert "pydantic" not in str(error)
    assert error.__suppress_context__ or error.__context__ is None or "pydantic" not in repr(error.__cause__)


def test_too_many_values_are_counted() -> None:
    with pytest.raises(TypeError, match="a Tray takes at most 2 values, but is given 3"):
        Tray(1, True, 5)


@pytest.mark.parametrize("number", [np.float32(2), np.float64(2), np.int64(2), Fraction(2), 2])
def test_numbers_of_numpy_and_fractions_become_pythons(number: Any) -> None:
    made = Kitchen(heat=number)
    assert made == Kitchen(2.0)
    assert (type(made.heat), repr(made.heat)) == (float, "2.0")


def test_models_stay_as_they_are_and_copies_are_checked() -> None:
    made = Kitchen(1, tray=Tray(2))
    with pytest.raises(FrozenInstanceError, match=r"a Kitchen stays as it is: replace\(heat=2\) returns another"):
        made.heat = 2
    assert made.replace(heat=2) == Kitchen(heat=2.0, tray=Tray(2))
    assert made.model_copy(update={"mode": "grill"}).mode == "grill"
    for change in (lambda: made.replace(heat=-1), lambda: made.model_copy(update={"heat": -1})):
        with pytest.raises(ValueError, match="heat must be in"):
            change()
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made), made.model_copy()):
        assert again == made
        assert hash(again) == hash(made)
    assert len({made, Kitchen(1.0, tray=Tray(2)), Kitchen(1)}) == 2


def test_settings_are_the_fields_of_a_model_and_its_parts_by_flat_names() -> None:
    assert {name: each.groups for name, each in settings_of(Kitchen).items()} == {
        "heat": (), "mode": (), "label": (), "tray": ("tray",), "deep_tray": ("tray",),
    }  # fmt: skip
    made = Kitchen(1, tray=Tray(2))
    flat = {"heat": 1.0, "mode": "fan", "label": "NONE", "tray": 2, "deep_tray": False}
    assert values_of(Kitchen, made) == flat
    assert build(Kitchen, flat) == made
    assert values_of(Kitchen, Kitchen(1)) == flat | {"tray": None, "deep_tray": None}
    assert build(Kitchen, {"heat": 1}) == Kitchen(1)
    assert build(Kitchen, {"heat": 1, "tray": Tray(3)}) == Kitchen(1, tray=Tray(3))


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ({"heat": 1, "tray": 9}, ValueError, "tray must be between 1 and 4, but is 9"),
        ({"heat": 1, "tray": 2, "deep_tray": 1}, TypeError, "deep_tray must be True or False, but is 1"),
        ({"heat": 1, "deep_tray": True}, ValueError, "deep_tray is that of a size in tray, but tray is None"),
    ],
)
def test_what_is_wrong_of_a_part_goes_by_its_flat_name(given: dict[str, Any], kind: type, sentence: str) -> None:
    with pytest.raises(kind, match=f"^{sentence}$"):
        build(Kitchen, given)


def test_a_default_shared_by_models_cannot_be_changed() -> None:
    assert Kitchen(1).tray is None
    assert values_of(Tray, None) == {"tray": None, "deep_tray": None}
