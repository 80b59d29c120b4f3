"""`cactus diagnose`, as it is typed."""

from __future__ import annotations

import json
import re


def test_it_says_where_rejections_are_and_what_each_way_promises(run, tmp_path):
    out = tmp_path / "found.json"
    code, said, err = run("diagnose", "--problems", "8", "--draft-cost", "0.25", "--threads", "1", "--output", str(out))
    assert code == 0, err
    assert "Answering: 8/8" in err
    (total,) = re.findall(r"^Probing: (\d+)/\1$", err, re.MULTILINE)
    found = json.loads(out.read_text())
    assert int(total) == 400 + found["positions"]
    assert "rejections: " in said
    assert found["draft_cost"] == 0.25
    assert found["rule"] == "clamped:width=3.0 protecting digits"
    assert found["provenance"]["arguments"]["draft"] == "bundled:worded"
    assert [each["name"] for each in found["promises"]][:4] == ["lossless", "trained", "relaxed", "tree"]
    assert all(line in said for line in found["advice"])
