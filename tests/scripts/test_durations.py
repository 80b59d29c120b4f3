"""The script that keeps what tests took."""

from __future__ import annotations

from pathlib import Path

from support.scripts import run_script

from scripts.durations import measured, summed

CASE = '<testcase classname="{}" name="{}" time="{}"/>'
RUN = [
    ("tests.models.llama_cpp.test_law", "test_a[x-y[0]]", 1.5),
    ("tests.models.llama_cpp.test_law", "test_a[z]", 2.0),
    ("tests.models.test_lean", "test_b", 1.0),
    ("tests.integrations.vllm.engine.test_law", "test_a", 9.0),
]


def test_cases_are_summed_by_test_and_by_room_and_the_slowest_come_first(tmp_path: Path) -> None:
    run = tmp_path / "fast.xml"
    run.write_text(f"<testsuites><testsuite>{''.join(CASE.format(*case) for case in RUN)}</testsuite></testsuites>")
    written = summed(measured([run]))
    assert [*written["rooms"].items()] == [
        ("integrations/vllm", {"cases": 1, "seconds": 9.0}),
        ("models", {"cases": 3, "seconds": 4.5}),
    ]
    assert [*written["slowest"].items()] == [
        ("integrations.vllm.engine.test_law::test_a", {"cases": 1, "seconds": 9.0}),
        ("models.llama_cpp.test_law::test_a", {"cases": 2, "seconds": 3.5}),
    ]


def test_without_a_run_it_says_what_to_do(tmp_path: Path) -> None:
    done = run_script("durations.py", tmp_path / "none.xml")
    assert done.returncode == 2
    assert "run `make test-all` first" in done.stderr
