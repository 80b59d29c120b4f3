"""Checkpoints that are whole are told from those that a kill cut off."""

from __future__ import annotations

from cactus_decoding.lab.training.acceptance.fitting import last_whole


def test_the_last_whole_checkpoint_is_gone_on_from_and_later_ones_are_removed(tmp_path):
    assert last_whole(tmp_path / "missing") is None
    for step, whole in ((2, True), (10, True), (9, False), (12, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        if whole:
            (folder / "whole").touch()
    (tmp_path / "notes").mkdir()
    assert last_whole(tmp_path) == tmp_path / "checkpoint-10"
    assert {each.name for each in tmp_path.iterdir()} == {"checkpoint-2", "checkpoint-9", "checkpoint-10", "notes"}


def test_without_a_whole_one_training_begins_anew(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    assert last_whole(tmp_path) is None
    assert not any(tmp_path.iterdir())
