"""Trace files: JSON Lines that are written while the response grows, and read back with precise error messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cactus_decoding.core.files.home import expanded
from cactus_decoding.core.files.jsonl import objects_in, read_as, whole_lines
from cactus_decoding.core.files.writing import (
    as_json,
    check_writable,
    part_path,
    plain_json,
    replacing,
    write_atomically,
)
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.lab.tracing.response import TracedResponse
from cactus_decoding.lab.tracing.trace import Trace, TracedNode, TracedPosition, TracedStep, TraceEnd, TraceHeader


def to_json(position: TracedPosition, *, rows: bool = False) -> dict[str, Any]:
    """Return a position as JSON, as trace files hold it and a page's `CactusAnswer` takes it."""
    value = as_object(position)
    value["candidates"] = [as_object(candidate) for candidate in position.candidates]
    del value["rows"]
    if rows and position.rows is not None:
        value["rows"] = position.rows.as_dict()
    return value


def tree_to_json(tree: Sequence[TracedNode]) -> list[dict[str, Any]]:
    return [as_object(node) for node in tree]


def as_object(record: Any) -> dict[str, Any]:
    """Return a dataclass's fields; infinite numbers become texts and NaN null."""
    return {field.name: plain_json(getattr(record, field.name)) for field in fields(record)}


TRACE_SCHEMA = 1


def written(response: TracedResponse, path: Path, *, rows: bool = True) -> Iterator[TracedStep]:
    """Yield a response's steps as they are taken, each written to its trace file first.

    The file is ``<path>.cactus-part`` while it grows, and takes the path's place when the response is finished. An
    interrupted response leaves that file, which `read_trace` reads, and what was at the path before.
    """
    check_writable(path)
    with replacing(path, keep=True) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(_header_line(response.header))
        for step in response:
            file.write(_step_line(step, rows))
            file.flush()
            yield step
        file.write(_end_line(response.trace))


def write_trace(trace: Trace, path: Path, *, rows: bool = True) -> None:
    """Write a whole trace to a file of JSON lines."""
    write_atomically(path, "".join(lines_of(trace, rows=rows)))


def lines_of(trace: Trace, *, rows: bool = True) -> Iterator[str]:
    yield _header_line(trace.header)
    yield from (_step_line(step, rows) for step in trace.steps)
    yield _end_line(trace)


def _header_line(header: TraceHeader) -> str:
    return _line("trace", {"schema": TRACE_SCHEMA} | header.as_dict())


def _step_line(step: TracedStep, rows: bool) -> str:
    value = as_object(step) | {"positions": [to_json(position, rows=rows) for position in step.positions]}
    if step.tree:
        value["tree"] = tree_to_json(step.tree)
    else:
        del value["tree"]
    return _line("step", value)


def _end_line(trace: Trace) -> str:
    end = {"text": trace.text, "finish_reason": trace.finish_reason, "metrics": trace.metrics.as_dict()}
    return _line("end", end)


def _line(kind: str, value: Mapping[str, Any]) -> str:
    return as_json({"kind": kind} | dict(value)) + "\n"


def read_trace(path: str | Path, *, rows: bool = True) -> Trace:
    """Return the trace in a file, also of a response that was interrupted; reading ``rows`` takes torch and time.

    Raises `ValueError` for an invalid file, naming the line.
    """
    path = expanded(path)
    if not path.exists() and part_path(path).exists():
        raise ValueError(f"{path} is missing, but an interrupted response left {part_path(path)}: give that one")
    lines = objects_in(whole_lines(path.read_bytes()), path)
    header, steps, end = None, list[TracedStep](), None
    for _, where, value in lines:
        kind = value.pop("kind", None)
        if header is None:
            header = _header(kind, value, where)
        elif end is not None:
            raise ValueError(f"{where}: there must be nothing after the end of the trace")
        elif kind == "step":
            steps.append(_step(value, where, steps, rows=rows))
        elif kind == "end":
            end = read_as(TraceEnd, value, where)
        else:
            raise ValueError(f"{where}: the kind must be 'step' or 'end', but is {kind!r}")
    if header is None:
        raise ValueError(f"{path}: there is no trace in this file")
    if end is None:
        text = "".join(position.text for step in steps for position in step.positions)
        return Trace(header, tuple(steps), text, None, sum((step.metrics() for step in steps), Metrics()))
    return Trace(header, tuple(steps), end.text, end.finish_reason, end.metrics)


def _header(kind: object, value: dict[str, Any], where: str) -> TraceHeader:
    if kind != "trace":
        raise ValueError(f"{where}: this is not a trace of cactus generate --trace")
    schema = value.pop("schema", None)
    if schema != TRACE_SCHEMA:
        raise ValueError(f"{where}: schema is {schema!r}, but this version reads schema {TRACE_SCHEMA}")
    own = {field.name for field in fields(TraceHeader)}
    asked = {name: value.pop(name) for name in list(value) if name not in own}
    return read_as(TraceHeader, value | {"request": asked}, where)


def _step(value: dict[str, Any], where: str, before: list[TracedStep], *, rows: bool) -> TracedStep:
    if not rows:
        for position in value["positions"]:
            position.pop("rows", None)
    step = read_as(TracedStep, value, where)
    if step.tree and len(step.tree) != step.num_drafted:
        raise ValueError(f"{where}: the tree must have {step.num_drafted} nodes, but has {len(step.tree)}")
    for place, node in enumerate(step.tree):
        if not -1 <= node.parent < place:
            raise ValueError(f"{where}, node {place}: its parent must stand before it, but is {node.parent}")
    first = sum(len(step.positions) for step in before)
    places = [(position.step, position.place) for position in step.positions]
    if step.step != len(before) or places != [(step.step, first + i) for i in range(len(places))]:
        raise ValueError(f"{where}: the steps and places do not follow each other: a line is missing or out of order")
    return step
