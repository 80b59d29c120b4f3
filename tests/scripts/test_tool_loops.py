"""Loops of clients with tools: a few of them against a real server, and what counts as read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.code_blocks import ROOT
from support.llama_server import serving

from scripts.bundled_gguf import write_bundled
from scripts.serve_soak import TEMPLATE
from scripts.tool_loops import MODELS, RESULTS, TOOLS, Loops


def test_a_call_is_read_if_its_function_takes_it():
    loops = Loops("nowhere")
    assert loops.read("add", '{"a": 1, "b": 2}', cut=False) == {"a": 1, "b": 2}
    assert RESULTS["add"]({"a": 1, "b": 2}) == "3"
    for wrong in ('{"a": 1 "b": 2}', '{"a": 1}', "[1]"):
        assert loops.read("add", wrong, cut=False) is None
    assert loops.read("add", '{"a": ', cut=True) is None
    assert loops.counts == {"calls": 4, "parsed": 1, "failed": 3, "cut": 1}
    assert [each["function"]["name"] for each in TOOLS] == [*MODELS]


def run(*given: object) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own: clients leave connections open."""
    command = [sys.executable, ROOT / "scripts" / "tool_loops.py", *map(str, given)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ)


@pytest.mark.slow
def test_every_call_of_the_clients_that_tests_have_is_read_and_a_run_goes_on(tmp_path):
    target = write_bundled("target", tmp_path, "q8_0", TEMPLATE, 4096)
    found, clients = tmp_path / "loops.json", ("openai", "langchain-openai", "pydantic-ai-slim")
    further = ("--first", "required", "--clients", *clients, "--output", found)
    with serving(f"{target}:context_size=4096", "--threads", "1", "--alias", "m", "--port", "0") as server:
        address = f"http://127.0.0.1:{server.port}/v1"
        for loops in (1, 2):
            ended = run(address, "--loops", loops, *further)
            assert ended.returncode == 0, ended.stderr
            told = json.loads(found.read_text())["clients"]
            assert [*told] == [*clients]
            assert all((each["loops"], each["failed"]) == (loops, 0) for each in told.values()), told
            assert all(each["calls"] == each["parsed"] for each in told.values()), told
            assert sum(each["calls"] + each["cut"] for each in told.values()) >= 3 * loops
    before = found.read_bytes()
    stopped = run(address, "--loops", 3, *further)
    assert (stopped.returncode, found.read_bytes()) == (1, before)  # a server that is gone is no client's failure
    assert "does not answer any more" in stopped.stderr
    other = run(address, "--loops", 3, *further, "--model", "another")
    assert (other.returncode, found.read_bytes()) == (2, before)
    assert "give another --output" in other.stderr
