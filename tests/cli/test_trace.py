"""`cactus trace`, and `cactus generate --trace`."""

from __future__ import annotations

import json

from cactus_decoding.lab.tracing import read_trace

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
PROMPT = f"Question: {QUESTION}\nAnswer:"


def test_generate_with_a_trace_writes_the_same_text(run, tmp_path):
    path, page = tmp_path / "t.jsonl", tmp_path / "t.html"
    arguments = ("generate", QUESTION, "--seed", "5", "--stop", "####", "--rule", "cactus:delta=0.5", "--top-p", "0.9")
    code, out, err = run(*arguments, "--trace", str(path))
    assert (code, out) == run(*arguments)[:2]
    assert f"wrote {path}" in err
    made = read_trace(path)
    assert made.text + "\n" == out
    assert made.header.prompt == PROMPT
    assert (made.header.request.seed, made.header.target) == (5, "bundled")
    assert run("trace", str(path)) == (0, f"wrote {page}\n", "")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(tmp_path.iterdir()) == [page, path]


def test_json_and_a_trace_go_together(run, tmp_path):
    path = tmp_path / "t.jsonl"
    arguments = ("generate", QUESTION, "--seed", "5", "--json", "--max-new-tokens", "8")
    code, out, err = run(*arguments, "--trace", str(path))
    assert (code, err) == (0, "")
    plain = json.loads(run(*arguments)[1])
    result = json.loads(out)
    assert result["token_ids"] == plain["token_ids"] == read_trace(path).token_ids
    assert result["fates"] == plain["fates"]
