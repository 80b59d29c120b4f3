"""Files of tensors (safetensors) that say in their header, as a JSON object, what the tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from cactus_decoding.core.files.jsonl import parse_json
from cactus_decoding.core.files.writing import as_json, write_atomically


class Format(NamedTuple):
    """A kind of such files: the object's key in the header, its schema, and what completes "this is not a file …"."""

    key: str
    schema: int
    described: str


def write_tensors(path: Path, form: Format, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a file, all or nothing; its header holds the schema and what else is told about the tensors."""
    from safetensors.torch import save

    header = {form.key: as_json({"schema": form.schema, **about})}
    # not by `save_file`, whose file only its owner may read
    write_atomically(path, save({name: each.contiguous() for name, each in tensors.items()}, header))


def read_tensors(path: str | Path, form: Format, name: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a regular file's tensors, and what is told about them; messages call it by its name, or by its path.

    Raises `OSError` if it cannot be read; `ValueError` if it is damaged, is no such file, or has another schema.
    """
    name = str(path) if name is None else name
    wrong = f"{name}: this is not a file {form.described}"
    try:
        with safe_open(path, framework="pt") as file:
            about = parse_json((file.metadata() or {}).get(form.key, "null").encode(), "its header")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dictionary
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{wrong} ({error})") from None
    if not isinstance(about, dict):
        raise ValueError(wrong)
    if about.get("schema") != form.schema:
        raise ValueError(f"{name}: schema is {about.get('schema')!r}, but this version reads schema {form.schema}")
    return tensors, about
