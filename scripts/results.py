"""What commands share that write results: their arguments, and files that say where their content comes from."""

from __future__ import annotations

import gzip
import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, write_atomically

PLACES = ("output", "results", "folder", "work", "page", "only_measure", "only_render")
"""Arguments that say where something is written, or whether anything is measured: not how."""


def parser(about: str | None, /, **options: Any) -> ArgumentParser:
    """Return a parser of options, each given by its name and its default, which says what type it has.

    False makes a switch, a list an option of several values, and None one of text. A type, or a list of one, makes an
    argument without a name that has to be given (``positional``, one that need not). A tuple is a default with its
    help, and with what else argparse takes.

    >>> parser("Counts.", file=Path, problems=(5, "to answer"), rates=[0.5]).parse_args(["a", "--rates", "1", "2"])
    Namespace(file=PosixPath('a'), problems=5, rates=[1.0, 2.0])
    """
    made = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    for name, given in options.items():
        default, *more = given if isinstance(given, tuple) else (given,)
        several = isinstance(default, list) and bool(default)
        one = default[0] if several else default
        how: dict[str, Any] = {"nargs": "+"} if several else {}
        if one is False:
            how["action"] = "store_true"
        elif one not in (None, []):
            how["type"] = one if isinstance(one, type) else type(one)
        for each in more:
            how |= {"help": each} if isinstance(each, str) else each
        if how.pop("positional", isinstance(one, type)):
            made.add_argument(name, **how)
        else:
            made.add_argument(f"--{name.replace('_', '-')}", **{"default": default} | how)
    return made


def parse(about: str | None, /, **options: Any) -> Namespace:
    """Return what was given on the command line; see `parser`."""
    return parser(about, **options).parse_args()


def asked(given: Namespace) -> dict[str, Any]:
    """Return how a result was asked for: files by their names, and nothing of where it was written to."""
    return {name: _named(value) for name, value in vars(given).items() if name not in PLACES}


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(each) for each in value]
    return value.name if isinstance(value, Path) else value


def write(path: Path, found: Mapping[str, Any], about: Mapping[str, Any] | None, indent: int | None = None) -> None:
    """Replace a result file; one whose name ends in ``.gz`` is compressed. Without ``about``, it says itself."""
    content = found if about is None else {**found, "provenance": provenance(about)}
    text = as_json(content, indent) + "\n"
    write_atomically(path, gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text)


def read(path: Path) -> Any:
    """Return what a result file holds."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
