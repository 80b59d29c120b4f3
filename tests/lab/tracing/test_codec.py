"""Between positions and JSON: infinite numbers survive, NaN does not, and damaged rows are named."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from cactus_decoding.core.files.jsonl import read_as
from cactus_decoding.lab.tracing import read_trace, to_json
from cactus_decoding.lab.tracing.trace import TracedPosition


def test_a_position_survives_json_with_its_infinities(trace):
    for position in trace.positions[:8]:
        infinite = replace(position, residual_scale=math.inf, max_log_ratio=-math.inf)
        text = json.dumps(to_json(infinite, rows=True), allow_nan=False)
        assert read_as(TracedPosition, json.loads(text), "here") == infinite
    assert to_json(replace(trace.positions[0], conditional_nats=math.nan))["conditional_nats"] is None


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    "damage",
    [
        {"values": "AAAA"},
        {"values": "?"},
        {"dtype": "int4"},
        {"vocabulary": 7},
        {"token_ids": "/////w=="},
        {"values": 3},
    ],
)
def test_damaged_rows_are_named(saved, role, damage):
    lines = saved.read_text().splitlines()
    step = json.loads(lines[1])
    step["positions"][0]["rows"][role] |= damage
    saved.write_text(lines[0] + "\n" + json.dumps(step) + "\n")
    with pytest.raises(ValueError, match=rf"line 2: positions\[0\].rows.{role}: the row is damaged"):
        read_trace(saved)
