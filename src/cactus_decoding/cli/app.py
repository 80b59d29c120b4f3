"""The application: its commands, and the one place where errors become messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from cactus_decoding.cli import (
    calibrate,
    conform,
    demo,
    diagnose,
    evaluate,
    frontier,
    generate,
    learn_importance,
    play,
    reading,
    serve,
    train_draft,
    tune,
)
from cactus_decoding.cli.generate import ASK
from cactus_decoding.cli.help import Application
from cactus_decoding.core.values import suggestion

MISTAKE = 2

app = Application(
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
USE, MEASURE, LEARN = "Use", "Measure", "Learn"
app.command("generate", epilog=generate.EXAMPLES, rich_help_panel=USE)(generate.generate)
app.command("trace", epilog=reading.TRACE_EXAMPLES, rich_help_panel=USE)(reading.trace)
app.command("play", epilog=play.EXAMPLES, rich_help_panel=USE)(play.play)
app.command("demo", epilog=demo.EXAMPLES, rich_help_panel=USE)(demo.demo)
app.command("serve", epilog=serve.EXAMPLES, context_settings=serve.SETTINGS, rich_help_panel=USE)(serve.serve)
app.command("rules", rich_help_panel=USE)(reading.rules)
app.command("eval", epilog=evaluate.EXAMPLES, rich_help_panel=MEASURE)(evaluate.evaluate)
app.command("frontier", epilog=frontier.EXAMPLES, rich_help_panel=MEASURE)(frontier.frontier)
app.command("calibrate", epilog=calibrate.EXAMPLES, rich_help_panel=MEASURE)(calibrate.calibrate)
app.command("diagnose", epilog=diagnose.EXAMPLES, rich_help_panel=MEASURE)(diagnose.diagnose)
app.command("conform", epilog=conform.EXAMPLES, rich_help_panel=MEASURE)(conform.conform)
app.command("tune", epilog=tune.EXAMPLES, rich_help_panel=MEASURE)(tune.tune)
app.command("report", epilog=reading.REPORT_EXAMPLES, rich_help_panel=MEASURE)(reading.report)
app.command("train-draft", epilog=train_draft.EXAMPLES, rich_help_panel=LEARN)(train_draft.train_draft)
app.command("learn-importance", epilog=learn_importance.EXAMPLES, rich_help_panel=LEARN)(
    learn_importance.learn_importance
)
app.command("show", epilog=reading.SHOW_EXAMPLES, rich_help_panel=LEARN)(reading.show)


def _show_version(wanted: bool) -> None:
    if wanted:
        from cactus_decoding import __version__

        typer.echo(f"cactus-decoding {__version__}")
        raise typer.Exit


@app.callback(
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
