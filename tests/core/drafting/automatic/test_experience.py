"""What responses taught is kept in a file, which later processes begin with and nothing depends on."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from support.simulated_answers import automatic, recorded

from cactus_decoding.core.drafting.automatic import experience as kept
from cactus_decoding.core.drafting.automatic.experience import Experience, Learned, experience_of

TIMES, ANSWERS = recorded()["bundled"]


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know as little as a new process does."""
    monkeypatch.setattr(kept, "EXPERIENCES", {})
    monkeypatch.setattr(kept, "_WRITTEN", {})


def opened(folder: Path, **changed: Any) -> Experience:
    return experience_of(**{"profile": folder / "times" / "a.json", "times": TIMES, "max_draft_tokens": 15,
                            "kept": True} | changed)  # fmt: skip


def taught(folder: Path) -> Experience:
    experience = opened(folder)
    for answer in ANSWERS:
        automatic(answer, TIMES, experience=experience)
    kept.write_all()
    return experience


def test_another_process_goes_on_where_one_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = taught(tmp_path)
    assert [*tmp_path.rglob("*")] == [tmp_path / "learned", tmp_path / "learned" / "a-15.json"]
    forget(monkeypatch)
    second = opened(tmp_path)
    assert second is not first
    assert Learned.of(second) == Learned.of(first) != Learned.of(Experience(TIMES, 15))
    assert not second.times.known  # how fast the machine is now, nobody knows
    taken = sum(automatic(answer, TIMES, experience=second).seconds for answer in ANSWERS)
    assert taken < 0.97 * sum(automatic(answer, TIMES).seconds for answer in ANSWERS)


def test_a_file_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(kept.time, "monotonic", lambda: now)
    experience, written = opened(tmp_path), list[bool]()
    for seconds in (0, 10, 19, 2, 20, 40, 40):
        now += seconds
        automatic(ANSWERS[0], TIMES, experience=experience)
        before = [path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")]
        assert opened(tmp_path) is experience
        written.append([path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")] != before)
    assert written == [False, False, False, True, False, True, True]
    opened(tmp_path, kept=False)
    forget(monkeypatch)
    assert opened(tmp_path, kept=False).tried is False  # with a profile of one's own, nothing is kept


DAMAGE = {
    "empty": lambda values: "",
    "a list": lambda values: "[]",
    "cut": lambda values: json.dumps(values)[:-9],
    "counts of nothing": lambda values: json.dumps(values | {"drafted": [[0.5, 0.0]] * 6}),
    "a kind less": lambda values: json.dumps(values | {"drafted": values["drafted"][1:]}),
    "passes of no time": lambda values: json.dumps(values | {"passes": [0.0] * 16}),
    "no number": lambda values: json.dumps(values | {"slower": float("nan")}),
    "a number for a truth": lambda values: json.dumps(values | {"tried": 1}),
    "half a pair": lambda values: json.dumps(values | {"rate": [1.0]}),
    "other times": lambda values: json.dumps(values | {"profile": values["profile"] | {"draft": 1.0}}),
    "a field less": lambda values: json.dumps({name: value for name, value in values.items() if name != "rows"}),
    "a field more": lambda values: json.dumps(values | {"more": 1}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_file_that_is_damaged_or_of_other_times_counts_as_none(
    damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(tmp_path)
    file = tmp_path / "learned" / "a-15.json"
    file.write_text(damage(json.loads(file.read_text())))
    forget(monkeypatch)
    found = opened(tmp_path)
    assert Learned.of(found) == Learned.of(Experience(TIMES, 15))
    automatic(ANSWERS[0], TIMES, experience=found)
    kept.write_all()
    assert Learned.read(file) == Learned.of(found)


def test_a_folder_that_cannot_be_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "learned").write_text("a file where the folder should be")
    assert taught(tmp_path).tried


def _teach(folder: Path) -> None:
    for _ in range(3):
        taught(folder)


def test_processes_that_write_at_once_leave_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("fork")) as pool:
        [*pool.map(_teach, [tmp_path] * 3)]
    assert [path.name for path in (tmp_path / "learned").iterdir()] == ["a-15.json"]
    assert Learned.read(tmp_path / "learned" / "a-15.json").tried


QUIET = f"""
from cactus_decoding import load_pair
from cactus_decoding.core.drafting.measuring import keep_times
from cactus_decoding.core.drafting.timing import PassTimes
pair = load_pair()
keep_times(PassTimes.from_dict({TIMES.as_dict()}, "a quiet machine"), pair.target, pair.drafter)
"""
ANSWERING = """
from cactus_decoding import generate, load_pair
print(repr(generate(load_pair(), "Ada has 3 apples.", temperature=1, max_new_tokens=24,
                    num_speculative_tokens="auto", SEED).text))
"""


@pytest.mark.slow
def test_a_process_leaves_what_it_learnt_and_a_seed_does_not_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def printed(program: str) -> str:
        return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    printed(QUIET)  # those of a busy machine are not kept, and every process would measure its own
    first = printed(ANSWERING.replace("SEED", "seed=1"))
    assert not [*tmp_path.rglob("learned/*")]
    printed(ANSWERING.replace("SEED", ""))
    assert len([*tmp_path.rglob("learned/*.json")]) == 1
    assert printed(ANSWERING.replace("SEED", "seed=1")) == first
