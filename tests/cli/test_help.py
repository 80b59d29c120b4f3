"""Help fits three screens, and ``--help-all`` leaves nothing out."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from cactus_decoding.cli.app import app
from cactus_decoding.cli.help import Application, commands_of, left_out_of_help

COMMANDS = commands_of(app)
LEFT_OUT = left_out_of_help()
LINES = 80


@pytest.fixture(autouse=True)
def hundred_columns(monkeypatch, settings_of_the_libraries):
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_three_screens(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert len(out.splitlines()) <= LINES
    left_out = [each for each in COMMANDS[name].params if each.name in LEFT_OUT and not each.required]
    if left_out:
        last = out.strip().splitlines()[-1].strip()
        assert last.startswith(f"{len(left_out)} more option")
        assert last.endswith(f"cactus {name} --help-all")


@pytest.mark.parametrize("name", COMMANDS)
def test_all_help_shows_every_option_to_its_last_word(run, name):
    code, out, _ = run(name, "--help-all")
    assert code == 0
    # words of all panels run together: what breaks over lines is whole, and borders are no words
    words = " ".join(each for each in out.split() if each != "│")
    for parameter in COMMANDS[name].params:
        for option in parameter.opts if parameter.param_type_name == "option" else ():
            assert option in out
        for word in (parameter.help or "").replace("[", " [").split():
            assert word in words or "-" in word, (parameter.name, word)
    for line in (COMMANDS[name].epilog or "").split("\n\n"):
        assert " ".join(line.replace("[bold]", "").replace("[/bold]", "").split()) in words


def test_the_list_of_commands_says_what_their_own_help_begins_with():
    listed: Any = typer.main.get_command(app)
    for name, command in COMMANDS.items():
        assert listed.commands[name].help == command.help.split("\n\n")[0]


def test_neighbouring_commands_name_each_other():
    neighbours = {"diagnose", "frontier", "calibrate"}
    for name in neighbours:
        told = COMMANDS[name].help
        assert "Asks " in told
        assert any(f"'cactus {other}'" in told for other in neighbours - {name})


def test_what_a_command_requires_is_never_left_out(capsys):
    application = Application(rich_markup_mode="rich", add_completion=False)

    @application.command()
    def command(memory: int = typer.Option(..., help="Of it. And more."), threads: int = 1) -> None:
        """Do nothing."""

    with pytest.raises(SystemExit):
        application(["--help"])
    out = capsys.readouterr().out
    assert "--memory" in out
    assert "--threads" not in out
    assert "And more" not in out
    assert "1 more option, and more on these" in out
