"""Tables of what is imported once it is asked for: so rooms name what stands above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar, cast

Contribution = TypeVar("Contribution", covariant=True)


class Contributed(Mapping[str, Contribution]):
    """Objects by name, each imported when it is taken from its place, such as ``package.module:Name``.

    Example:
        >>> table = Contributed[object]({"path": "pathlib:Path"})
        >>> "path" in table, table["path"]
        (True, <class 'pathlib.Path'>)
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)

    def place(self, name: str) -> str:
        """Return an object's module and name, without importing anything; raises `KeyError` for a name that is none."""
        return self._places[name]

    def __getitem__(self, name: str) -> Contribution:
        """Import an object; raises `KeyError` for a name that is none."""
        module, _, attribute = self.place(name).partition(":")
        return cast(Contribution, getattr(import_module(module), attribute))

    def __contains__(self, name: object) -> bool:
        """Say whether there is such a name, without importing anything."""
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._places)
