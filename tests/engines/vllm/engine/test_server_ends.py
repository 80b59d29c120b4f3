"""A server that is told to end while it starts: within seconds, with all that it has started."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from server_process import SECONDS, serving

pytestmark = pytest.mark.engine
MOMENTS = ("", "non-default args", "Initializing a V1 LLM engine", "Loading weights took", "startup complete")
"""What the log says by then, if anything."""


def of_group(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, theirs = each.read_text().rpartition(") ")[2].split()[:4]
        except OSError:  # ended since
            continue
        if int(theirs) == session and state != "Z":
            found.append(int(each.parent.name))
    return found


@pytest.mark.parametrize("said", MOMENTS)
def test_one_signal_at_any_moment_ends_it(said: str, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        vllm: list[int] = []
        end = time.monotonic() + SECONDS
        while not vllm or said not in server.log.read_text():
            assert server.process.poll() is None, server.log.read_text()
            assert time.monotonic() < end, server.log.read_text()
            time.sleep(0.1)
            vllm = vllm or children_of(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=60)
        assert of_group(vllm[0]) == []


def children_of(process: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
