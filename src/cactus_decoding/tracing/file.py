"""Trace files: JSON Lines, written while the response grows, and read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

from cactus_decoding.files.jsonl import objects_in
from cactus_decoding.files.writing import check_writable
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.tracing.codec import as_object, build, listed, position_from, to_json
from cactus_decoding.tracing.response import TracedResponse
from cactus_decoding.tracing.trace import Trace, TracedStep, TraceHeader

SCHEMA = 1


class TraceWriter:
    """Writes a trace step by step: to ``<path>.part``, which takes the path's place once the response is finished.

    An interrupted response leaves ``<path>.part``, which `read_trace` reads, and whatever was at the path before.

    Args:
        path: the file.
        rows: whether to write both models' rows, where positions keep them.

    Raises:
        ValueError: where the path cannot be written.

    Example:
        >>> from cactus_decoding import load_pair
        >>> from cactus_decoding.tracing import stream_trace
        >>> response = stream_trace(load_pair(), "Question: Tom has 4 pens.", seed=0, max_new_tokens=4)
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with TraceWriter(Path(folder) / "trace.jsonl") as writer:
        ...         writer.begin(response.header)
        ...         for step in response:
        ...             writer.add(step)
        ...         writer.finish(response.trace)
        ...     read_trace(Path(folder) / "trace.jsonl") == response.trace
        True
    """

    def __init__(self, path: Path, *, rows: bool = True) -> None:
        """Check the path; nothing is written yet."""
        check_writable(path)
        self._path, self._part, self._rows = path, part_of(path), rows
        check_writable(self._part)

    def __enter__(self) -> TraceWriter:
        """Open the file."""
        self._file = self._part.open("w", encoding="utf-8", newline="\n")
        self._finished = False
        return self

    def begin(self, header: TraceHeader) -> None:
        """Write what was asked for."""
        self._write("trace", {"schema": SCHEMA} | as_object(header))

    def add(self, step: TracedStep) -> None:
        """Write a step."""
        value = as_object(step)
        value["positions"] = [to_json(position, rows=self._rows) for position in step.positions]
        self._write("step", value)

    def finish(self, trace: Trace) -> None:
        """Write what is known at the end."""
        end = {"text": trace.text, "finish_reason": trace.finish_reason, "metrics": trace.metrics.as_dict()}
        self._write("end", end)
        self._finished = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file, and put a finished one in its place."""
        empty = self._file.tell() == 0
        self._file.close()
        if self._finished:
            os.replace(self._part, self._path)
        elif empty:
            self._part.unlink()

    def _write(self, kind: str, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind} | dict(value), allow_nan=False) + "\n")
        self._file.flush()


def written(response: TracedResponse, path: Path, *, rows: bool = True) -> Iterator[TracedStep]:
    """Yield a response's steps as they are taken, each written to a trace file first; see `TraceWriter`."""
    with TraceWriter(path, rows=rows) as writer:
        writer.begin(response.header)
        for step in response:
            writer.add(step)
            yield step
        writer.finish(response.trace)


def part_of(path: Path) -> Path:
    """Return where a trace is while it grows.

    >>> part_of(Path("trace.jsonl")).name
    'trace.jsonl.part'
    """
    return path.with_name(path.name + ".part")


def write_trace(trace: Trace, path: Path, *, rows: bool = True) -> None:
    """Write a whole trace; see `TraceWriter`."""
    with TraceWriter(path, rows=rows) as writer:
        writer.begin(trace.header)
        for step in trace.steps:
            writer.add(step)
        writer.finish(trace)


def read_trace(path: str | Path) -> Trace:
    """Return the trace that a file holds, also of a response that was interrupted.

    Raises:
        OSError: if the file cannot be read.
        ValueError: for what is no trace, naming the line.
    """
    path = Path(path).expanduser()
    if not path.exists() and part_of(path).exists():
        raise ValueError(f"{path} is missing, but an interrupted response left {part_of(path)}: give that one")
    data = path.read_bytes()
    lines = objects_in(data[: data.rfind(b"\n") + 1], path)  # a kill may have cut the last line
    header, steps, end = None, list[TracedStep](), None
    for _, where, value in lines:
        kind = value.pop("kind", None)
        if header is None:
            header = _header(kind, value, where)
        elif end is not None:
            raise ValueError(f"{where}: there must be nothing behind the end of the trace")
        elif kind == "step":
            steps.append(_step(value, where, steps))
        elif kind == "end":
            end = _end(value, where)
        else:
            raise ValueError(f"{where}: the kind must be 'step' or 'end', but is {kind!r}")
    if header is None:
        raise ValueError(f"{path}: there is no trace in this file")
    if end is None:
        text = "".join(position.text for step in steps for position in step.positions)
        return Trace(header, tuple(steps), text, None, sum((step.metrics() for step in steps), Metrics()))
    text, finish_reason, metrics = end
    return Trace(header, tuple(steps), text, finish_reason, metrics)


def _header(kind: object, value: dict[str, Any], where: str) -> TraceHeader:
    if kind != "trace":
        raise ValueError(f"{where}: this is not a trace of cactus generate --trace")
    schema = value.pop("schema", None)
    if schema != SCHEMA:
        raise ValueError(f"{where}: schema is {schema!r}, but this version reads schema {SCHEMA}")
    return build(TraceHeader, value, where)


def _step(value: dict[str, Any], where: str, before: list[TracedStep]) -> TracedStep:
    positions = tuple(_positions(value, where))
    step = build(TracedStep, value, where, positions=positions)
    first = sum(len(step.positions) for step in before)
    places = [(position.step, position.place) for position in positions]
    if step.step != len(before) or places != [(step.step, first + i) for i in range(len(positions))]:
        raise ValueError(f"{where}: the steps and places do not follow each other: a line is missing or out of order")
    return step


def _positions(value: dict[str, Any], where: str) -> Iterator[Any]:
    for place, one in enumerate(listed(value, "positions", where)):
        if not isinstance(one, dict):
            raise ValueError(f"{where}, position {place}: there must be an object, but it is {str(one)[:40]!r}")
        yield position_from(one, f"{where}, position {place}")


def _end(value: dict[str, Any], where: str) -> tuple[str, str | None, Metrics]:
    text, reason, counts = value.get("text"), value.get("finish_reason"), value.get("metrics")
    if not isinstance(text, str) or not isinstance(reason, (str, type(None))) or not isinstance(counts, dict):
        raise ValueError(f"{where}: the end of a trace has a text, a finish_reason and metrics")
    names = {field.name for field in fields(Metrics)}
    return text, reason, build(Metrics, {name: number for name, number in counts.items() if name in names}, where)
