"""What passes cost: measured once, kept in a file, and said to be wrong where that holds something else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from support.loop_runs import decided, run
from support.pass_times import PASS_TIMES
from support.tiny_models import tiny_llama

from cactus_decoding import AutoLength, ModelDrafter, NgramDrafter, Pair, load_pair, stream
from cactus_decoding.core.drafting import measuring as module
from cactus_decoding.core.drafting.measuring import measure_passes, pass_times
from cactus_decoding.core.drafting.timing import BUSY, PassTimes
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.zoo.word_problems import word_problems

TIMES = PassTimes(((1, 1.0), (2, 1.1), (4, 1.3), (8, 1.5)), draft=0.05, reading=0.01)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_KNOWN", {})


class Timed(CachedModel):
    """Its passes take what a function of their tokens, and of how many passes there were before, says."""

    now = 0.0

    def __init__(
        self, seed: int, takes: Callable[[int, int], float] = lambda count, number: 1 + 0.1 * count, **shape: int
    ) -> None:
        super().__init__(tiny_llama(seed, **shape))
        self.takes, self.read, self.tokens = takes, list[int](), list[list[int]]()

    def append(self, token_ids, rows, positions=None, mask=None):
        Timed.now += self.takes(len(token_ids), len(self.read))
        self.read.append(len(token_ids))
        self.tokens.append([*token_ids])
        return super().append(token_ids, rows, positions, mask)


def by_the_tests_clock(*models: Any, **given: Any) -> PassTimes:
    return measure_passes(*models, **{"clock": lambda: Timed.now, "now": lambda: 0.0} | given)


def test_passes_of_both_models_are_timed_and_forgotten() -> None:
    model, draft = Timed(0), Timed(1)
    found = by_the_tests_clock(model, ModelDrafter(draft))
    assert dict(found.target) == pytest.approx({width: 1 + 0.1 * width for width in (1, 2, 3, 4, 8, 12, 16)})
    assert found.draft == pytest.approx(1.1)
    assert found.reading == pytest.approx(0.1, abs=0.02)
    assert found.pair == pytest.approx(1.2)
    assert model.length == draft.length == 0


def paced(seed: int, seconds: float) -> Timed:
    """Return a model whose passes take so many seconds over one token, and two thirds of that for each further one."""
    return Timed(seed, lambda count, number: seconds * (1 + 2 * count) / 3)


@pytest.mark.parametrize("seconds", [0.02, 0.04, 0.1, 0.15, 0.3, 0.5, 1.0, 4.0])
def test_measuring_ends_after_three_seconds_or_the_time_of_six_tokens(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = paced(0, seconds), paced(1, 0.27 * seconds)
    monkeypatch.setattr(Timed, "now", 0.0)
    found = by_the_tests_clock(target, ModelDrafter(draft), now=lambda: Timed.now)
    assert Timed.now <= max(module.MEASURING_SECONDS, 6 * seconds)
    assert dict(found.target) == pytest.approx({width: seconds * (1 + 2 * width) / 3 for width in found.widths})
    assert found.draft == pytest.approx(0.27 * seconds)
    assert found.reading <= 0.27 * seconds
    assert found.widths[:2] == [1, 2]
    assert len(found.widths) == (7 if seconds <= 0.04 else len(found.widths))
    assert (len(target.read) > 1 + len(found.widths)) is (seconds <= 0.3)  # some were timed again


def test_measuring_that_has_no_end_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEASURING_SECONDS", 1e9)
    monkeypatch.setattr(Timed, "now", 0.0)
    by_the_tests_clock(paced(0, 1.0), NgramDrafter(), now=lambda: Timed.now)
    assert Timed.now > 30


def test_steps_are_timed_where_passes_are_short(target: CachedModel) -> None:
    found, alone = (measure_passes(target, NgramDrafter(), steps=each) for each in (lambda clock: (100.0, 300.0), None))
    assert [round(seconds) for _, seconds in found.target] == [100, *[300] * 6]
    assert max(seconds for _, seconds in alone.target) < 10
    found = by_the_tests_clock(Timed(0), NgramDrafter(), steps=lambda clock: pytest.fail("asked"))
    assert found.of(1) == pytest.approx(1.1)


def test_a_pair_times_steps_with_and_without_a_proposal(target: CachedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    widths, append = list[int](), target.append

    def watched(token_ids, *given, **named):
        widths.append(len(token_ids))
        return append(token_ids, *given, **named)

    monkeypatch.setattr(target, "append", watched)
    pair = Pair(target, NgramDrafter(), load_pair().tokenizer)
    with pair.reserve():
        ticks = count()
        assert pair.step_seconds(lambda: float(next(ticks))) == (1.0, 1.0)
    assert {1, 2} <= set(widths)
    assert target.length == 0
    monkeypatch.setattr(module, "measure_passes", measure_passes)
    monkeypatch.setattr(Pair, "step_seconds", lambda pair, clock: (100.0, 100.0))
    pair.prepare(AutoLength())
    assert pair.pass_times(AutoLength())["target"][0][1] == pytest.approx(100)  # type: ignore[index]


def test_passes_and_steps_are_timed_on_real_text() -> None:
    """A mixture's pass reads the experts that its tokens ask for: one token again and again would be too cheap."""
    tokenizer = load_pair(draft="suffix").tokenizer
    problem = next(word_problems("validation"))
    text = tokenizer(f"{problem.prompt} {problem.solution}").input_ids
    model = Timed(0, vocabulary=len(tokenizer))
    pair = Pair(model, NgramDrafter(), tokenizer, bundled=True)
    by_the_tests_clock(model, NgramDrafter())
    context, *passes = model.tokens
    assert len(set(text[:18])) > 12
    assert {tuple(each) for each in passes} == {tuple(text[len(context) :][:width]) for width in module.PASS_WIDTHS}
    assert len(passes) >= 2 * len(module.PASS_WIDTHS)  # runs are compared with each other
    model.tokens.clear()
    with pair.reserve():
        pair.step_seconds(lambda: Timed.now)
    assert len({*model.tokens[0]} & {*text}) > 10
    proposed = [each[1] for each in model.tokens if len(each) == 2]
    assert len({*proposed} & {*text}) > 5
    model.sample_text = lambda: [7] * 40  # whatever text the model has is what is read
    model.tokens.clear()
    by_the_tests_clock(model, NgramDrafter())
    assert {token for each in model.tokens for token in each} == {7}


