"""Scores of a task that was asked in parts are those of all its problems."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.scripts import ROOT, benchmark

from cactus_decoding.lab.evaluation.runs.results import RunResult
from cactus_decoding.lab.evaluation.runs.summary import summarise
from studies.stored import read_results

joined = benchmark("vllm_tables", "scripts").joined


def part_of(result: RunResult, begin: int, end: int) -> RunResult:
    columns = {name: column[begin:end] for name, column in result.answers.items()}
    return RunResult(replace(result.config, problems=end - begin), columns, result.provenance)


def test_parts_of_a_run_give_its_summary_again():
    whole = read_results(ROOT / "docs" / "results" / "vllm_scores_humaneval.jsonl")
    first, rest = [part_of(each, 0, 30) for each in whole], [part_of(each, 30, 100) for each in whole]
    assert [each.metrics for each in summarise(joined([first, rest]))] == [each.metrics for each in summarise(whole)]
    with pytest.raises(ValueError, match="not of one run"):
        joined([first, rest[::-1]])
