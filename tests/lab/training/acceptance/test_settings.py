"""Settings of a training: what goes together, and what is refused before any work."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.lab.training import TrainingSettings
from cactus_decoding.lab.training.acceptance.fitting import last_whole
from cactus_decoding.lab.training.acceptance.settings import AdaSpec, parse_filter

GIVEN = {"target": "bundled", "data": "a.jsonl", "draft": "bundled:worded"}


def test_settings_are_plain_values_in_one_spelling():
    settings = TrainingSettings(**GIVEN, loss="relaxed:clamped:width=3", filter="adaspec:keep=0.40")
    assert (settings.loss, settings.filter) == ("relaxed:clamped:width=3.0", "adaspec")
    assert TrainingSettings(**json.loads(json.dumps(settings.as_dict()))) == settings


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"loss": "kll"}, "unknown loss 'kll'.*did you mean 'kl'"),
        ({"filter": "adaspc"}, "unknown filter 'adaspc'.*did you mean 'adaspec'"),
        ({"filter": "adaspec:keep=0"}, "keep must be in"),
        ({"draft": None}, "give one start: .*; none of them are given"),
        ({"layers": 2, "width": 8}, "give one start: .*; several of them are given"),
        ({"draft": None, "layers": 2}, "layers and width go together"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be in"),
        ({"on_policy": 1.5}, "on_policy must be in"),
        ({"on_policy": 0.5, "loss": "cross_entropy"}, "cross_entropy learns the texts' own tokens"),
        ({"on_policy": 0.5, "cache": "rows"}, "a cache keeps rows of texts that stay"),
        ({"on_policy": 0.5, "refresh_every": 30}, "evaluate_every must be a multiple of refresh_every"),
    ],
)
def test_what_does_not_go_together_is_refused(others, message):
    with pytest.raises(ValueError, match=message):
        TrainingSettings(**(GIVEN | others))


def test_the_filter_is_spelled():
    assert parse_filter("adaspec") == AdaSpec(keep=0.4)
    assert str(AdaSpec(keep=0.25)) == "adaspec:keep=0.25"


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