def test_what_decided_is_told_and_never_measured_for_it(target: CachedModel) -> None:
    pair = Pair(target, NgramDrafter(), load_pair().tokenizer)
    response = stream(pair, "a b", num_speculative_tokens="auto", max_new_tokens=2)
    told = pair.pass_times(AutoLength())
    assert told is not None
    assert "measured now, kept in" in told["source"]
    assert PassTimes.from_dict(told, told["source"]) == pass_times(target, NgramDrafter())
    assert response.pass_times == told
    assert stream(pair, "a b", num_speculative_tokens=2, max_new_tokens=2).pass_times is None
    assert pair.pass_times(AutoLength(profile=str(PASS_TIMES)))["source"] == str(PASS_TIMES)  # type: ignore[index]
    assert Pair(target, ModelDrafter(tiny_llama(1)), pair.tokenizer).pass_times(AutoLength()) is None


def test_they_are_measured_once_and_kept(target: CachedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = ModelDrafter(tiny_llama(1))
    first = pass_times(target, drafter)
    (file,) = (tmp_path / "cache").rglob("*.json")
    assert str(file) in first.source
    monkeypatch.setattr(module, "_KNOWN", {})  # as another process
    monkeypatch.setattr(module, "measure_passes", lambda *models, **_: pytest.fail("measured again"))
    again = pass_times(target, drafter)
    assert again.source == str(file)
    assert again.as_dict() == first.as_dict()


def test_they_stay_known_whatever_is_imported_later(target: CachedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server imports transformers behind its start: its second answer would be by other times than its first."""
    drafter = ModelDrafter(CachedModel(tiny_llama(1)))
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "transformers")
        measured = pass_times(target, drafter)
    assert pass_times(target, drafter) is measured


def test_short_passes_are_timed_until_some_are_undisturbed() -> None:
    short = Timed(0, lambda count, number: 0.006 if number % 3 else 0.001)  # threads wait for a core
    found = by_the_tests_clock(short, NgramDrafter())
    assert [seconds for _, seconds in found.target] == pytest.approx([0.001] * 7)


@pytest.mark.parametrize(("until", "kept"), [(8, True), (1_000, False)])
def test_times_of_a_busy_machine_are_kept_by_no_file(
    until: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads on a core that others want were timed nine times too long, and that was believed for good."""
    monkeypatch.setattr(module, "measure_passes", lambda *models, **_: by_the_tests_clock(*models))
    # the longer the more there were: no two runs agree, unless it was disturbed in the first alone
    model = Timed(0, lambda count, number: 1 + 0.1 * count + (3 * (number + 1) if number + 1 < until else 0))
    found = pass_times(model, NgramDrafter())
    assert ("on a busy machine" not in found.source) is kept
    assert len([*(tmp_path / "cache").rglob("*.json")]) == kept
    if kept:
        assert dict(found.target) == pytest.approx({width: 1 + 0.1 * width for width in (1, 2, 3, 4, 8, 12, 16)})


def test_times_by_which_two_tokens_are_read_sooner_than_one_are_of_a_busy_machine() -> None:
    model = Timed(0, lambda count, number: 1.35 if count == 1 else 0.3 * count)
    assert by_the_tests_clock(model, NgramDrafter()).source == BUSY
    model = Timed(0, lambda count, number: 0.38 if count == 1 else 0.3 + 0.01 * count)  # worse kernels
    assert by_the_tests_clock(model, NgramDrafter()).source != BUSY


def test_times_of_a_busy_machine_are_kept_by_no_file_whoever_measured(target: CachedModel, tmp_path: Path) -> None:
    for source, kept in ((BUSY, 0), ("given", 1)):
        assert module.keep_times(replace(TIMES, source=source), target, NgramDrafter()).target == TIMES.target
        assert len([*(tmp_path / "cache").rglob("*.json")]) == kept


def test_a_damaged_file_is_measured_anew(target: CachedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_times(target, NgramDrafter())
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.write_text("{")
    monkeypatch.setattr(module, "_KNOWN", {})
    assert "measured now" in pass_times(target, NgramDrafter()).source
    assert json.loads(file.read_text())["times"]["target"][0][0] == 1


def test_a_folder_that_cannot_be_written_does_not_matter(
    target: CachedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    first = pass_times(target, NgramDrafter())
    assert first.source.startswith(f"measured now, not kept in {tmp_path / 'cache'}")
    assert pass_times(target, NgramDrafter()) is first  # at least this process knows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is no profile: it has no 'times'"),
        ('{"times": {"target": [[2, 1]], "draft": 0, "reading": 0}}', "widths of passes must ascend from 1"),
        ('{"times": {"target": [[1, 0]], "draft": 0, "reading": 0}}', "must be positive"),
        ('{"times": {"draft": 0}}', "holds no times of passes: target is missing"),
        ('{"times": {"target": [[1, NaN]], "draft": 0, "reading": 0}}', "NaN|positive"),
        ('{"times": {"target": [[1e999, 1]], "draft": 0, "reading": 0}}', "holds no times|no profile|Infinity"),
        ("{", "line 1"),
    ],
)
def test_a_profile_that_is_none_is_refused(target: CachedModel, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        AutoLength(profile=str(path)).start(target, NgramDrafter(), 9)


def test_a_profile_that_is_not_there_is_named(target: CachedModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json"):
        AutoLength(profile=str(tmp_path / "none.json")).start(target, NgramDrafter(), 9)


def test_two_processes_that_measure_at_once_do_not_matter(
    target: CachedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, text: str) -> None:
        raise ValueError(f"another process is writing {path}")

    monkeypatch.setattr(module, "write_atomically", refused)
    assert pass_times(target, NgramDrafter()).target


def test_drafts_of_one_model_that_run_otherwise_are_told_apart(target: CachedModel, tmp_path: Path) -> None:
    pass_times(target, NgramDrafter())
    pass_times(target, ModelDrafter(tiny_llama(1)))
    pass_times(target, ModelDrafter(tiny_llama(1).float()))
    assert len([*(tmp_path / "cache").rglob("*.json")]) == 3


def test_seed_and_profile_repeat_a_response(target: CachedModel, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"times": TIMES.as_dict()}))
    drafter, length = ModelDrafter(tiny_llama(1)), AutoLength(profile=str(path))
    first, other, again = (decided(run(target, drafter, k=length, seed=seed, length=60)) for seed in (5, 6, 5))
    assert first == again != other
    assert len({len(step[0]) for step in first}) > 1


def test_a_draft_reads_one_by_one_where_two_at_once_take_longer(target: CachedModel, tmp_path: Path) -> None:
    made = []
    for pair in (0.1001, 0.0999):  # a proposal takes 0.05
        path = tmp_path / f"{pair}.json"
        path.write_text(json.dumps({"times": TIMES.as_dict() | {"pair": pair}}))
        draft = Timed(0)  # whose proposals are all kept
        made.append(decided(run(target, ModelDrafter(draft), k=AutoLength(profile=str(path)), seed=5, length=60)))
        assert (2 in draft.read[1:]) == (pair < 0.1)
        draft.read.clear()
        run(target, ModelDrafter(draft), k=2, seed=5)
        assert 2 in draft.read[1:]  # where nobody has measured
    assert made[0] == made[1]


def test_the_context_window_of_a_small_model_is_not_left() -> None:
    model = CachedModel(tiny_llama(0))
    model.model.config.max_position_embeddings = 12
    found = measure_passes(model, NgramDrafter())
    assert (found.draft, found.reading) == (0.0, 0.0)  # what copies costs nothing
    assert found.widths[0] == 1
    assert max(found.widths) <= 12
    assert torch.isfinite(torch.tensor([seconds for _, seconds in found.target])).all()
