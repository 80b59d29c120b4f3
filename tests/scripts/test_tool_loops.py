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


@pytest.mark.slow
def test_every_call_of_the_clients_that_tests_have_is_read(tmp_path):
    """In a process of their own: they leave connections open."""
    target = write_bundled("target", tmp_path, "q8_0", TEMPLATE, 4096)
    found, clients = tmp_path / "loops.json", ("openai", "langchain-openai", "pydantic-ai-slim")
    with serving(f"{target}:context_size=4096", "--threads", "1", "--alias", "m", "--port", "0") as server:
        address = f"http://127.0.0.1:{server.port}/v1"
        given = [address, "--loops", "1", "--first", "required", "--clients", *clients, "--output", str(found)]
        subprocess.run([sys.executable, ROOT / "scripts" / "tool_loops.py", *given], check=True, env=os.environ)
    told = json.loads(found.read_text())["clients"]
    assert [*told] == [*clients]
    assert sum(each["calls"] + each["cut"] for each in told.values()) >= 3
    assert all((each["loops"], each["failed"], each["calls"]) == (1, 0, each["parsed"]) for each in told.values()), told
