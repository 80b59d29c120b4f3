"""The table of a pair in vLLM: what is asked in which order, what is kept, and what is made of it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.scripts import ROOT, benchmark, run_benchmark, run_script

vllm_table = benchmark("vllm_table")
vllm_loops, vllm_summary = benchmark("vllm_loops"), benchmark("vllm_summary")
Cell, Prompt = vllm_loops.Cell, vllm_loops.Prompt
GIVEN = Namespace(
    loops=["vllm", "transformers"], rules=["no draft", "lossless", "Cactus 1"], proposals=[3, 7, 11, 1],
    drafting=["drawn", "likeliest"], sampling=["plain", "paper"], at_once=[1, 8, 4],
)  # fmt: skip
PROMPTS = [Prompt(f"gsm8k/{i}", f"What is {i}?", (1, 2, i), ()) for i in range(6)]


def line(cell: tuple, prompt: str, tokens: int = 8, seconds: float = 2.0, finish: str = "stop") -> dict:
    counts = {"steps": 2, "accepted": 6} if cell[2] else {"steps": 0, "accepted": 0}
    told = {"prompt": prompt, "tokens": tokens, "seconds": seconds, "finish": finish}
    return Cell(*cell)._asdict() | told | counts


def test_what_matters_most_is_answered_first_and_nothing_twice() -> None:
    stages = vllm_table.stages(GIVEN)
    names = [name for name, _ in stages]
    assert names[:4] == ["vllm 0", "vllm drawn 3", "vllm drawn 7", "transformers"]
    first = [cell for _, cells in stages[:4] for cell in cells]
    assert {(cell.sampling, cell.at_once) for cell in first} == {("plain", 1), ("plain", 8)}
    assert {cell.at_once for cell in first if cell.loop == "transformers"} == {1}
    every = Counter(cell for _, cells in stages for cell in cells)
    assert set(every.values()) == {1}
    # no draft, and rules by number and drafting, by sampling and load; the loop here draws, and answers one at once
    assert len(every) == (1 + 2 * 4 * 2) * 2 * 3 + (1 + 2 * 4) * 2
    assert stages[-1][1][-1] in {cell for cell in every if cell.at_once == 4 and cell.sampling == "paper"}


def test_one_engine_has_one_number_of_proposals_drawn_in_one_way() -> None:
    for name, cells in vllm_table.stages(GIVEN):
        if name != "transformers":
            assert len({(cell.drafting, cell.proposals) for cell in cells}) == 1


def test_prompts_are_answered_in_turn_by_one_request_at_once() -> None:
    cells = [Cell("vllm", "drawn", 3, rule, "plain", 1) for rule in ("lossless", "Cactus 1")]
    missing = [vllm_loops.Asked(cells[0], PROMPTS[:3]), vllm_loops.Asked(cells[1], PROMPTS[1:3])]
    asked = [(cell.rule, prompt.id) for cell, prompt in vllm_loops.in_turn(missing)]
    assert asked == [
        ("lossless", "gsm8k/0"),
        ("Cactus 1", "gsm8k/1"), ("lossless", "gsm8k/1"),
        ("lossless", "gsm8k/2"), ("Cactus 1", "gsm8k/2"),
    ]  # fmt: skip


class Scripted:
    """An engine that gives each request the steps that its last token says, and keeps how many there were."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.loads: list[int] = []

    def add_request(self, name: str, prompt: dict, params: object) -> None:
        self.running[name] = prompt["prompt_token_ids"][-1] + 1

    def step(self) -> list:
        self.loads.append(len(self.running))
        self.running = {name: left - 1 for name, left in self.running.items()}
        done = [name for name, left in self.running.items() if not left]
        for name in done:
            del self.running[name]
        return [SimpleNamespace(request_id=name, finished=True) for name in done]

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.running[name]

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)


