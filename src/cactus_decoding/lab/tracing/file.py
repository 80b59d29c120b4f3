"""Trace files: JSON Lines that are written while the response grows, and read back with precise error messages."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.files.jsonl import INFINITIES, number_of, objects_in, whole_lines
from cactus_decoding.core.files.writing import as_json, check_writable, part_of, plain, replacing, write_atomically
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import recorded_rule
from cactus_decoding.core.sampling.rows import SparseProbs
from cactus_decoding.core.types import Fate
from cactus_decoding.lab.tracing.response import TracedResponse
from cactus_decoding.lab.tracing.trace import Trace, TracedNode, TracedPosition, TracedStep, TracedToken, TraceHeader
from cactus_decoding.lab.tracing.what_if import PositionRows

Record = TypeVar("Record")

NODE_FATES = (*(str(fate) for fate in (Fate.ACCEPTED, Fate.RELAXED, Fate.MATCHED)), "rejected", None)
"""Possible fates of a node of a tree."""

_KINDS_OF_NUMBERS = {"float32": "<f4", "float64": "<f8", "int32": "<i4"}


def to_json(position: TracedPosition, *, rows: bool = False) -> dict[str, Any]:
    """Return a position as JSON, as trace files hold it and a page's `CactusAnswer` takes it."""
    value = as_object(position)
    value["candidates"] = [as_object(candidate) for candidate in position.candidates]
    del value["rows"]
    if rows and position.rows is not None:
        value["rows"] = _rows_to_json(position.rows)
    return value


def position_from(value: object, where: str, *, rows: bool = True) -> TracedPosition:
    given = _object(value, where)
    kept = None if given.get("rows") is None or not rows else _rows(given["rows"], where)
    candidates = tuple(build(TracedToken, one, where) for one in listed(given, "candidates", where))
    return build(TracedPosition, given, where, candidates=candidates, rows=kept)


def tree_to_json(tree: Sequence[TracedNode]) -> list[dict[str, Any]]:
    return [as_object(node) for node in tree]


def tree_from(value: list[Any], where: str) -> tuple[TracedNode, ...]:
    nodes = tuple(build(TracedNode, one, f"{where}, node {place}") for place, one in enumerate(value))
    for place, node in enumerate(nodes):
        if not -1 <= node.parent < place:
            raise ValueError(f"{where}, node {place}: its parent must stand before it, but is {node.parent}")
        if node.fate not in NODE_FATES:
            fates = ", ".join(fate for fate in NODE_FATES if fate)
            raise ValueError(f"{where}, node {place}: 'fate' must be one of {fates} or null, but is {node.fate!r}")
    return nodes


def as_object(record: Any) -> dict[str, Any]:
    """Return a dataclass's fields; infinite numbers become texts and NaN null."""
    return {field.name: plain(getattr(record, field.name)) for field in fields(record)}


def build(record: type[Record], value: object, where: str, **ready: Any) -> Record:
    """Return a dataclass from an object of a file; ``ready`` are fields whose value is already known."""
    given, known = _object(value, where), _types_of(record)  # type: ignore[arg-type]
    unknown = set(given) - set(known)
    if unknown:
        raise ValueError(f"{where}: {', '.join(map(repr, sorted(unknown)))} is no field of a {record.__name__}")
    found = dict(ready)
    for name, types in known.items():
        if name not in found:
            if name not in given:
                raise ValueError(f"{where}: {name!r} is missing")
            found[name] = _converted(name, given[name], types, where)
    return record(**found)


@cache
def _types_of(record: type[Any]) -> dict[str, tuple[type, ...]]:
    return {
        name: tuple(get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))
        for name, hint in get_type_hints(record).items()
    }


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: there must be an object, but it is {str(value)[:40]!r}")
    return value


def _converted(name: str, value: Any, types: tuple[type, ...], where: str) -> Any:
    """Return a value of JSON as one of some types: infinite numbers and fates are texts in JSON."""
    if float in types and isinstance(value, str) and value in INFINITIES:
        return INFINITIES[value]
    if Fate in types and value in list(Fate):
        return Fate(value)
    if float in types and type(value) is int:
        return float(value)
    if Fate in types or not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        allowed = f"one of {', '.join(Fate)}" if Fate in types else " | ".join(each.__name__ for each in types)
        raise ValueError(f"{where}: {name!r} must be {allowed}, but is {str(value)[:40]!r}")
    return value


