"""`factory.check_bundled`: its result and its exit code."""

from __future__ import annotations

import json

import torch

from cactus_decoding import zoo
from factory.check_bundled import check_bundled
from factory.command import main


def test_check_bundled_writes_a_result_and_fails_where_a_floor_is_missed(capsys, settings_of_the_libraries, tmp_path):
    for role in zoo.ROLES:  # a draft as good as its target misses the second floor
        (tmp_path / role).symlink_to(zoo.path("draft"))
    file = tmp_path / "check.json"
    given = ["--models", str(tmp_path), "--problems", "2", "--json", str(file)]
    assert main(check_bundled, arguments=given) == 1
    assert "missed" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert {floor["name"] for floor in result["floors"] if not floor["met"]} >= {"target − draft accuracy"}
    assert result["scores"]["target"]["right"] == result["scores"]["draft"]["right"]
    assert set(result["pass_ratios"]) == {"worded", "draft"}
    assert result["worded"]["untruncated"]["answers"] == 2
    assert result["provenance"]["arguments"]["problems"] == 2
    assert result["provenance"]["versions"]["torch"] == torch.__version__