@pytest.mark.parametrize("at_once", [1, 4, 8])
def test_the_load_is_kept_until_the_last_answer(at_once: int) -> None:
    engine = Scripted()
    answers = [*vllm_loops.kept_busy(engine, lambda prompt: None, PROMPTS, PROMPTS, at_once)]
    assert sorted(prompt.id for prompt, *_ in answers) == sorted(prompt.id for prompt in PROMPTS)
    assert set(engine.loads) == {at_once}
    assert not engine.running


def written(path: Path, lines: list[dict], settings: dict) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in [{"settings": settings}, *lines]))


def test_a_journal_that_a_kill_cut_off_goes_on(tmp_path: Path) -> None:
    path, settings = tmp_path / "table.jsonl", {"tokens": 8}
    cells = [Cell("vllm", "drawn", 3, rule, "plain", 1) for rule in ("lossless", "Cactus 1")]
    written(path, [line(cells[0], "gsm8k/0"), line(cells[0], "gsm8k/1")], settings)
    path.write_bytes(path.read_bytes()[:-20])
    journal = vllm_table.Journal(path, settings)
    missing = {each.cell.rule: [prompt.id for prompt in each.prompts] for each in journal.missing(cells, PROMPTS[:2])}
    assert missing == {"lossless": ["gsm8k/1"], "Cactus 1": ["gsm8k/0", "gsm8k/1"]}
    with path.open("ab") as file:
        add = journal.appending(file)
        next(add)
        add.send(line(cells[0], "gsm8k/1"))
    again = vllm_table.Journal(path, settings)
    assert again.lines == [{"settings": settings}, *(line(cells[0], f"gsm8k/{i}") for i in range(2))]
    assert [each.cell.rule for each in again.missing(cells, PROMPTS[:2])] == ["Cactus 1"]


def test_a_journal_of_other_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.jsonl"
    written(path, [], {"tokens": 8})
    with pytest.raises(SystemExit, match="2"):
        vllm_table.Journal(path, {"tokens": 9})
    assert "but this run is of {'tokens': 9}" in capsys.readouterr().err


