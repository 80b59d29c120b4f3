"""Write errors that name the file, and the folder beside its output where a training works until it is finished."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from cactus_decoding.core.files.jsonl import read_json
from cactus_decoding.core.files.writing import check_folder, lock, part_path, write_atomically
from cactus_decoding.core.models.loading import sentence_of
from cactus_decoding.lab.training.settings import TrainingSettings


@contextmanager
def naming(path: Path, remark: str = "") -> Iterator[None]:
    """Raise `OSError` with a path, and a remark, for whatever fails to be written within.

    Example:
        >>> with naming(Path("draft"), "; the last checkpoint is whole"):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        OSError: [Errno 28] No space left on device; the last checkpoint is whole: 'draft'
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, (error.strerror or str(error)) + remark, str(path)) from error
    except (SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "writ" not in str(error):  # torch's own, of its archives
            raise
        raise OSError(errno.EIO, sentence_of(error) + remark, str(path)) from error


_LOCK, _SETTINGS = "lock", "settings.json"


def unfinished_folder(output: Path, settings: TrainingSettings, data_sha256: str) -> Path:
    """Return the folder where an output grows, which an earlier run may have left, without creating it."""
    if os.path.lexists(output) and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"{str(output)!r} is there already; give another output")
    check_folder(output)
    work = part_path(output)
    if not work.exists() or (work.is_dir() and {each.name for each in work.iterdir()} <= {_LOCK}):
        return work
    file = work / _SETTINGS
    if not file.is_file():
        raise ValueError(f"{str(work)!r} is in the way: what is not finished is written there")
    earlier, now = read_json(file), _asked(settings, data_sha256)
    for name in now:
        if earlier.get(name) != now[name]:
            raise ValueError(
                f"{str(work)!r} holds an unfinished training with {name} {earlier.get(name)!r}, but now it is "
                f"{now[name]!r}: give the same, remove that folder, or give another output"
            )
    return work


@contextmanager
def occupied(work: Path, settings: TrainingSettings, data_sha256: str) -> Iterator[None]:
    with naming(work):
        work.mkdir(parents=True, exist_ok=True)
    with (work / _LOCK).open("w") as held:
        lock(held.fileno(), work)
        write_atomically(work / _SETTINGS, json.dumps(_asked(settings, data_sha256), indent=2))
        try:
            yield
        finally:
            if work.exists() and {each.name for each in work.iterdir()} <= {_LOCK, _SETTINGS}:
                shutil.rmtree(work)


def finish(model: Path, work: Path, output: Path) -> None:
    with naming(output):
        os.replace(model, output)
    shutil.rmtree(work, ignore_errors=True)


def _asked(settings: TrainingSettings, data_sha256: str) -> dict[str, object]:
    return settings.as_dict() | {"data_sha256": data_sha256}
