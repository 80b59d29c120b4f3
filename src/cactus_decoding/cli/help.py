"""Help of a command: ``--help`` shows what most users need, on three screens at most, ``--help-all`` everything."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property, partial
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand

# settings of a request that ``--help`` shows
COMMON = frozenset({
    "rule", "budget_nats", "protect", "num_speculative_tokens", "temperature", "top_k", "top_p", "max_new_tokens",
    "seed",
})  # fmt: skip
# other options that ``--help`` leaves out, unless a command requires them
FURTHER = {
    "threads", "memory", "engine_args", "system", "allow_code_execution",
    "lm_eval_path", "token_ids", "rescore", "interleaved", "concurrency", "timeout", "retries",  # eval
    "children", "points", "answer_tokens",  # frontier
    "alias", "draft_sampling", "audit_fraction", "max_waiting", "max_prompt", "profile",  # serve, play
    "width", "first_layers", "refresh_every", "gradient_accumulation", "evaluate_every", "max_length",
    "bfloat16", "cache", "on_policy", "held_out",  # train-draft
}  # fmt: skip
QUESTION = "Finn has 22 nuts. Sam owns 3 times as many nuts as Finn. How many nuts do they have together?"
ASK = f'cactus generate "{QUESTION}"'
EXAMPLES = 2  # shown by ``--help`` at most
_ALL = "cactus_decoding.help_all"
_END_OF_SENTENCE = re.compile(r"\.\s|;\s")


class Application(typer.Typer):
    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command} | settings)

    def add(self, panel: str, commands: Mapping[str, tuple[str, str]]) -> None:
        """Register commands that are imported when they are asked for: their home and a sentence, by name."""
        for name, (home, summary) in commands.items():
            later: Any = partial(CommandAtHome, home=home)
            self.command(name, cls=later, help=summary, rich_help_panel=panel)(_nothing)


def _nothing() -> None:
    pass


class CommandAtHome(TyperCommand):
    """A command of which only the name and a sentence are known until it is asked for.

    Its home is a module of this folder, and a function there. The module has the command's examples as ``EXAMPLES``, or
    with the function's name before that, and the settings of its context as ``CONTEXT``.
    """

    def __init__(self, *args: Any, home: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._home = home

    @cached_property
    def loaded(self) -> Command:
        module, _, name = self._home.partition(":")
        found = import_module(f"cactus_decoding.cli.{module}")
        examples = getattr(found, f"{name.upper()}_EXAMPLES", getattr(found, "EXAMPLES", None))
        application = Application(add_completion=False)
        settings = {"context_settings": found.CONTEXT} if hasattr(found, "CONTEXT") else {}
        application.command(self.name, epilog=examples, **settings)(getattr(found, name))
        return cast(Command, typer.main.get_command(application))

    def make_context(self, *args: Any, **settings: Any) -> Any:
        return self.loaded.make_context(*args, **settings)


def commands_of(application: typer.Typer) -> dict[str, Command]:
    commands: dict[str, Any] = typer.main.get_command(application).commands  # type: ignore[attr-defined]
    return {name: each.loaded for name, each in commands.items()}


class Command(TyperCommand):
    """A command with ``--help-all``; ``--help`` leaves out what few users need, and says so in its last line."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.help = "\n\n".join(" ".join(each.split()) for each in (self.help or "").split("\n\n"))
        self._help_all = _help_all()

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), self._help_all]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown = self if ctx.meta.get(_ALL) else self._shortened(ctx.command_path)
        super(Command, shown).format_help(ctx, formatter)

    def _shortened(self, path: str) -> Command:
        short = copy(self)
        own: list[Any] = self.params
        further = left_out_of_help()
        short.params = [_short(each) for each in own if each.required or each.name not in further]
        lines = (self.epilog or "").split("\n\n")
        left = [each for each in lines if each.startswith("cactus ")][EXAMPLES:]
        lines = [each for each in lines if each not in left]
        if left_out := len(self.params) - len(short.params):
            more = f"{left_out} more option{'s' * (left_out > 1)}, and more on these"
            lines.append(f"{more}: [bold]{path} --help-all[/bold]")
        elif left or any(_short(each).help != each.help for each in own):
            lines.append(f"More on these options: [bold]{path} --help-all[/bold]")
        short.epilog = "\n\n".join(lines).strip()
        return short


def left_out_of_help() -> set[str]:
    from cactus_decoding.core.request import SETTINGS

    return FURTHER | (SETTINGS.keys() - COMMON)


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


def _with_help_all(
    help_all: Annotated[
        bool,
        typer.Option("--help-all", callback=_show_all, is_eager=True, expose_value=False,
                     help="Show every option, and all that there is to say of it."),
    ] = False,
) -> None:  # fmt: skip
    pass


def _help_all() -> Any:
    application = typer.Typer(add_completion=False)
    application.command()(_with_help_all)
    [option] = typer.main.get_command(application).params
    return option


def _short(parameter: Any) -> Any:
    """Return an option with the first sentence of its help, and without a default that says nothing."""
    short = copy(parameter)
    short.help = _END_OF_SENTENCE.split(parameter.help or "", maxsplit=1)[0].rstrip(".") + "."
    if parameter.show_default == "none" or (parameter.default is None and parameter.show_default is True):
        short.show_default = False
    return short


def long_options(context: Any) -> list[str]:
    """Return the options of a context's command that begin with two dashes."""
    return [name for each in context.command.params for name in each.opts if name.startswith("--")]