def listed(value: dict[str, Any], name: str, where: str) -> list[Any]:
    if not isinstance(value.get(name), list):
        raise ValueError(f"{where}: {name!r} must be a list, but is {str(value.get(name))[:40]!r}")
    return list(value[name])


# --- rows: bytes in base64, so that every bit survives ---


def _rows_to_json(rows: PositionRows) -> dict[str, Any]:
    kept = {"target": rows.target, "draft": rows.draft, "untempered": rows.untempered}
    value: dict[str, Any] = {name: None if row is None else _row_to_json(row) for name, row in kept.items()}
    if rows.fixed_token_ids:
        value |= {"fixed_token_ids": list(rows.fixed_token_ids), "drawn": rows.drawn}
    return {"drafted_id": rows.drafted_id} | value


def _row_to_json(row: SparseProbs) -> dict[str, Any]:
    token_ids = None if row.token_ids is None else _to_text(row.token_ids)
    dtype = str(row.probs.dtype).removeprefix("torch.")
    return {"vocabulary": row.vocabulary, "dtype": dtype, "values": _to_text(row.probs), "token_ids": token_ids}


def _rows(value: Any, where: str) -> PositionRows:
    try:
        rows = {name: None if value[name] is None else _row(value[name]) for name in ("target", "draft", "untempered")}
        drafted = int(value["drafted_id"])
        if rows["target"] is None or not 0 <= drafted < rows["target"].vocabulary:
            raise ValueError("no target row")
        fixed = tuple(int(token_id) for token_id in value.get("fixed_token_ids", []))  # chains have none
        if not all(0 <= token_id < rows["target"].vocabulary for token_id in fixed):
            raise ValueError("a fixed token is out of range")
        return PositionRows(
            drafted, rows["target"], rows["draft"], rows["untempered"], fixed, bool(value.get("drawn", True))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: the rows are damaged ({error})") from None


def _row(value: dict[str, Any]) -> SparseProbs:
    values = _from_text(value["values"], value["dtype"])
    token_ids = None if value["token_ids"] is None else _from_text(value["token_ids"], "int32")
    vocabulary = int(value["vocabulary"])
    if len(values) != (vocabulary if token_ids is None else len(token_ids)):
        raise ValueError("the length is wrong")
    if token_ids is not None and len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocabulary:
        raise ValueError("a token is out of range")
    return SparseProbs(vocabulary, values, token_ids)


def _to_text(tensor: Tensor) -> str:
    array = tensor.numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def _from_text(text: str, dtype: str) -> Tensor:
    array = np.frombuffer(base64.b64decode(text, validate=True), dtype=_KINDS_OF_NUMBERS[dtype])
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


SCHEMA = 1


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
    return _line("trace", {"schema": SCHEMA} | header.as_dict())


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
    path = Path(path).expanduser()
    if not path.exists() and part_of(path).exists():
        raise ValueError(f"{path} is missing, but an interrupted response left {part_of(path)}: give that one")
    lines = objects_in(whole_lines(path.read_bytes()), path)
    header, steps, end = None, list[TracedStep](), None
    for _, where, value in lines:
        kind = value.pop("kind", None)
        if header is None:
            header = _header(kind, value, where)
        elif end is not None:
            raise ValueError(f"{where}: there must be nothing behind the end of the trace")
        elif kind == "step":
            steps.append(_step(value, where, steps, rows=rows))
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
        request = _request(asked)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    return build(TraceHeader, value, where, request=request)


def _request(values: dict[str, Any]) -> Request:
    """Return the request of a header; a rule from outside the package is not imported."""
    read = dict(values)
    if "rule" in read:
        read["rule"] = recorded_rule(read["rule"])
    if read.get("budget_nats") is not None:
        read["budget_nats"] = number_of(read["budget_nats"])
    return Request.from_dict(read)


def _step(value: dict[str, Any], where: str, before: list[TracedStep], *, rows: bool) -> TracedStep:
    given = enumerate(listed(value, "positions", where))
    positions = tuple(position_from(one, f"{where}, position {place}", rows=rows) for place, one in given)
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
    return text, reason, build(Metrics, {name: number for name, number in counts.items() if name in names}, where)
