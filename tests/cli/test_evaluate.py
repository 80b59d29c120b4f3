"""`cactus eval`: what goes into which file, and mistakes in one sentence before any work."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.lab.evaluation.runs.results import read_results

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")

SMALL = ("--problems", "3", "--max-new-tokens", "24", "--threads", "1")


def test_answers_to_other_problems_under_the_same_name_are_refused(run, tmp_path):
    problems, out = tmp_path / "own.jsonl", tmp_path / "results.jsonl"
    arguments = ("eval", "--task", f"jsonl:path={problems}", "--max-new-tokens", "4", "--output", str(out))
    problems.write_text('{"prompt": "Question: one"}\n')
    assert run(*arguments)[0] == 0
    before = out.read_bytes()
    problems.write_text('{"prompt": "Question: two"}\n')
    code, _, err = run(*arguments)
    assert code == 2
    assert "other problems" in err
    assert out.read_bytes() == before


def test_fewer_of_the_same_problems_may_be_asked_into_the_same_file(run, tmp_path):
    problems, out = tmp_path / "own.jsonl", tmp_path / "results.jsonl"
    arguments = ("eval", "--task", f"jsonl:path={problems}", "--max-new-tokens", "4", "--output", str(out))
    problems.write_text('{"prompt": "Question: one"}\n{"prompt": "Question: two"}\n')
    assert run(*arguments)[0] == 0
    assert run(*arguments, "--problems", "1")[0] == 0
    assert [result.config.problems for result in read_results(out)] == [2, 1]
    problems.write_text('{"prompt": "Question: one", "id": "other"}\n')
    assert "other problems" in run(*arguments, "--problems", "1")[2]


def test_a_prompt_that_does_not_fit_is_named(run, tmp_path):
    problems = tmp_path / "long.jsonl"
    problems.write_text('{"prompt": "short"}\n' + json.dumps({"id": "epic", "prompt": "word " * 3000}) + "\n")
    code, _, err = run("eval", "--task", f"jsonl:path={problems}", "--output", str(tmp_path / "results.jsonl"))
    assert code == 2
    assert "task jsonl:long, problem 'epic': the prompt must be shorter than the target's 1024 positions" in err


def test_trees_are_swept_like_lengths(run, tmp_path):
    out = tmp_path / "results.jsonl"
    code, printed, err = run("eval", *SMALL, "--output", str(out), "--rule", "lossless", "--rule", "clamped:width=1",
                             "--num-speculative-tokens", "3", "--tree", "static=3.2,drawn=2", "--tree", "static=2.2",
                             "--verification", "joint", "--protect", "none")  # fmt: skip
    assert code == 2  # joint verification draws one child a token at most
    assert "at most one drawn child a token" in err
    code, printed, err = run("eval", *SMALL, "--output", str(out), "--rule", "lossless", "--rule", "clamped:width=1",
                             "--num-speculative-tokens", "3", "--tree", "static=3.2,drawn=2",
                             "--tree", "static=2.2")  # fmt: skip
    assert code == 0, err
    lengths = [result.config.num_speculative_tokens for result in read_results(out)]
    assert lengths == [3, 3, *["tree:static=3.2,drawn=2"] * 2, *["tree:static=2.2"] * 2]
    assert "best lossless chain" in printed
    assert "best lossless tree" in printed
    tree = read_results(out)[4]
    assert tree.audited
    steps, drafted = (sum(tree.answers[name]) for name in ("steps", "drafted"))
    assert 0 < drafted <= 6 * steps
    assert sum(tree.answers["recovered"]) + sum(tree.answers["bonus"]) == steps


def test_every_draft_length_runs_to_the_end(run, tmp_path):
    out = tmp_path / "results.jsonl"
    code, _, err = run("eval", *SMALL, "--output", str(out), "--rule", "cactus:delta=1.0", "--num-speculative-tokens",
                       "0,3,confidence:threshold=0.5,auto")  # fmt: skip
    assert code == 0, err
    lengths = [str(result.config.num_speculative_tokens) for result in read_results(out)]
    assert [length.partition(":")[0] for length in lengths] == ["0", "3", "confidence", "auto"]


def test_rules_share_their_random_numbers_where_they_can(run, tmp_path):
    rules = ("--rule", "lossless", "--rule", "clamped:width=1", "--rule", "cactus:delta=1")
    given = ("eval", *SMALL, "--problems", "2", "--num-speculative-tokens", "0,4")
    out, by_token = tmp_path / "results.jsonl", tmp_path / "token.jsonl"
    code, printed, err = run(*given, *rules, "--output", str(out))
    assert code == 0, err
    assert "not coupled, because the rule looks at the drafted token: cactus:delta=1.0; compared" in err
    said = " ".join(printed.split())
    assert "Coupled: settings share their random numbers" in said
    assert "compared with lossless that is verified in the same way" in said
    texts = {result.config.label: result.answers["text"] for result in read_results(out)}
    coupled = {"lossless coupled ×0", "lossless coupled ×4", "clamped:width=1.0 coupled ×4"}
    assert set(texts) == coupled | {"lossless ×4", "cactus:delta=1.0 ×4"}
    assert texts["lossless coupled ×0"] == texts["lossless coupled ×4"] != texts["lossless ×4"]
    code, printed, err = run(*given, *rules[:-2], "--verification", "token", "--output", str(by_token))
    assert code == 0, err
    assert "oupled" not in printed + err
    texts = {result.config.label: result.answers["text"] for result in read_results(by_token)}
    assert texts["lossless ×0"] != texts["lossless ×4"]
