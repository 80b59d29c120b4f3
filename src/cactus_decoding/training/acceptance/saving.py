"""Errors of writing that name the file, whichever library writes it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from cactus_decoding.models.loading import sentence_of


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
