"""Declarations: the fields that users set, each typed, limited and described once.

A field is ``Annotated[float, Setting("budget", "nats", ge=0)]``, in a `Model` or in a frozen dataclass that calls
`check_fields`. Options, forms, keys of servers, spellings and messages are made from that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields, is_dataclass
from functools import cache, cached_property
from numbers import Integral, Real
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.validation import NO_NAMES, choices_of, kinds_of, mistake

if TYPE_CHECKING:
    from pydantic import ValidationInfo

_STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)


class SettingInfo(NamedTuple):
    unit: str = ""  # of its numbers, such as ``nats``
    flat: str = ""  # its name among the settings of a request; the field's own, if empty
    group: str = ""  # what it is an option of
    metavar: str = ""  # what stands for its value in help; derived from its kind, if empty
    shown: str = "none"  # what help shows of a default that None stands for
    key: str = ""  # its name in requests to servers; the flat one, if empty
    # whether clients may send it, which they may not where it imports a module, reads a file or takes unlimited time;
    # or a function that returns what a client's value means, or raises `ValueError`
    from_clients: bool | Callable[[Any], Any] = False


def Setting(
    description: str = "",
    unit: str = "",
    *,
    flat: str = "",
    group: str = "",
    metavar: str = "",
    shown: str = "none",
    key: str = "",
    from_clients: bool | Callable[[Any], Any] = False,
    **limits: Any,
) -> Any:
    """Return pydantic's `Field` of a description and limits, with what pydantic does not know; see `SettingInfo`."""
    if description:
        limits["description"] = description
    field: FieldInfo = Field(**limits)
    field.metadata.append(SettingInfo(unit, flat, group, metavar, shown, key, from_clients))
    return field


@dataclass(frozen=True)
class Declared:
    """A field as users meet it.

    ``part`` is the model or dataclass that declares it; ``groups`` are what it belongs to, from the outside in: the
    fields that hold its part, and its own group.
    """

    name: str
    field: FieldInfo
    part: type[Any]
    groups: tuple[str, ...] = ()

    @cached_property
    def setting(self) -> SettingInfo:
        return next((each for each in self.field.metadata if isinstance(each, SettingInfo)), SettingInfo())

    @cached_property
    def kind(self) -> type[bool | int | float | str]:
        """``bool``, ``int``, ``float``, or ``str`` for anything else."""
        return next((kind for kind in (float, int, bool) if kind in kinds_of(self.field)), str)

    @cached_property
    def choices(self) -> tuple[str, ...]:
        return choices_of(self.field)

    @property
    def optional(self) -> bool:
        return NoneType in get_args(self.field.annotation)

    @property
    def required(self) -> bool:
        return self.field.is_required()

    @property
    def default(self) -> Any:
        return self.field.default

    @property
    def doc(self) -> str:
        return self.field.description or ""

    @property
    def flat(self) -> str:
        return self.setting.flat or self.name

    @property
    def key(self) -> str:
        return self.setting.key or self.flat

    def limit(self, kind: type[Ge | Gt | Le | Lt]) -> Any:
        """Return where its range begins or ends, for one kind of end."""
        return next(
            (getattr(each, kind.__name__.lower()) for each in self.field.metadata if isinstance(each, kind)), None
        )

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        numbers = (BeforeValidator(_python_number),) if self.kind in (int, float) else ()
        annotation: Any = Annotated[self.field.annotation, self.setting, *self.field.metadata, *numbers]
        return TypeAdapter(annotation, config=_STRICT)

    def check(self, value: object, called: str = "") -> Any:
        """Return the meant value, numbers as Python's own; raise `TypeError` or `ValueError` for a wrong one."""
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            names = {self.name: called} if called else NO_NAMES
            raise mistake(error, {self.name: self.field}, what="it", called=names) from None

    def from_client(self, value: object, called: str = "") -> Any:
        """Return the value that a client means; raise `TypeError` or `ValueError` for what clients may not send.

        Whether the value is in its range is checked where a request is made of it.
        """
        called, read = called or self.key, self.setting.from_clients
        if read is False:
            raise ValueError(f"{called} is not taken from requests: whoever starts the server sets it")
        if read is True:
            return value
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            raise error if str(error).startswith(called) else type(error)(f"{called}: {error}") from None


def fields_of(described: type[Any]) -> tuple[Declared, ...]:
    return _fields(described)  # type: ignore[arg-type]  # every class is hashable


@cache
def _fields(described: type[Any]) -> tuple[Declared, ...]:
    if not is_dataclass(described):
        return tuple(Declared(name, field, described) for name, field in described.model_fields.items())
    hints = get_type_hints(described, include_extras=True)
    for each in fields(described):
        if sum(isinstance(part, FieldInfo) for part in get_args(hints[each.name])) > 1:
            name = f"{described.__name__}.{each.name}"
            raise TypeError(f"{name} must be described by one Setting, or one Field in its place, but has several")
    made = {
        each.name: FieldInfo.from_annotation(hints[each.name])
        if each.default is MISSING
        else FieldInfo.from_annotated_attribute(hints[each.name], each.default)
        for each in fields(described)
        if each.init
    }
    return tuple(Declared(name, field, described) for name, field in made.items())


def check_fields(given: Any) -> None:
    """Check the fields of a dataclass, and turn their numbers into Python's own."""
    for each in fields_of(type(given)):
        value = getattr(given, each.name)
        if (checked := each.check(value)) is not value:
            object.__setattr__(given, each.name, checked)  # the dataclass may be frozen


