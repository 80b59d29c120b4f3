"""Pairs that tests of traces share."""

from __future__ import annotations

import pytest
from support.tiny_pair import tiny_pair
from support.traces import PROMPT

from cactus_decoding import Budget, load_pair
from cactus_decoding.lab.tracing import trace_response, write_trace


@pytest.fixture(scope="module")
def pair():
    return tiny_pair()


@pytest.fixture(scope="module")
def bundled():
    return load_pair()


@pytest.fixture(scope="module")
def trace():
    return trace_response(load_pair(), PROMPT, rule="cactus:delta=1.0", budget=Budget(nats=0.6), top_p=0.98, seed=3)


@pytest.fixture
def saved(trace, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(trace, path)
    return path
