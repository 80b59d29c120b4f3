"""`cactus trace`, and `cactus generate --trace`."""

from __future__ import annotations

import json

import pytest

from cactus_decoding import load_pair
from cactus_decoding.lab.tracing import read_trace, trace_response, write_trace

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
PROMPT = f"Question: {QUESTION}\nAnswer:"


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(trace_response(load_pair(), PROMPT, seed=3, max_new_tokens=8), path)
    return path


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


def test_mistakes_are_one_sentence_and_nothing_is_overwritten(run, tmp_path, saved):
    before, page = saved.read_bytes(), tmp_path / "page.html"
    page.write_text("kept")
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    (tmp_path / "gone.jsonl.cactus-part").write_bytes(before)
    for arguments, message in (
        (["trace", str(tmp_path / "missing.jsonl")], "missing.jsonl: No such file or directory"),
        (["trace", str(tmp_path / "gone.jsonl")], "an interrupted response left"),
        (
            ["trace", str(bad), "--output", str(page)],
            "bad.jsonl, line 1: this is not a trace of cactus generate --trace",
        ),
        (["trace", str(saved), "--output", str(saved)], "is an input; give another output"),
        (["trace", str(saved), "--output", "/missing/page.html"], "cannot write '/missing/page.html'"),
        (["trace"], "Missing argument"),
        (["generate", QUESTION, "--trace", "/missing/t.jsonl"], "cannot write '/missing/t.jsonl'"),
        (["generate", QUESTION, "--rule", "frob", "--trace", str(saved)], "unknown rule 'frob'"),
        (["generate", "word " * 2000, "--trace", str(saved)], "the prompt must be shorter"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err
        assert err.count("\n") == 1
    assert saved.read_bytes() == before
    assert page.read_text() == "kept"
