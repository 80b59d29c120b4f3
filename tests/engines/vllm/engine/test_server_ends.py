"""A server that is told to end while it starts: within seconds, with all that it has started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from server_process import SECONDS, children_of, serving

pytestmark = pytest.mark.engine
MOMENTS = ("", "non-default args", "Loading weights took")
"""What the log says by then, if anything; every other server of these tests has started up when it is ended."""


@pytest.mark.parametrize("said", MOMENTS)
def test_one_signal_at_any_moment_ends_it(said: str, tmp_path: Path) -> None:
    with serving(tmp_path) as server:  # which sends it, and looks at what is left
        end, vllm = time.monotonic() + SECONDS, list[int]()
        while not vllm or said not in server.log.read_text():
            assert server.process.poll() is None, server.log.read_text()
            assert time.monotonic() < end, server.log.read_text()
            time.sleep(0.1)
            vllm = vllm or children_of(server.process.pid)
