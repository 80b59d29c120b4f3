"""A plan: what options come to, what is refused before anything is loaded, and what running it leaves."""

from __future__ import annotations

import json
import logging
import math
from contextlib import contextmanager

import pytest

from cactus_decoding.core.drafting.registry import as_tree
from cactus_decoding.lab.evaluation.plan import InterruptedPlanError, plan_evaluation, run_plan
from cactus_decoding.lab.evaluation.runs.results import read_results

SHORT = {"max_new_tokens": 8}


def answers(results):
    return {result.config.label: result.answers["text"] for result in results}


def test_what_is_planned_is_answered_and_what_a_file_holds_is_not_answered_again(tmp_path):
    out, seen = tmp_path / "results.jsonl", []

    @contextmanager
    def progress(todo):
        seen.append([config.label for config in todo])
        yield lambda done, label: seen.append((done, label))

    plan = plan_evaluation(
        SHORT, out=out, rules=["lossless", "clamped:width=1"], lengths=[3], problems=2, arguments={"asked": "this"}
    )
    both = [config.label for config in plan.configs]
    assert both == ["lossless coupled ×3", "clamped:width=1.0 coupled ×3"]
    results = run_plan(plan, progress)
    assert seen == [both, *((place + 1, both[place % 2]) for place in range(4))]
    assert answers(results) == answers(read_results(out))
    said = results[0].provenance["arguments"]
    assert said == {"asked": "this", "rules": ["lossless", "clamped:width=1.0"], "chosen_seeds": [0]}
    assert results[0].provenance["running"] == {"engine_args": None, "workers": None}
    seen.clear()
    before = out.read_bytes()
    assert answers(run_plan(plan, progress)) == answers(results)
    assert (seen, out.read_bytes()) == ([[]], before)
    alone = run_plan(plan_evaluation(SHORT, rules=["clamped:width=1"], lengths=[3], problems=2))  # keeps no file
    assert answers(alone) == {both[1]: answers(results)[both[1]]}
    assert [*tmp_path.iterdir()] == [out]


def test_options_come_to_every_combination_once():
    plan = plan_evaluation(
        SHORT | {"protect_threshold": 0.2},
        rules=["clamped:width=1", "clamped:width=1.0", "lossless"],
        lengths=[3, as_tree("static=2.2"), 3],
        protect=["none", "digits"],
        seeds=[0, 1, 0],
        problems=1,
    )
    asked = [(config.rule, str(config.num_speculative_tokens), config.seed) for config in plan.configs]
    assert len(asked) == 2 * 2 * (2 + 1)  # seeds, lengths, and rules: relaxed ones with and without protection
    policies = {str(config.request.policy) for config in plan.configs}
    assert policies == {"", "protecting digits above 0.2"}


def test_rules_that_are_not_coupled_are_named_in_the_log(caplog):
    with caplog.at_level(logging.INFO, logger="cactus_decoding.lab.evaluation"):
        plan_evaluation(SHORT, rules=["lossless", "cactus:delta=1"], problems=1)
    assert "not coupled, because the rule looks at the drafted token: cactus:delta=1.0" in caplog.text


def test_what_does_not_go_together_is_refused_before_models_are_loaded(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"prompt": "Question: one"}) + "\n")
    task, model = f"jsonl:path={data},extract=none", tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for options, said in (
        ({"engine": "transformrs"}, "engine must be"),
        ({"engine": "llama-cpp"}, "--engine llama-cpp reads GGUF files"),
        ({"rules": ["cactus:delt=1"]}, "delt"),
        ({"target": str(model)}, "a draft is missing"),
        ({"drafts": ["bundled:nothing"]}, "bundled:nothing"),
        ({"settings": {"protect_threshold": 0.1}}, "give --protect too"),
        ({"settings": {"verification": "joint"}, "rules": ["cactus:delta=1"], "lengths": [as_tree("static=2.2")]},
         "joint"),
        ({"server": "http://127.0.0.1:9", "workers": 2, "engine": "vllm"}, "leave out --engine, --workers"),
        ({"server": "http://127.0.0.1:9", "lengths": [2, 3]}, "a server has one draft length"),
        ({"server": "http://127.0.0.1:9", "drafts": ["a", "b", "a"]}, "a server has one draft, .* 2 are given: a, b"),
        ({"server": "http://127.0.0.1:9", "timeout": math.inf}, r"timeout must be in \(0, 86400\], but is inf"),
        ({"tasks": [task], "out": data}, "is an input"),
        ({"tasks": [task, task.replace("data.jsonl", "./data.jsonl")]}, "two tasks are named 'jsonl:data'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            plan_evaluation(**options)


def test_an_interrupted_plan_says_what_its_file_holds_and_goes_on_from_there(tmp_path):
    out = tmp_path / "results.jsonl"
    plan = plan_evaluation(SHORT, out=out, rules=["lossless", "clamped:width=1"], lengths=[3], problems=2)

    @contextmanager
    def until_the_third(todo):
        def report(done, label):
            if done == 3:
                raise KeyboardInterrupt

        yield report

    kept = f"interrupted with 3 of 4 answers kept, 0 of 2 runs finished in {out}"
    with pytest.raises(InterruptedPlanError, match=kept):
        run_plan(plan, until_the_third)
    whole = run_plan(plan)
    assert answers(whole) == answers(run_plan(plan_evaluation(
        SHORT, rules=["lossless", "clamped:width=1"], lengths=[3], problems=2)))  # fmt: skip
    assert not out.with_name("results.jsonl.partial").exists()
