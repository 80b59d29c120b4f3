"""Result files of studies: compressed, every number to seven digits; while one grows it is plain JSON Lines."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs import results
from cactus_decoding.lab.evaluation.runs.results import ResultFile, RunResult
from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise


def packed(path: Path) -> Path:
    """Return where a file is kept compressed."""
    return path.with_name(path.name + ".gz")


def read_results(path: Path) -> list[RunResult]:
    """Return the finished runs of a result file that is whole, or still grows."""
    if path.exists():
        return results.read_results(path)
    with TemporaryDirectory() as folder:
        plain = Path(folder) / path.name
        plain.write_bytes(gzip.decompress(packed(path).read_bytes()))
        return results.read_results(plain)


def read_runs(path: Path) -> dict[RunConfig, RunSummary]:
    """Return the summaries of a result file's runs."""
    return {each.config: each for each in summarise(read_results(path))}


@contextmanager
def opened(path: Path) -> Iterator[ResultFile]:
    """Open a result file to add to it. What an interruption leaves is plain, and the next one goes on with it."""
    if packed(path).exists() and not path.exists():
        path.write_bytes(gzip.decompress(packed(path).read_bytes()))
    with results.opened(path) as file:
        yield file
    text = "".join(_short(result).line() for result in file.results)
    write_atomically(packed(path), gzip.compress(text.encode(), mtime=0))  # the same text makes the same bytes
    path.unlink()


def _short(result: RunResult) -> RunResult:
    """Return a result whose numbers have seven digits, which is more than any table shows."""
    answers = {
        name: [float(f"{value:.7g}") if isinstance(value, float) else value for value in values]
        for name, values in result.answers.items()
    }
    return replace(result, answers=answers)