def _python_number(value: object) -> object:
    """Return NumPy's numbers and fractions as Python's own; refuse texts and booleans."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PydanticCustomError("no_number", "no number")
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:
        raise PydanticCustomError("no_number", "too large") from None


@dataclass_transform(field_specifiers=(Field,))
class Model(BaseModel):
    """Base of what is asked for: a pydantic model that is frozen and strict, and refuses unknown names.

    It takes NumPy's numbers and fractions too, and keeps them as Python's own. A mistake is a `TypeError` or
    `ValueError` of one sentence. Fields may be given in their order, without names.
    """

    model_config = _STRICT

    def __init__(self, *values: Any, **given: Any) -> None:
        known = type(self).model_fields
        if len(values) > len(known):
            raise TypeError(f"{_a(type(self))} takes at most {len(known)} values, but is given {len(values)}")
        self._fill(NO_NAMES, **dict(zip(known, values, strict=False)), **given)

    def _fill(self, called: Mapping[str, str], /, **given: Any) -> None:
        """Check the fields, which happens here and nowhere else; ``called`` are what a mistake calls them."""
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise mistake(error, type(self).model_fields, what=_a(type(self)), called=called) from None

    @classmethod
    def model_validate(cls, obj: Any, **settings: Any) -> Self:
        """Return the model that an object or a mapping describes; a mistake is one sentence here too."""
        try:
            return super().model_validate(obj, **settings)
        except ValidationError as error:
            raise mistake(error, cls.model_fields, what=_a(cls)) from None

    @field_validator("*", mode="before")
    @classmethod
    def _as_given(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[str(info.field_name)]
        kinds = kinds_of(field)
        if nested_model(field) and isinstance(value, Mapping):  # which pydantic would make one of
            raise PydanticCustomError("no_model", "no model")
        return _python_number(value) if float in kinds or int in kinds else value

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(
            f"{_a(type(self))} stays as it is: replace({name}={short_repr(value)}) returns another"
        )

    def replace(self, **changes: Any) -> Self:
        return type(self)(**dict(self) | changes)

    __replace__ = replace

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        return self.replace(**update) if update else super().model_copy(deep=deep)


def _a(described: type[Any]) -> str:
    name = described.__name__
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


# --- settings: the fields of a model and of the models within it, by flat names ---

Part = TypeVar("Part", bound=Model)


def settings_of(part: type[Any]) -> Mapping[str, Declared]:
    """Return what a model or dataclass, and the models within it, declare, by flat names, in order."""
    return _settings(part, ())  # type: ignore[arg-type]  # every class is hashable


@cache
def _settings(part: type[Any], groups: tuple[str, ...]) -> dict[str, Declared]:
    settings: dict[str, Declared] = {}
    for each in fields_of(part):
        if within := nested_model(each.field):
            settings |= _settings(within, (*groups, each.name))
        else:
            own = (*groups, each.setting.group) if each.setting.group else groups
            settings[each.flat] = Declared(each.name, each.field, part, own)
    return settings


def nested_model(field: FieldInfo) -> type[Model] | None:
    return next((kind for kind in kinds_of(field) if isinstance(kind, type) and issubclass(kind, Model)), None)


def switch(part: type[Model]) -> str:
    """Return the setting without which there is no such part; empty for a part that needs none."""
    return next((each.flat for each in fields_of(part) if each.required), "")


def values_of(part: type[Model], made: Model | None) -> dict[str, Any]:
    """Return a part's plain values by flat names; without such a part, all are None."""
    return _flat(part, None if made is None else made.model_dump())


def _flat(part: type[Model], dumped: Mapping[str, Any] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in fields_of(part):
        value = None if dumped is None else dumped[each.name]
        if within := nested_model(each.field):
            values |= _flat(within, value)
        else:
            values[each.flat] = value
    return values


def build(part: type[Part], given: Mapping[str, Any], called: Mapping[str, str] = NO_NAMES, **made: Any) -> Part | None:
    """Return the part that values by flat names ask for, or None where its `switch` has no value.

    Each value is checked once, by its part. ``called`` are what a mistake calls settings, if not by their flat names.
    """
    key = switch(part)
    wanted = given.get(key) if key else None
    if key and (wanted is None or isinstance(wanted, part)):
        _check_absent(part, given, key)
        return wanted
    for each in fields_of(part):
        within = nested_model(each.field)
        if each.name in made:
            continue
        if within is None:
            if each.flat in given:
                made[each.name] = given[each.flat]
        elif not each.optional or switch(within) or any(given.get(name) is not None for name in settings_of(within)):
            made[each.name] = build(within, given, called)
    filled = part.__new__(part)
    filled._fill({each.name: called.get(each.flat, each.flat) for each in fields_of(part)}, **made)
    return filled


def _check_absent(part: type[Model], given: Mapping[str, Any], key: str) -> None:
    """Raise `ValueError` where something is said about a part that is missing, or that is given as a whole."""
    for name, each in settings_of(part).items():
        if name != key and given.get(name) is not None:
            field = settings_of(part)[key].name
            what = f"that of a {field} in {key}" if field != key else short_repr(given[each.flat])
            raise ValueError(f"{name} is {what}, but {key} is {short_repr(given.get(key))}")
