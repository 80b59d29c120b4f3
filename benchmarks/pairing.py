"""What benchmarks share: their arguments and result files."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
if str(ROOT) not in sys.path:  # benchmarks are run as scripts
    sys.path.append(str(ROOT))

from scripts.results import asked, parse, parser, read, write  # noqa: E402, F401


def benchmark(
    about: str | None,
    name: str,
    measure: Callable[[Namespace], Iterable[Mapping[str, Any]]],
    /,
    *,
    indent: int | None = 1,
    **options: Any,
) -> None:
    """Measure, and write the result each time that there is more of it, with the arguments that made it.

    Args:
        about: the module's docstring.
        name: of the usual result file.
        measure: yields what is known so far.
        indent: of the result file; None for one long line.
        options: of the command line, as `scripts.results.parser` takes them; ``threads`` are torch's too.
    """
    given = parse(about, **options, output=(RESULTS / f"{name}.json", "the result file"))
    if "threads" in given:
        torch.set_num_threads(given.threads)
    for found in measure(given):
        write(given.output, found, asked(given), indent)
    print(f"written to {given.output}")


def kept(output: Path, key: str) -> Any:
    """Return what a result file has under a key, so that it need not be measured again; nothing if there is no file."""
    return read(output)[key] if output.exists() else {}


def continued(output: Path, settings: Mapping[str, Any], key: str) -> Any:
    """Do what `kept` does, where the file is of the same settings."""
    known = kept(output, "settings")
    if known and known != settings:
        mistaken(f"{output} is of {known}, but this run is of {settings}")
    return kept(output, key)


def mistaken(message: str) -> NoReturn:
    """Say what is wrong with what was asked, and end."""
    print(message, file=sys.stderr)
    raise SystemExit(2)
