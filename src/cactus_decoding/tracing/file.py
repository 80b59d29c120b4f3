"""Trace files: JSON Lines, written while the response grows, and read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cactus_decoding.files.jsonl import objects_in, whole_lines
from cactus_decoding.files.reading import read_bytes
from cactus_decoding.files.writing import as_json, check_writable, part_of, replacing, write_atomically
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.generation.request import Request
from cactus_decoding.tracing.codec import (
    as_object,
    build,
    listed,
    position_from,
    to_json,
    tree_from,
    tree_to_json,
)
from cactus_decoding.tracing.response import TracedResponse
from cactus_decoding.tracing.trace import Trace, TracedStep, TraceHeader

SCHEMA = 1


def written(response: TracedResponse, path: Path, *, rows: bool = True) -> Iterator[TracedStep]:
    """Yield a response's steps as they are taken, each written to its trace file first.

    The file is ``<path>.cactus-part`` while it grows, and takes the path's place once the response is finished. An
    interrupted response leaves that file, which `read_trace` reads, and whatever was at the path before.

    Raises:
        ValueError: where the path cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from cactus_decoding import load_pair
        >>> from cactus_decoding.tracing import stream_trace
        >>> from cactus_decoding.zoo.word_problems import EXAMPLES
        >>> response = stream_trace(load_pair(), EXAMPLES[0].prompt, seed=0, max_new_tokens=4)
        >>> with TemporaryDirectory() as folder:
        ...     steps = tuple(written(response, Path(folder) / "trace.jsonl"))
        ...     read_trace(Path(folder) / "trace.jsonl").steps == steps
        True
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
    """Write a whole trace."""
    write_atomically(path, "".join(lines_of(trace, rows=rows)))


def lines_of(trace: Trace, *, rows: bool = True) -> Iterator[str]:
    """Yield the lines of a trace's file."""
    yield _header_line(trace.header)
    yield from (_step_line(step, rows) for step in trace.steps)
    yield _end_line(trace)


def _header_line(header: TraceHeader) -> str:
    return _line("trace", {"schema": SCHEMA} | header.as_dict())


def _step_line(step: TracedStep, rows: bool) -> str:
    value = as_object(step) | {"positions": [to_json(position, rows=rows) for position in step.positions]}
    if step.tree:
        value["tree"] = tree_to_json(step.tree)
    else:
        del value["tree"]  # of chains a file says what it always said
    return _line("step", value)


def _end_line(trace: Trace) -> str:
    """Say what is known at the end."""
    end = {"text": trace.text, "finish_reason": trace.finish_reason, "metrics": trace.metrics.as_dict()}
    return _line("end", end)


def _line(kind: str, value: Mapping[str, Any]) -> str:
    return as_json({"kind": kind} | dict(value)) + "\n"


def read_trace(path: str | Path) -> Trace:
    """Return the trace that a file holds, also of a response that was interrupted.

    Raises:
        OSError: if the file cannot be read.
        ValueError: for what is no trace, naming the line.
    """
    path = Path(path).expanduser()
    if not path.exists() and part_of(path).exists():
        raise ValueError(f"{path} is missing, but an interrupted response left {part_of(path)}: give that one")
    data = read_bytes(path)
    lines = objects_in(whole_lines(data), path)
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
    own = {field.name for field in fields(TraceHeader)}
    asked = {name: value.pop(name) for name in list(value) if name not in own}
    try:
        request = Request.from_file(asked)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    return build(TraceHeader, value, where, request=request)


def _step(value: dict[str, Any], where: str, before: list[TracedStep]) -> TracedStep:
    given = enumerate(listed(value, "positions", where))
    positions = tuple(position_from(one, f"{where}, position {place}") for place, one in given)
    tree = tree_from(listed(value, "tree", where), where) if "tree" in value else ()
    if tree and len(tree) != value.get("num_drafted"):
        raise ValueError(f"{where}: the tree must have {value.get('num_drafted')} nodes, but has {len(tree)}")
    step = build(TracedStep, value, where, positions=positions, tree=tree)
    first = sum(len(step.positions) for step in before)
    places = [(position.step, position.place) for position in positions]
    if step.step != len(before) or places != [(step.step, first + i) for i in range(len(positions))]:
        raise ValueError(f"{where}: the steps and places do not follow each other: a line is missing or out of order")
    return step


def _end(value: dict[str, Any], where: str) -> tuple[str, str | None, Metrics]:
    text, reason, counts = value.get("text"), value.get("finish_reason"), value.get("metrics")
    if not isinstance(text, str) or not isinstance(reason, (str, type(None))) or not isinstance(counts, dict):
        raise ValueError(f"{where}: the end of a trace has a text, a finish_reason and metrics")
    names = {field.name for field in fields(Metrics)}
    return (
        text,
        reason,
        build(Metrics, {"protected": 0} | {name: number for name, number in counts.items() if name in names}, where),
    )
