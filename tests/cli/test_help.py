"""Help fits three screens, ``--help-all`` leaves nothing out, and commands choose from one list of options."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer
from support.tables import all_of

from cactus_decoding import Budget, Request
from cactus_decoding.cli.app import app
from cactus_decoding.cli.help import Application, commands_of, left_out_of_help
from cactus_decoding.cli.options import Settings, as_request, check_budget, request_options

COMMANDS = commands_of(app)
LEFT_OUT = left_out_of_help()
LINES = 80


@pytest.fixture(autouse=True)
def hundred_columns(monkeypatch, settings_of_the_libraries):
    monkeypatch.setenv("COLUMNS", "100")


@all_of("name", COMMANDS)
def test_help_fits_three_screens_and_all_help_shows_every_option_to_its_last_word(run, succeed, name):
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert f"usage: cactus {name}" in out.lower()
    assert len(out.splitlines()) <= LINES
    left_out = [each for each in COMMANDS[name].params if each.name in LEFT_OUT and not each.required]
    if left_out:
        last = out.strip().splitlines()[-1].strip()
        assert last.startswith(f"{len(left_out)} more option")
        assert last.endswith(f"cactus {name} --help-all")
    out, _ = succeed(name, "--help-all")
    # words of all panels run together: what breaks over lines is whole, and borders are no words
    words = " ".join(each for each in out.split() if each != "│")
    for parameter in COMMANDS[name].params:
        for option in parameter.opts if parameter.param_type_name == "option" else ():
            assert option in out
        for word in (parameter.help or "").replace("[", " [").split():
            assert word in words or "-" in word, (parameter.name, word)
    for line in (COMMANDS[name].epilog or "").split("\n\n"):
        assert " ".join(line.replace("[bold]", "").replace("[/bold]", "").split()) in words


def test_help_is_listed_as_it_begins():
    listed: Any = typer.main.get_command(app)
    for name, command in COMMANDS.items():
        assert listed.commands[name].help == command.help.split("\n\n")[0]


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


def test_what_is_written_goes_by_one_name():
    spelled = [(name, each.opts) for name, command in COMMANDS.items() for each in command.params
               if "--output" in each.opts]  # fmt: skip
    assert all(opts == ["--output"] for _, opts in spelled)
    writing = {"eval", "frontier", "report", "trace", "train-draft"}
    assert writing < {name for name, _ in spelled}


ALL = ("rule", "budget", "policy", "proposals", "sampling", "answer")


def asked(*arguments: str, groups: tuple[str, ...] = ALL, **defaults: object) -> Settings:
    """Return what a command with these options is called with."""
    found = []
    app = typer.Typer()

    @app.command()
    @request_options(*groups, **defaults)
    def command(*, first: int = 1, settings: Settings, last: bool = False) -> None:
        """Say nothing."""
        found.append(settings)

    app(list(arguments), standalone_mode=False)
    return found[0]


def test_every_option_reaches_the_request():
    assert as_request(asked()) == Request()
    given = "--rule clamped:width=2 --budget 0.5 --expected-tokens 60 --num-speculative-tokens 4 --verification token"
    given += " --temperature 0.6 --top-k 20 --top-p 0.9 --min-p 0.1 --max-new-tokens 12 --seed 3 --stop A --stop B"
    given += " --protect digits --protect-threshold 0.02 --lossless-tokens 5 --relax-within <a> </a>"
    request = as_request(asked(*given.split()))
    assert request.as_dict() == {
        "rule": "clamped:width=2.0", "budget_nats": 0.5, "max_shift": None, "expected_tokens": 60,
        "protect": "digits", "protect_threshold": 0.02, "lossless_tokens": 5, "relax_within": ["<a>", "</a>"],
        "verification": "token", "num_speculative_tokens": 4, "tree": None,
        "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1,
        "max_new_tokens": 12, "stop": ["A", "B"], "seed": 3,
    }  # fmt: skip
    shift = as_request(asked("--rule", "clamped:width=2", "--max-shift", "0.1"))
    assert shift.budget == Budget(max_shift=0.1)
    check_budget({"budget_nats": 1.0, "max_shift": None, "expected_tokens": None}, "lossless", "typical")


def test_a_command_chooses_options_and_defaults_which_stand_where_the_settings_stood():
    assert asked("--top-k", "5", groups=("temperature", "top_k"), temperature=0.5) == {"temperature": 0.5, "top_k": 5}

    @request_options("seed")
    def command(*, first: int = 1, settings: Settings, last: bool = False) -> None:
        """Say nothing."""

    assert list(inspect.signature(command).parameters) == ["first", "seed", "last"]
    assert (command.__name__, command.__doc__) == ("command", "Say nothing.")
