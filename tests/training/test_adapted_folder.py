"""The folder of a draft that is trained while it serves: what it keeps, for how long, and who may write it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cactus_decoding import load_pair, zoo
from cactus_decoding.files.writing import part_of
from cactus_decoding.models.loading import load_model, load_tokenizer
from cactus_decoding.training.acceptance.data import TokenSequence
from cactus_decoding.training.adaptation import DraftAdaptation
from cactus_decoding.training.adapted_folder import AdaptedFolder, Record, Text

SLOW_SECONDS = 100.0
"""As if a response had taken so long: there is time for any step."""
TARGET = str(zoo.path("target"))


def text_of(tokens: int) -> Text:
    nothing = torch.zeros(tokens - 1, 1)
    return Text(TokenSequence([1] * tokens, 1), nothing.long(), nothing)


def weights_of(draft: Path | DraftAdaptation) -> torch.Tensor:
    pair = draft.pair if isinstance(draft, DraftAdaptation) else load_pair(draft=draft)
    return torch.cat([each.detach().flatten().clone() for each in pair.drafter.model.parameters()])


def recorded(folder: Path) -> dict:
    return json.loads((folder / "adaptation.json").read_text())


def test_the_folder_is_a_model_that_grows_and_is_whole_when_a_saving_fails(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "adapted"
    with DraftAdaptation.load(folder) as adaptation:
        assert torch.equal(weights_of(folder), weights_of(zoo.path("worded")))
        assert adaptation.learn(text_of(10), SLOW_SECONDS)
    changed = weights_of(adaptation)
    assert torch.equal(weights_of(folder), changed)
    again = DraftAdaptation.load(folder)
    assert torch.equal(weights_of(again), changed)
    assert again.learn(text_of(12), SLOW_SECONDS)

    def full(*arguments) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        again.save()
    monkeypatch.undo()
    assert torch.equal(weights_of(folder), changed)
    again.close()
    assert torch.equal(weights_of(folder), weights_of(again))
    assert not list(folder.glob(".*"))
    assert list(tmp_path.iterdir()) == [folder]


def test_the_share_of_the_time_holds_over_all_processes_and_savings_count(tmp_path: Path, monkeypatch) -> None:
    folder, clock = tmp_path / "adapted", [0.0]
    DraftAdaptation.load(folder).close()
    first = recorded(folder)
    assert (first["steps"], first["seconds"], first["draft"]) == (0, 0.0, "bundled:worded")
    pair, stage = load_pair(draft=folder), AdaptedFolder.stage
    monkeypatch.setattr("cactus_decoding.training.adaptation.time.perf_counter", lambda: clock[0])

    def step(self: DraftAdaptation, texts: list[Text]) -> None:
        clock[0] += 0.001 * sum(len(each.sequence.token_ids) for each in texts)
        self._changed, self.steps = True, self.steps + 1

    def staged(*arguments) -> None:
        clock[0] += 0.05
        stage(*arguments)

    monkeypatch.setattr(DraftAdaptation, "_step", step)
    monkeypatch.setattr(AdaptedFolder, "stage", staged)
    (folder / "adaptation.json").write_text(json.dumps(first | {"saving_seconds": 0.05}))
    took = []
    for _ in range(40):  # a process for each response, as `cactus generate` is
        with DraftAdaptation(pair, AdaptedFolder(folder)) as adaptation:
            took.append(adaptation.learn(text_of(100), 0.7))
        found = recorded(folder)
        # the first step and its saving take 0.15 s, which is not known before
        assert found["seconds"] <= max(0.1 * found["response_seconds"], 0.15 + 1e-9)
    assert took[:3] == [True, False, False]
    assert found["response_seconds"] == pytest.approx(28.0)
    assert found["steps"] == sum(took) > 10
    assert found["seconds"] > 0.07 * found["response_seconds"]
    assert "steps (0 of them now)" in adaptation.summary() or "steps (1 of them now)" in adaptation.summary()


def test_of_a_draft_in_16_bits_no_step_is_too_small_to_last(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("cactus_decoding.models.loading.fastest_dtype", lambda stored, *_, **__: stored)
    source, folder = tmp_path / "source", tmp_path / "adapted"
    load_model("draft", zoo.path("worded"), torch.bfloat16, torch.device("cpu")).save_pretrained(source)
    load_tokenizer("draft", zoo.path("worded")).save_pretrained(source)
    before = load_file(source / "model.safetensors")
    for _ in range(3):  # steps of a tenth of what bfloat16 can tell apart
        with DraftAdaptation.load(folder, TARGET, source if _ == 0 else None, learning_rate=1e-6) as adaptation:
            assert adaptation.learn(text_of(12), SLOW_SECONDS)
            assert adaptation.pair.drafter.model.dtype == torch.bfloat16
    kept = load_file(folder / "model.safetensors")
    moved = torch.cat([(kept[name] - before[name].float()).flatten().abs() for name in before])
    assert set(kept) == set(before)
    assert float(moved.median()) > 2e-6
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_pair(TARGET, folder).drafter.model.dtype == torch.bfloat16


def test_one_process_at_a_time_and_the_second_loads_nothing(tmp_path: Path) -> None:
    new, begun, broken = tmp_path / "new", tmp_path / "begun", tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    DraftAdaptation.load(begun).close()
    for folder in (new, begun):
        with pytest.raises(ValueError, match="cannot load"):
            DraftAdaptation.load(folder, str(broken), None if folder == begun else str(broken))
        held = AdaptedFolder(folder)
        with pytest.raises(ValueError, match=f"another process is writing '{folder}'"):
            DraftAdaptation.load(folder, str(broken), None if folder == begun else str(broken))
        held.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["begun", "broken"]


def test_what_a_killed_beginning_has_left_is_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "adapted"
    part = part_of(folder)
    (part / "inner").mkdir(parents=True)
    (part / "model-00001-of-00002.safetensors").write_text("half")
    folder.mkdir()  # an empty one is as good as none
    DraftAdaptation.load(folder).close()
    assert not part.exists()
    assert not (folder / "inner").exists()
    assert not list(folder.glob("model-*"))
    with pytest.raises(ValueError, match="cannot load"):
        DraftAdaptation.load(tmp_path / "other" / "adapted", draft=tmp_path / "deep")
    assert [each.name for each in tmp_path.iterdir()] == ["deep"]


def test_other_folders_and_other_drafts_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    full, model, begun = tmp_path / "full", tmp_path / "model", tmp_path / "begun"
    for folder, name in ((full, "notes.txt"), (model, "config.json")):
        folder.mkdir()
        (folder / name).write_text("{}")
    DraftAdaptation.load(begun, draft="bundled:draft").close()
    with pytest.raises(ValueError, match="it is not empty; give a new folder"):
        DraftAdaptation.load(full)
    with pytest.raises(ValueError, match="give that model as the draft, and a new folder"):
        DraftAdaptation.load(model)
    with pytest.raises(ValueError, match="began as a copy of 'bundled:draft', and not of 'bundled:worded'"):
        DraftAdaptation.load(begun, draft="bundled")
    with pytest.raises(ValueError, match="and not of 'nonsense/none'"):
        DraftAdaptation.load(begun, TARGET, "nonsense/none")
    for draft in ("ngram", "early_exit:layers=1"):
        with pytest.raises(ValueError, match="weights of its own"):
            DraftAdaptation.load(begun, draft=draft)
    DraftAdaptation.load(begun, draft="bundled:draft").close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["begun", "full", "model"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"draft": 1}', '{"draft": "a", "steps": -1}', '{"draft": "a", "seconds": NaN}',
             '{"draft": "a", "seconds_per_token": [0]}', '{"draft": "a", "more": 1}']
)  # fmt: skip
def test_a_record_that_is_none_is_said_so(tmp_path: Path, text) -> None:
    (tmp_path / "adaptation.json").write_text(text)
    with pytest.raises(ValueError, match=r"adaptation\.json' is no record of an adaptation: "):
        Record.read(tmp_path / "adaptation.json")
    with pytest.raises(ValueError, match="is no record"):
        AdaptedFolder(tmp_path)
