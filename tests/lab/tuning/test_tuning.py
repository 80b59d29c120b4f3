"""Forecasts from pass times and answers, by hand; profiles, which are for the machine and files they were made with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tables import all_of

from cactus_decoding.core.drafting.timing import PassTimes
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.tuning import profile as module
from cactus_decoding.lab.tuning.answers import TunedAnswer
from cactus_decoding.lab.tuning.profile import Profile, default_place, file_key
from cactus_decoding.lab.tuning.tuning import WORTH, Forecast, best_of, forecasts, pays, speedup_sentence

NAN = float("nan")
TIMES = PassTimes(((1, 1.0), (2, 1.5), (4, 2.0), (8, 3.0)))
COSTS = {"small": replace(TIMES, draft=0.25)}


def answered(
    *token_ids: int, copied: list[list[int]] | None = None, kept: float = 0.5, verify: float = 0.0
) -> TunedAnswer:
    ids = list(token_ids)
    chances = {("small", "lossless"): torch.full((len(ids),), kept, dtype=torch.float64)}
    return TunedAnswer(ids, copied or [[] for _ in ids], chances, verify)


def by_setting(found: list[Forecast]) -> dict[tuple[str, int], Forecast]:
    return {(each.draft, each.num_speculative_tokens): each for each in found}


def test_a_draft_that_is_always_right_takes_the_fewest_steps() -> None:
    found = by_setting(forecasts([answered(*range(12), kept=1.0)], TIMES, COSTS))
    assert found["suffix", 0].tokens_per_second == pytest.approx(1.0)
    assert found["small", 3].tokens_per_second == pytest.approx(12 / (3 * (2.0 + 3 * 0.25)))  # three steps of four
    assert found["small", 3].tokens_per_step == pytest.approx(4.0)
    assert found["small", 4].tokens_per_second == pytest.approx(12 / (3 * (3.0 + 4 * 0.25)))  # 5, 5 and 2 tokens
    assert {k for draft, k in found if draft == "small"} == set(range(1, 8))  # as the widest pass has room for
    # one that is never right costs its passes, and verification takes its time of every token
    never = by_setting(forecasts([answered(*range(6), kept=0.0)], TIMES, COSTS))
    assert never["small", 1].speedup.value == pytest.approx(1 / 1.75)
    assert best_of([*never.values()], "lossless").draft == "suffix"
    slow = by_setting(forecasts([answered(*range(12), kept=1.0, verify=0.5)], TIMES, COSTS))
    assert slow["suffix", 0].tokens_per_second == pytest.approx(1 / 1.5)
    assert slow["small", 3].tokens_per_second == pytest.approx(12 / (3 * 2.75 + 12 * 0.5))


def test_a_draft_that_is_behind_reads_two_tokens() -> None:
    """Of steps whose proposals are kept with chance a, a share of a^k keep all k."""
    answers = [answered(*range(4000), kept=0.5)]
    free = by_setting(forecasts(answers, TIMES, COSTS))
    found = by_setting(forecasts(answers, TIMES, {"small": replace(TIMES, draft=0.25, pair=0.75)}))
    for k in (1, 2, 3):
        steps = 4000 / free["small", k].tokens_per_step
        seconds = 4000 / free["small", k].tokens_per_second + steps * 0.5**k * 0.5
        assert found["small", k].tokens_per_second == pytest.approx(4000 / seconds, rel=1e-3)


def test_copies_are_replayed_step_by_step() -> None:
    #              finds 2 3 9, of which 2 and 3 are right; then nothing; then one that is wrong
    copied = [[2, 3, 9], [3], [], [], [7, 7], []]
    found = by_setting(forecasts([answered(2, 3, 4, 5, 6, 8, copied=copied)], TIMES, COSTS))
    three = found["suffix", 3]
    assert three.tokens_per_step == pytest.approx(6 / 4)  # 2 3 4 | 5 | 6 | 8
    assert three.tokens_per_second == pytest.approx(6 / (2.0 + 1.0 + 2.0 + 1.0))
    one = found["suffix", 1]
    assert one.tokens_per_second == pytest.approx(6 / (1.5 + 1.0 + 1.0 + 1.5 + 1.0))  # 2 3 | 4 | 5 | 6 | 8


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.floats(0.01, 2.0))
def test_nothing_is_faster_than_its_proposals_allow(chances: list[float], cost: float) -> None:
    answer = TunedAnswer(
        [0] * len(chances), [[]] * len(chances), {("small", "r"): torch.tensor(chances, dtype=torch.float64)}, 0.0
    )
    for each in forecasts([answer], TIMES, {"small": replace(TIMES, draft=cost)}):
        k = each.num_speculative_tokens
        assert 1 - 1e-9 <= each.tokens_per_step <= k + 1 + 1e-9
        if each.draft == "small":
            assert each.tokens_per_second <= (k + 1) / (TIMES.of(k + 1) + k * cost) + 1e-9


def test_a_rule_is_recommended_for_itself_and_look_up_for_any() -> None:
    def one(draft: str, rule: str, speed: float) -> Forecast:
        return Forecast(draft, rule, 3, speed, 2.0, Interval(speed, speed, speed))

    found = [one("suffix", "lossless", 1.1), one("small", "lossless", 1.3), one("small", "loose", 1.2)]
    assert best_of(found, "loose").rule == "loose"
    assert best_of(found, "lossless").tokens_per_second == 1.3
    assert best_of([one("suffix", "lossless", 1.5), *found], "loose").draft == "suffix"


@all_of("interval, proposals, paying, said", [
    (Interval(1.03, 1.02, 1.04), 1, False, "Do not speculate here: at best 3 % faster (small with 1 proposal)"),
    (Interval(0.8, 0.7, 0.9), 1, False, "Do not speculate here: at best 25 % slower (small with 1 proposal)"),
    (Interval(2.2, NAN, NAN), 1, False,
     "It cannot be told whether to speculate here: small with 1 proposal: 2.20 times as fast as none, but an interval "
     "takes 6 answers"),
    (Interval(0.8, NAN, NAN), 1, False, "It cannot be told"),
    (Interval(1.2, 1.0, 1.5), 1, False, "It cannot be told"),
    (Interval(1.2, 1.01, 1.5), 1, True, "small with 1 proposal: 1.20 times"),
    (Interval(1.2, 0.9, 1.5), 1, False,
     "It cannot be told whether to speculate here: small with 1 proposal: 1.20 times"),
    (Interval(0.98, 0.9, 1.06), 1, False, "It cannot be told"),
    (Interval(1.0, 0.97, 1.03), 1, False, "Do not speculate here"),  # less than counts, whatever it is
    (Interval(1.5, 1.4, 1.62), 7, True,
     "small with 7 proposals: 1.50 times as fast as none (95 % interval over prompts: 1.40 to 1.62)"),
])  # fmt: skip
def test_what_hardly_pays_is_said_not_to(interval: Interval, proposals: int, paying: bool, said: str) -> None:
    told = Forecast("small", "lossless", proposals, 1.0, 1.5, interval)
    assert pays(told) is paying
    assert speedup_sentence(told).startswith(said)


def spread(count: int) -> Forecast:
    """Return the forecast of a draft that is right all along every third answer, and never in the others."""
    answers = [answered(*range(12), kept=1.0 if place % 3 == 0 else 0.0) for place in range(count)]
    times = PassTimes(((1, 1.0), (8, 1.1)), draft=0.01)
    return by_setting(forecasts(answers, times, {"small": times}))["small", 7]


def test_a_gain_on_one_prompt_of_three_is_no_reason_to_speculate_and_alike_gains_on_six_are() -> None:
    few, more = spread(3), spread(6)
    assert not few.speedup.has_ends
    assert few.speedup.value >= 1 + WORTH  # by itself it would be recommended
    assert not pays(few)
    assert speedup_sentence(few).endswith("but an interval takes 6 answers")
    assert more.speedup.has_ends
    assert more.speedup.low < 1
    assert not pays(more)
    for count, paying in ((5, False), (6, True)):  # a draft that gains the same everywhere
        alike = by_setting(forecasts([answered(*range(12), kept=1.0)] * count, TIMES, COSTS))
        assert pays(alike["small", 3]) is paying
        assert pays(alike["suffix", 3]) is False  # nothing is copied: as fast as none
        if count == 6:
            assert alike["small", 3].speedup.low == alike["small", 3].speedup.value
            assert speedup_sentence(alike["suffix", 3]).startswith("Do not speculate here: at best 0 % slower")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def written(target: Path, tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"recommended": Profile.of(f"{target}:threads=2", "ngram", 3, 2).as_dict()}))
    return path


def test_a_profile_is_read_as_it_was_written(written: Path, target: Path) -> None:
    found = Profile.read(written)
    assert found == Profile.of(f"{target}:threads=2", "ngram", 3, 2)
    assert found.files == {f"{target}:threads=2": [7, target.stat().st_mtime_ns], "ngram": []}


@all_of("changes", [{"threads": 0}, {"threads": "2"}, {"num_speculative_tokens": -1}, {"draft": ""}, {"files": []},
                    None])  # fmt: skip
def test_what_is_no_profile_is_refused(written: Path, tmp_path: Path, changes: dict[str, object] | None) -> None:
    path, kept = tmp_path / "none.json", json.loads(written.read_text())["recommended"]
    texts = ["[]", "{}", "{", '{"recommended": 3}', '{"recommended": {"target": "a"}}']
    for text in texts if changes is None else [json.dumps({"recommended": kept | changes})]:
        path.write_text(text)
        with pytest.raises(ValueError, match=r"none\.json(' is no profile|, line 1)"):
            Profile.read(path)
    with pytest.raises(ValueError, match="cannot read the profile"):
        Profile.read(tmp_path / "missing.json")


def test_other_files_and_another_machine_are_refused(written: Path, target: Path, monkeypatch) -> None:
    target.write_bytes(b"other weights")
    with pytest.raises(ValueError, match=r"is of another '.*target\.gguf:threads=2' than is there now: run"):
        Profile.read(written)
    monkeypatch.setattr(module, "machine_key", lambda: {"processor": "cpu Z80", "cores": 1})
    with pytest.raises(ValueError, match=r"is of a machine with processor '.*', but this one has 'cpu Z80': run"):
        Profile.read(written)


def test_a_folder_is_known_by_its_weights(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"1")
    (tmp_path / "two.safetensors").write_bytes(b"22")
    assert file_key(str(tmp_path))[0] == 3
    assert file_key("owner/name") == []
    assert default_place("owner/name").name.startswith("name-")
    assert default_place("a/b.gguf") != default_place("b.gguf")
