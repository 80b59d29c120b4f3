"""GGUF files that the tests of this folder share."""

from collections.abc import Callable
from pathlib import Path

import pytest
from bundled_gguf import write_bundled


@pytest.fixture(scope="session")
def gguf(tmp_path_factory) -> Callable[..., Path]:
    """Return a function from a bundled model's name, and a type of weights, to its file."""
    folder, written = tmp_path_factory.mktemp("gguf"), dict[tuple[str, str], Path]()

    def path(name: str, kind: str = "float32") -> Path:
        if (name, kind) not in written:
            written[name, kind] = write_bundled(name, folder, kind)
        return written[name, kind]

    return path
