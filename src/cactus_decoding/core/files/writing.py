"""Writes files all or nothing, and finds out before the work whether they can be written."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from cactus_decoding.core.extras import needing
from cactus_decoding.core.files.jsonl import parse_json

if TYPE_CHECKING:
    from jinja2 import Environment
    from torch import Tensor

PART = ".cactus-part"  # how the name of a file ends while it grows


def check_writable(*outputs: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Raise `ValueError` for a path that cannot be written, before any work; None is passed over.

    Outputs differ from each other and from the inputs. A file is first written beside its place, so its folder must
    exist and take new files.
    """
    paths, read = [path for path in outputs if path is not None], [path for path in inputs if path is not None]
    for path in paths:
        if any(_is_same(path, each) for each in read):
            raise ValueError(f"{str(path)!r} is an input; give another output")
    for path, other in combinations(paths, 2):
        if _is_same(path, other):
            raise ValueError(f"outputs must be different files, but are {path}, {other}")
    for path in paths:
        try:
            _check_place(path)
        except OSError as error:
            folder_is_missing = not Path(os.path.realpath(path)).parent.exists()
            why = "its folder is missing" if folder_is_missing else error.strerror or str(error)
            raise ValueError(f"cannot write {str(path)!r}: {why}") from None


def _check_place(path: Path) -> None:
    if str(path) == "-":  # which elsewhere means standard input or output
        raise OSError(errno.EINVAL, "it would be a file of that name; give another")
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "it is read-only")
        if not stat.S_ISREG(mode):
            return
    part = _beside(path)
    part.open("xb").close()
    part.unlink()


def check_folder(path: Path) -> None:
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise ValueError(f"cannot write to {str(path)!r}: {str(existing)!r} is no folder")
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {str(path)!r}: {error.strerror or error}") from None


@contextmanager
def replacing(path: Path, *, keep: bool = False) -> Iterator[Path]:
    """Yield where to write; that file takes the path's place when the block is done, so all or nothing.

    A symbolic link stays, and leads to the new file, which keeps the old one's permissions. What is no regular file,
    such as a device or a pipe, is written directly. With ``keep``, a block that is interrupted leaves what it has
    written at `part_path` the path.
    """
    file, special = Path(os.path.realpath(path)), path.exists() and not path.is_file()
    part = path if special else part_path(path) if keep else _beside(path)
    try:
        try:
            yield part
            if not special:
                if file.exists():
                    shutil.copymode(file, part)
                os.replace(part, file)
        finally:
            if not special and not keep:
                part.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(part)):  # such as a disk that is full
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def part_path(path: Path) -> Path:
    """Return where a file or a folder is while it grows, if what an interruption leaves is of use.

    Nobody gives this name to a file of their own, which would be overwritten.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    return path.with_name(path.name + PART)


def _beside(path: Path) -> Path:
    """Return a name beside a file that no other process writes to."""
    file = Path(os.path.realpath(path))
    return file.with_name(f"{file.name}.{token_hex(4)}{PART}")


def lock(opened: int, path: Path) -> None:
    """Lock an open file until it is closed; raise `ValueError` where another process holds it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"another process is writing {str(path)!r}; give another file, or wait for it") from None
    except OSError:  # nor on this file system
        return


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file at once, so that a kill leaves the old one or the new one; text is written in UTF-8."""
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def _is_same(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return os.path.samefile(path, other)
    return os.path.realpath(path) == os.path.realpath(other)


def as_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(plain_json(value), indent=indent, allow_nan=False)


def plain_json(value: Any) -> Any:
    """Return a value as JSON knows it: infinite numbers become the texts ``inf`` and ``-inf``, NaN null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: plain_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(each) for each in value]
    return value


class Format(NamedTuple):
    """A kind of tensor file: the key and schema of its header, and what completes "this is not a file …"."""

    key: str
    schema: int
    described: str


def write_tensors(path: Path, form: Format, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    from safetensors.torch import save

    header = {form.key: as_json({"schema": form.schema, **about})}
    # not by `save_file`, whose file only its owner may read
    write_atomically(path, save({name: each.contiguous() for name, each in tensors.items()}, header))


def read_tensors(path: str | Path, form: Format) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a file's tensors and what its header says about them."""
    wrong = f"{path}: this is not a file {form.described}"
    try:
        with safe_open(path, framework="pt") as file:
            about = parse_json((file.metadata() or {}).get(form.key, "null").encode(), "its header")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dictionary
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{wrong} ({error})") from None
    if not isinstance(about, dict):
        raise ValueError(wrong)
    if about.get("schema") != form.schema:
        raise ValueError(f"{path}: schema is {about.get('schema')!r}, but this version reads schema {form.schema}")
    return tensors, about


def page_templates(folder: Path) -> Environment:
    """Return the templates of a folder; they escape their values, and refuse a name that is not given."""
    with needing("pages need Jinja2", "report"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
