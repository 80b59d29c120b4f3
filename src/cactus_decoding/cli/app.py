"""The application: its commands, and the one place where errors become messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cactus_decoding.cli.examples import ASK
from cactus_decoding.core.values import suggestion

MISTAKE = 2
USE, MEASURE, LEARN = "Use", "Measure", "Learn"


class LateCommand(TyperCommand):
    """A command whose module, and all that it imports, is imported when the command is run or asked for its help.

    Args:
        name: of the command; its module in this folder has a function of that name, perhaps ``EXAMPLES`` and
            ``CONTEXT_SETTINGS``.
        panel: of the application's help.
        help: the first paragraph of the function's docstring.
    """

    def __init__(self, name: str, panel: str, help: str) -> None:
        super().__init__(name, help=help, rich_help_panel=panel)

    @cached_property
    def loaded(self) -> Any:
        """The command itself."""
        from cactus_decoding.cli.help import Application

        word = "evaluate" if self.name == "eval" else str(self.name).replace("-", "_")
        module = import_module(f"cactus_decoding.cli.{word}")
        settings = {"help_option_names": ["-h", "--help"], **getattr(module, "CONTEXT_SETTINGS", {})}
        application = Application(rich_markup_mode="rich", add_completion=False, pretty_exceptions_enable=False)
        application.command(self.name, epilog=getattr(module, "EXAMPLES", None), context_settings=settings)(
            getattr(module, word)
        )
        return typer.main.get_command(application)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the command, and have it read its arguments."""
        return self.loaded.make_context(info_name, args, parent, **extra)


COMMANDS = (
    LateCommand(
        "generate", USE, "Continue a prompt by drafting and verifying, with every token styled by how it came about."
    ),
    LateCommand(
        "trace", USE, "Show a response token by token: what both models and the rule thought there, and what it cost."
    ),
    LateCommand(
        "play", USE, "Open a page that shows what a rule does to an answer: token by token, what if, and side by side."
    ),
    LateCommand(
        "demo",
        USE,
        "Answer word problems that the bundled models never saw: lossless, relaxed with care, without, on a budget.",
    ),
    LateCommand(
        "serve", USE, "Serve a model with relaxed acceptance, chosen per request, over an OpenAI-compatible API."
    ),
    LateCommand("rules", USE, "List the acceptance rules, how to spell them, and what each guarantees per position."),
    LateCommand(
        "eval",
        MEASURE,
        "Measure what rules cost and what they buy, run by run; the same command resumes where a kill left off.",
    ),
    LateCommand(
        "frontier",
        MEASURE,
        "Compute acceptance against KL and TV for every rule over its whole range, exactly, with no sampling noise.",
    ),
    LateCommand(
        "calibrate",
        MEASURE,
        "Recommend a rule, its knob, protection and length for a limit, with evidence, or say that lossless is better.",
    ),
    LateCommand(
        "diagnose",
        MEASURE,
        "Say where lossless rejects, and what would win it back: training, relaxing, a tree, another length.",
    ),
    LateCommand(
        "conform",
        MEASURE,
        "Say whether an engine's speculation is lossless: whether tokens have the law of the target alone.",
    ),
    LateCommand(
        "tune",
        MEASURE,
        "Say in three minutes whether speculation pays on this machine, with which draft and how many proposals.",
    ),
    LateCommand(
        "report",
        MEASURE,
        "Show what rules cost and what they buy: pictures and tables, every number with its interval.",
    ),
    LateCommand(
        "train-draft",
        LEARN,
        "Train a draft so that its target, or a relaxed rule, accepts more of it; say by how much.",
    ),
    LateCommand("learn-importance", LEARN, "Learn where relaxing spoils answers, for --importance of other commands."),
    LateCommand(
        "show",
        LEARN,
        "Show a learned importance: its training, how well it tells positions apart, and the tokens that matter to it.",
    ),
)


class Commands(TyperGroup):
    """The commands in the order of `COMMANDS`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {str(each.name): each for each in COMMANDS}


app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from cactus_decoding import __version__

        typer.echo(f"cactus-decoding {__version__}")
        raise typer.Exit


@app.callback(
    cls=Commands,
    invoke_without_command=True,
    epilog=f"Try [bold]cactus demo[/bold], or [bold]{ASK}[/bold]\n\n"
    "Set CACTUS_TRACEBACK=1 to see where an error was raised.",
)
def cactus(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Speculative decoding with constrained acceptance: faster text, and what it costs."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None, application: typer.Typer = app, name: str = "cactus") -> int:
    """Run a command and return its exit code; Ctrl-C is the caller's business."""
    for stream in ("stdout", "stderr"):  # None where they were closed before we began
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode
    if "" not in sys.path:  # the current folder, behind all else: a rule may be named by a path there
        sys.path.append("")
    command = typer.main.get_command(application)
    try:
        try:  # not by calling the app, which turns an interruption into an exit code without a word
            with command.make_context(name, list(sys.argv[1:] if arguments is None else arguments)) as context:
                code = command.invoke(context)
        except typer.Exit as end:
            code = end.exit_code
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads stdout has left: nothing more may be written when Python exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        message = _explain(error)
        if message is None or os.environ.get("CACTUS_TRACEBACK"):
            raise
        typer.echo(f"cactus: {message}", err=True)
        return MISTAKE
    return int(code or 0)


def _explain(error: Exception) -> str | None:
    """Return one sentence about a user's mistake, or None for what is no such thing."""
    if hasattr(error, "format_message"):  # typer's errors in arguments; their class has no public name
        context = getattr(error, "ctx", None)
        message = error.format_message().rstrip(".")
        commands = getattr(context.command, "commands", ()) if context is not None else ()
        if commands:
            message, given = message.partition(". Did you mean")[0], re.search("'(.*?)'", message)
            close = suggestion(given.group(1), commands) if given else ""
            message += f"; commands are {', '.join(commands)}{close}"
        elif context is not None:
            message += f"{_given(error)} (see '{context.command_path} --help')"
    elif isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror or error}"
    elif isinstance(error, (ValueError, TypeError, OSError)):
        message = str(error)
    else:
        return None
    return " ".join(message.split())


def _given(error: Exception) -> str:
    """Return what was given, where pydantic's words, which typer hands on, do not say so."""
    details: list[dict[str, object]] = getattr(error.__cause__, "errors", list)()
    return f", but is {details[0]['input']!r}" if details else ""
