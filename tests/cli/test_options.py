"""The options of a request: one list, from which commands choose."""

from __future__ import annotations

import inspect

import typer
from support.importances import digits_file

from cactus_decoding import Budget, Request
from cactus_decoding.cli.app import app as cactus
from cactus_decoding.cli.help import commands_of
from cactus_decoding.cli.options import Settings, as_request, check_budget, request_options
from cactus_decoding.core.policy.vocabulary import Vocabulary

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


def test_the_defaults_are_those_of_a_request():
    assert as_request(asked()) == Request()


def test_every_option_reaches_the_request(tmp_path):
    file = digits_file(tmp_path, Vocabulary(("1", "a")))
    given = "--rule clamped:width=2 --budget 0.5 --expected-tokens 60 --num-speculative-tokens 4 --verification token"
    given += " --temperature 0.6 --top-k 20 --top-p 0.9 --min-p 0.1 --max-new-tokens 12 --seed 3 --stop A --stop B"
    given += " --protect digits --protect-threshold 0.02 --lossless-tokens 5 --relax-within <a> </a>"
    given += f" --importance {file} --max-importance 0.3 --importance-scale --recurring 2 --recurring-ratio 0.3"
    request = as_request(asked(*given.split()))
    assert request.as_dict() == {
        "rule": "clamped:width=2.0",
        "budget_nats": 0.5,
        "max_shift": None,
        "expected_tokens": 60,
        "protect": "digits",
        "protect_threshold": 0.02,
        "importance": file,
        "max_importance": 0.3,
        "importance_scale": True,
        "lossless_tokens": 5,
        "relax_within": ["<a>", "</a>"],
        "recurring": 2,
        "recurring_ratio": 0.3,
        "verification": "token",
        "num_speculative_tokens": 4,
        "tree": None,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "max_new_tokens": 12,
        "stop": ["A", "B"],
        "seed": 3,
    }
    shift = as_request(asked("--rule", "clamped:width=2", "--max-shift", "0.1"))
    assert shift.budget == Budget(max_shift=0.1)


def test_a_command_chooses_options_and_defaults():
    assert asked("--top-k", "5", groups=("temperature", "top_k"), temperature=0.5) == {"temperature": 0.5, "top_k": 5}


def test_the_options_stand_where_the_settings_stood():
    @request_options("seed")
    def command(*, first: int = 1, settings: Settings, last: bool = False) -> None:
        """Say nothing."""

    assert list(inspect.signature(command).parameters) == ["first", "seed", "last"]
    assert (command.__name__, command.__doc__) == ("command", "Say nothing.")


def test_one_rule_that_spends_is_enough():
    check_budget({"budget_nats": 1.0, "max_shift": None, "expected_tokens": None}, "lossless", "typical")


def test_what_is_written_goes_by_one_name():
    commands = commands_of(cactus)
    spelled = {
        name: next(each.opts for each in command.params if "--output" in each.opts)
        for name, command in commands.items()
        if any("--output" in each.opts for each in command.params)
    }
    assert all(opts == ["--output"] for opts in spelled.values())
    assert {"eval", "frontier", "calibrate", "report", "trace", "train-draft", "learn-importance"} < spelled.keys()
