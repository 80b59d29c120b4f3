"""`factory.train_bundled`: what is resumed, replaced and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from cactus_decoding import zoo
from factory.language_model import TrainingPlan
from factory.train_bundled import Recipe, train_role, train_roles

TINY = {
    role: Recipe(
        width=64,
        layers=1,
        mlp_width=32,
        plans=(
            TrainingPlan(steps=4, batch_size=4, warmup=2, seed=seed, emphasis=2.0, emphasis_after=1, drills_after=2),
            TrainingPlan(steps=3, batch_size=4, warmup=1, seed=seed + 2, long=True),
        ),
    )
    for seed, role in enumerate(("target", "draft"))
}


pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(zoo.path("target"))


@pytest.fixture
def work(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "work" / "tokenizer")
    return tmp_path / "work"


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("last_step", [3, 6], ids=["first plan", "second plan"])
def test_an_interrupted_training_resumes_to_the_same_weights(work, tmp_path, capsys, last_step):
    train_roles(tmp_path / "whole", work, ["draft"], TINY, force=False)

    def interrupt(step, loss):
        if step == last_step:
            raise KeyboardInterrupt

    again = tmp_path / "again"
    for checkpoint in work.glob("*.pt"):
        checkpoint.unlink()
    with pytest.raises(KeyboardInterrupt):
        train_role(again, work, "draft", interrupt, recipes=TINY, seconds_between_checkpoints=0)
    assert not again.exists()
    capsys.readouterr()
    train_roles(again, work, ["draft"], TINY, force=False)
    assert f"draft: resumed after step {last_step - 1}" in capsys.readouterr().err
    expected, found = weights(tmp_path / "whole" / "draft"), weights(again / "draft")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    train_roles(again, work, ["draft"], TINY, force=True)
    assert "draft: the training had been finished before" in capsys.readouterr().err


def test_a_model_is_replaced_as_a_whole_or_not_at_all(work, tmp_path):
    output = tmp_path / "output"
    (output / "draft").mkdir(parents=True)
    (output / "draft" / "precious").touch()
    with pytest.raises(ValueError, match="exists; choose another output"):
        train_roles(output, work, ["target", "draft"], TINY, force=False)
    assert not (output / "target").exists()

    def fail(step, loss):
        raise RuntimeError("no more power")

    with pytest.raises(RuntimeError, match="no more power"):
        train_role(output, work, "draft", fail, recipes=TINY, overwrite=True)
    assert (output / "draft" / "precious").exists()
    train_roles(output, work, ["draft"], TINY, force=True)
    assert not (output / "draft" / "precious").exists()
    assert [path.name for path in output.iterdir()] == ["draft"]


def test_checkpoints_that_do_not_fit_are_refused(work, tmp_path):
    train_roles(tmp_path, work, ["draft"], TINY, force=False)
    longer = {"draft": replace(TINY["draft"], plans=(replace(TINY["draft"].plans[0], steps=6),))}
    with pytest.raises(ValueError, match="is of another training plan"):
        train_roles(tmp_path, work, ["draft"], longer, force=True)
    wider = {"draft": replace(TINY["draft"], mlp_width=48)}
    with pytest.raises(ValueError, match="damaged or of another model"):
        train_roles(tmp_path, work, ["draft"], wider, force=True)
    (work / "draft-1.pt").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="damaged or of another model"):
        train_roles(tmp_path, work, ["draft"], TINY, force=True)
    with pytest.raises(ValueError, match="role must be one of target, draft, but is 'teacher'"):
        train_role(tmp_path, work, "teacher", print, recipes=TINY)
