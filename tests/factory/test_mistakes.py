"""What a careless user types to the factory: exit code 2, one sentence, and nothing that existed is damaged."""

from __future__ import annotations

import pytest

from cactus_decoding import zoo
from factory.check_bundled import check_bundled
from factory.command import main
from factory.train_bundled import train_bundled

TRAIN = ("--output", "new")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (train_bundled, (), "'--output'"),
        (train_bundled, ("--output", "x", "--role", "teacher"), "is not one of 'target', 'worded', 'draft', 'all'"),
        (train_bundled, ("--output", str(zoo.path("target").parent)), "exists; choose another output, or allow"),
        (train_bundled, ("--output", ""), "--output must be a folder with a name, such as ./trained"),
        (train_bundled, (*TRAIN, "--work", "/dev/null"), "'/dev/null' is no folder"),
        (train_bundled, (*TRAIN, "--work", "data.jsonl/work"), "cannot write to 'data.jsonl/work'"),
        (train_bundled, ("--output", "/proc/cactus"), "cannot write to '/proc/cactus'"),
        (train_bundled, ("--output", "nowhere"), "cannot write to 'nowhere'"),
        (check_bundled, ("--models", "/missing"), "there is no folder '/missing/target'"),
        (check_bundled, ("--models", "/dev/zero"), "there is no folder '/dev/zero/target'"),
        (check_bundled, ("--json", "/missing/result.json"), "cannot write '/missing/result.json': its folder is"),
        (check_bundled, ("--json", "circle"), "Too many levels of symbolic links"),
        (check_bundled, ("--num-speculative-tokens", "0"), "num_speculative_tokens must be at least 1, but is 0"),
    ],
)
@pytest.mark.usefixtures("settings_of_the_libraries")
def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, command, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").touch()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nowhere").symlink_to("missing/x")
    before = sorted(tmp_path.iterdir())
    code = main(command, arguments=arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("cactus: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", [train_bundled, check_bundled])
@pytest.mark.usefixtures("settings_of_the_libraries")
def test_help_says_how_it_is_called(capsys, command):
    assert main(command, arguments=["--help"]) == 0
    assert f"Usage: python -m factory.{command.__name__} " in capsys.readouterr().out
