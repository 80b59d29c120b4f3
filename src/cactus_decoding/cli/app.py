"""The application: its commands, and the one place where errors become messages."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from cactus_decoding.cli.help import ASK, Application, long_options
from cactus_decoding.core.checks import suggestion

MISTAKE = 2

app = Application(
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
USE, MEASURE, TRAIN = "Use", "Measure", "Train"
app.add(USE, {
    "generate": ("generate:generate",
        "Continue a prompt by drafting and verifying, with every token styled by how it came about."),
    "trace": ("trace:trace",
        "Show a response token by token: what both models and the rule thought there, and what it cost."),
    "play": ("play:play",
        "Open a page that shows what a rule does to an answer: token by token, what if, and side by side."),
    "demo": ("demo:demo",
        "Answer word problems that the bundled models never saw: without a draft, lossless, and relaxed."),
    "serve": ("serve:serve",
        "Serve a GGUF file, or a model in vLLM, over an OpenAI-compatible API, with a rule chosen per request."),
    "rules": ("rules:rules",
        "List the acceptance rules, how to spell them, and what each guarantees per position."),
})  # fmt: skip
app.add(MEASURE, {
    "eval": ("evaluate:evaluate",
        "Measure what rules cost and what they buy, run by run; the same command resumes where a kill left off."),
    "frontier": ("frontier:frontier",
        "Compute acceptance against KL and TV for every rule over its whole range, exactly, with no sampling noise."),
    "conform": ("conform:conform",
        "Say whether an engine's speculation is lossless: "
        "whether its tokens have the distribution of the target alone."),
    "tune": ("tune:tune",
        "Say in three minutes whether speculation pays on this machine, with which draft and how many proposals."),
    "report": ("report:report",
        "Show what rules cost and what they buy: pictures and tables, every number with its interval."),
})  # fmt: skip
app.add(TRAIN, {
    "train-draft": ("train_draft:train_draft",
        "Train a draft so that its target accepts more of it; say by how much."),
})  # fmt: skip


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
    """Run a command and return its exit code; the caller handles Ctrl-C."""
    for stream in ("stdout", "stderr"):  # None if they were closed before we began
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals without Unicode
    if "" not in sys.path:  # the current folder, last: a rule may be named by a path there
        sys.path.append("")
    command = typer.main.get_command(application)
    try:
        try:  # calling the app would silently turn an interruption into an exit code
            with command.make_context(name, list(sys.argv[1:] if arguments is None else arguments)) as context:
                code = command.invoke(context)
        except typer.Exit as end:
            code = end.exit_code
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has left: nothing more may be written when Python exits
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
    """Return one sentence about a user's mistake, or None for any other error."""
    if hasattr(error, "format_message"):  # typer's errors in arguments; their class has no public name
        context = getattr(error, "ctx", None)
        message = error.format_message().rstrip(".")
        if context is None and "requires an argument" in message:
            message = f"{getattr(error, 'option_name', 'an option')} needs a value"
        elif context is not None:
            message = f"{_usage_sentence(error, message, context)} (see '{context.command_path} --help')"
    elif isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror or error}"
    elif isinstance(error, (ValueError, TypeError, OSError)):
        message = str(error)
    else:
        return None
    return " ".join(message.split())


def _usage_sentence(error: Any, message: str, context: Any) -> str:
    """Return what is wrong with a command, an option or an argument, in our words."""
    if commands := getattr(context.command, "commands", ()):
        if named := re.match("No such command '(.*?)'", message):
            listed = f"commands are {', '.join(commands)}"
            return f"there is no command {named[1]!r}{suggestion(named[1], commands) or f'; {listed}'}"
        option = getattr(error, "option_name", None)
        return f"{option} must follow a command, as in 'cactus generate PROMPT {option}'" if option else message
    if (option := getattr(error, "option_name", None)) is not None:
        return f"there is no option {option}{suggestion(option, long_options(context))}"
    if message.startswith("Got unexpected extra"):
        given = message.partition(") (")[2].rstrip(")")
        quotes = any(each.name == "prompt" for each in context.command.params)
        return f"too many arguments: {given}{'; a text of several words needs quotes' if quotes else ''}"
    if missing := re.match("Missing (?:argument|option) '(.*?)'", message):
        return f"{missing[1]} is missing"
    return _number_sentence(error) or message


_ALLOWED = {
    "int_parsing": "an integer",
    "float_parsing": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
}
"""What a number must be, by the name that pydantic gives its mistake."""


def _number_sentence(error: Any) -> str | None:
    """Return what was given and what is allowed, where pydantic, by which typer reads numbers, refused an option."""
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if not details or details[0]["type"] not in _ALLOWED:
        return None
    kind, given = details[0]["type"], details[0]["input"]
    allowed = _ALLOWED[kind].format(**details[0].get("ctx", {}))
    return f"{error.param.opts[-1]} must be {allowed}, but is {repr(given) if kind.endswith('parsing') else given}"