def test_the_time_left_is_that_of_answers_of_the_same_load(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    alone, eight = (Cell("vllm", "drawn", 3, "lossless", "plain", load) for load in (1, 8))
    lines = [line(alone, "gsm8k/0", seconds=3.0), line(eight, "gsm8k/0", seconds=8.0), {"started": "a", "seconds": 5.0}]
    written(path, lines, {})
    journal = vllm_table.Journal(path, {})
    assert vllm_table.seconds_left([vllm_loops.Asked(alone, PROMPTS[:2])], 0, journal) == 6.0
    # requests that only keep the load up are half of what is beside the last ones
    assert vllm_table.seconds_left([vllm_loops.Asked(eight, PROMPTS[:2])], 1, journal) == 5.0 + (2 + 3.5) * 1.0


def measured(prompts: int) -> list[dict]:
    """Return answers of which all prompts are alike but for their length."""
    found = []
    for i in range(prompts):
        for load in (1, 8):
            at = f"gsm8k/{i}"
            found += [
                line(("vllm", "", 0, "no draft", "plain", load), at, 8 + i, 4.0 * (8 + i)),
                line(("vllm", "drawn", 3, "lossless", "plain", load), at, 8 + i, 2.0 * (8 + i)),
                line(("vllm", "drawn", 7, "lossless", "plain", load), at, 8 + i, 3.0 * (8 + i)),
                line(("vllm", "drawn", 3, "Cactus 1", "plain", load), at, 8, 16.0),
                line(("vllm", "likeliest", 7, "Cactus 1", "plain", load), at, 20 + i, 20.0 + i * i, "length"),
            ]
    return found


def test_each_rule_is_compared_at_its_own_best_number() -> None:
    found = vllm_summary.summary(measured(8))
    assert found["prompts"] == 8
    assert found["disturbed_answers"] == 0
    best = {(row["rule"], row["at_once"]): row for row in found["best"]}
    lossless, cactus = best["lossless", 1], best["Cactus 1", 8]
    assert (lossless["drafting"], lossless["proposals"]) == ("drawn", 3)
    assert lossless["over_no_draft"][0] == 2.0
    assert lossless["tokens_per_second"] == [0.5, None, None]  # equal answers do not say how others vary
    assert lossless["tokens_per_step"][0] == 4.0
    assert (cactus["drafting"], cactus["proposals"], cactus["cut"]) == ("likeliest", 7, 1.0)
    seconds, tokens = (sum(each) for each in ([20 + i * i for i in range(8)], [20 + i for i in range(8)]))
    assert cactus["tokens_per_second"][0] == pytest.approx(8 * tokens / seconds, rel=1e-3)
    value, low, high = cactus["over_lossless"]
    assert value == pytest.approx(2 * tokens / seconds, rel=1e-3)
    assert low < value < high
    assert cactus["time_over_lossless"][0] == pytest.approx(seconds / (2 * sum(8 + i for i in range(8))), rel=1e-3)
    assert "over_lossless" not in lossless
    assert not {"over_no_draft", "over_lossless"} & set(best["no draft", 1])


def test_few_prompts_have_no_interval_and_few_answers_are_not_the_best() -> None:
    assert vllm_summary.summary(measured(5))["best"][2]["over_lossless"][1:] == [None, None]
    fast = line(("vllm", "drawn", 11, "lossless", "plain", 1), "gsm8k/0", 8, 0.1)
    found = vllm_summary.summary([*measured(8), fast])
    assert next(row for row in found["best"] if row["rule"] == "lossless")["proposals"] == 3


def test_each_task_has_a_summary_where_there_are_several() -> None:
    assert [*vllm_summary.summaries(measured(2))] == ["all"]
    other = [each | {"prompt": "humaneval/0"} for each in measured(1)]
    found = vllm_summary.summaries([*measured(2), *other])
    assert {name: each["prompts"] for name, each in found.items()} == {"all": 3, "gsm8k": 2, "humaneval": 1}


def test_a_page_has_the_tables_that_the_result_file_gives(tmp_path: Path) -> None:
    for name in ("vllm", "performance"):
        written_page = (ROOT / "docs" / f"{name}.md").read_text()
        page = tmp_path / f"{name}.md"
        page.write_text(written_page)
        assert run_script("performance_tables.py", "--page", page).returncode == 0
        assert page.read_text() == written_page
        assert "<!-- begin: vllm_pair -->" in written_page


@pytest.mark.parametrize("option", ["--proposals", "--tokens", "--at-once", "--prompts", "--threads"])
def test_what_nothing_can_be_measured_with_is_refused(option: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    done = run_benchmark(
        "vllm_table.py", "--target", "bundled", "--draft", "bundled:draft", option, 0, "--output", path
    )
    assert done.returncode == 2
    assert f"{option} must be at least 1, but is 0" in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_the_loop_here_is_measured_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    small = ["--target", "bundled", "--draft", "bundled:worded", "--loops", "transformers", "--proposals", 2]
    small += ["--sampling", "plain", "--tokens", 6, "--threads", 1, "--dtype", "float32", "--output", path]
    first = run_benchmark("vllm_table.py", *small, "--prompts", 1)
    assert first.returncode == 0, first.stderr
    kept = path.with_suffix(".jsonl").read_text()
    done = run_benchmark("vllm_table.py", *small, "--prompts", 2)
    assert done.returncode == 0, done.stderr
    assert path.with_suffix(".jsonl").read_text().startswith(kept)
    assert "starting transformers: 5 answers" in done.stdout
    stored = json.loads(path.read_text())
    assert [each["prompt"] for each in stored["answers"]] == [["word_problems/test-0-0", "word_problems/test-0-1"]] * 5
    assert stored["summary"]["all"]["prompts"] == 2
    assert stored["provenance"]["arguments"]["task"] == ["word_problems"]
    assert run_benchmark("vllm_table.py", *small, "--prompts", 2).stdout.count("starting") == 0
    other = run_benchmark("vllm_table.py", *small, "--tokens", 7)
    assert other.returncode == 2
    assert "but this run is of" in other.stderr
