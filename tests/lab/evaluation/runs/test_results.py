"""Result files: costs without a bound, columns that are not known, and lines that cannot be used."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from support.result_files import made, write

from cactus_decoding.lab.evaluation.runs.results import AUDITED, read_results


def test_infinite_costs_are_infinite_when_read(tmp_path):
    result = made("cactus:delta=1.0", 4, problems=2)
    answers = dict(result.answers) | {name: [math.inf, 1.0] for name in AUDITED}
    path = write(tmp_path / "infinite.jsonl", [type(result)(result.config, answers, {})])
    assert "Infinity" not in path.read_text()
    (read,) = read_results(path)
    assert read.column("nats").tolist() == [math.inf, 1.0]


def test_what_nobody_knows_is_no_number(tmp_path):
    result = made("cactus:delta=1.0", 4, problems=2, scored=False, audited=False)
    (read,) = read_results(write(tmp_path / "a.jsonl", [result]))
    assert np.isnan(read.column("right")).all()
    assert not read.scored
    assert not read.audited


def test_a_line_that_cannot_be_used_is_named(tmp_path):
    path = write(tmp_path / "a.jsonl", [made("lossless", 4, problems=2)])
    line = json.loads(path.read_text())
    line["cell"]["rule"] = "magic"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match="line 1: this is not a result of cactus eval: unknown rule 'magic'"):
        read_results(path)
