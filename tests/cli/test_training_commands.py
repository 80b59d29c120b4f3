"""`cactus train-draft`: what it writes, and that Ctrl-C loses little."""

from __future__ import annotations

import json
import re
import signal

import pytest
from support.command_line import process
from support.draft_training import write_data

from cactus_decoding.core.files.writing import part_path


@pytest.fixture
def command(tmp_path):
    data = write_data(tmp_path / "data.jsonl")
    return ("train-draft", "--target", "bundled", "--draft", "bundled:worded", "--data", str(data), "--steps", "6",
            "--batch", "2", "--evaluate-every", "2", "--output", str(tmp_path / "draft"), "--threads", "1")  # fmt: skip


@pytest.mark.slow
def test_a_draft_is_trained_and_used(succeed, command, tmp_path):
    out, err = succeed(*command)
    first, *_, last = out.splitlines()
    assert re.fullmatch(r"lossless: \d\.\d\d to \d\.\d\d tokens per step of 6 proposals", first)
    assert last == f"wrote {tmp_path / 'draft'}, with a README.md"
    assert "Training: 6/6" in err
    assert "acceptance length" in err
    assert "Measuring the draft: 3/3" in err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data.jsonl", "draft"]
    out, err = succeed("generate", "How many legs do 3 cats have?", "--draft", str(tmp_path / "draft"), "--seed", "1",
                       "--json")  # fmt: skip
    assert json.loads(out)["arguments"]["draft"] == str(tmp_path / "draft")


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_goes_on(command, tmp_path):
    first = process(*command)
    assert first.stderr is not None
    while "Training: 3/6" not in first.stderr.readline():
        pass
    first.send_signal(signal.SIGINT)
    _, err = first.communicate()
    work = part_path(tmp_path / "draft")
    assert first.returncode == 130
    assert err.splitlines()[-1] == f"cactus: interrupted; what is done is in {work}: the same command goes on"
    assert work.exists()
    second = process(*command)
    out, err = second.communicate()
    assert second.returncode == 0, err
    assert "Training: 1/6" not in err
    assert out.splitlines()[-1].startswith("wrote")
    assert not work.exists()
