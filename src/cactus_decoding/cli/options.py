"""Options that several commands share, and what is done before any work."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from annotated_types import Ge, Le

from cactus_decoding.cli import notes, raise_when_interrupted
from cactus_decoding.core.declared import Declared, settings_of, switch
from cactus_decoding.core.request import MAX_SEED, SETTINGS, Request, check_verification
from cactus_decoding.zoo import draft_path

if TYPE_CHECKING:
    from cactus_decoding.lab.evaluation.chat import Chat

SAMPLING, BUDGET, RUNNING, OUTPUT = "Sampling", "Budget and protection", "Running", "Output"
Settings = dict[str, Any]  # values of options, by the names that `Request.from_dict` takes


def option(doc: str, metavar: str | None = None, panel: str | None = None, *, flag: str = "", **more: Any) -> Any:
    more |= {"show_default": more.pop("shown", True), "dir_okay": metavar != "FILE"}
    return typer.Option(*flag.split(), help=doc, metavar=metavar, rich_help_panel=panel, **more)


Threads = Annotated[int | None, option(
    "CPU threads.", "N", RUNNING, min=1, shown="1 for small models such as the bundled pair, else torch's own",
)]  # fmt: skip
ChatFlag = Annotated[bool | None, option(
    "Ask by the target's chat template; or continue prompts as plain text.", panel="Models", flag="--chat/--no-chat",
    shown="by the template where the target has one")]  # fmt: skip
System = Annotated[str | None, option("System message of a chat.", "TEXT", "Models", shown="the template's own")]
_FLAGS = {"budget_nats": "--budget"}  # flags that differ from the setting's name
# panels of help, by groups of settings
_PANELS = {"sampling": SAMPLING, "answer": SAMPLING, "proposals": RUNNING, "judging": None}
_METAVARS: dict[type, str | None] = {bool: None, int: "N", float: "X", str: "TEXT"}
# added to the help of settings that may be given several times
_BESIDES = {
    "protect": "; 'none' protects nothing. May be given several times: every rule protects each of them in turn.",
    "tree": ". May be given several times.",
}
# what help says of settings that a command may leave open
_ABSENT = {"verification": "coupled for rules that can be, else token"}


def _option(name: str, declared: Declared, panel: str | None, *, ranged: bool = True) -> inspect.Parameter:
    """Return the option of a setting; a part of a request that may be absent has options without a default."""
    setting, absent = declared.setting, declared.required or declared.default is None
    metavar = setting.metavar or _METAVARS[declared.kind]
    kind: Any = tuple[str, str] if metavar and " " in metavar else declared.kind
    default: Any = declared.default if isinstance(declared.default, bool | int | float) else str(declared.default)
    shown: Any = declared.kind is not bool
    if declared.default == ():
        kind, default, shown = list[str], None, setting.shown
    elif declared.kind is not bool and (absent or name in _OPTIONAL):
        shown = (setting.shown or False) if absent else f"{declared.default:g}"
        default = None
    kind = kind | None if default is None else kind
    flag = [_FLAGS.get(name, f"--{name.replace('_', '-')}")] if declared.kind is bool or name in _FLAGS else []
    made = typer.Option(
        *flag, help=declared.doc.replace("``", ""), metavar=metavar, show_default=shown, rich_help_panel=panel,
        **_range(declared) if ranged and not (panel == SAMPLING and declared.kind is float) else {},
    )  # fmt: skip
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made])


def _range(declared: Declared) -> dict[str, Any]:
    """Return the bounds that help shows, and that are checked as the command line is read."""
    most = declared.limit(Le)
    return {"min": declared.limit(Ge), "max": None if most == MAX_SEED else most}


def _panel(declared: Declared) -> str | None:
    return next((_PANELS[group] for group in declared.groups if group in _PANELS), BUDGET)


_OPTIONAL = {name for name, each in SETTINGS.items() if switch(each.part)}
_OPTIONS = {name: _option(name, each, _panel(each)) for name, each in SETTINGS.items()}
_LEFT_OUT = ("max_shift", "max_new_tokens", "seed", "stop")
"""What advice does not repeat: a budget is given by its nats, and the rest is the answers' own."""


def _names(group: str) -> list[str]:
    return [name for name, each in SETTINGS.items() if name == group or group in each.groups]


def request_options(
    *groups: str, without: tuple[str, ...] = (), several: tuple[str, ...] = (), **defaults: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a request, in the place of its parameter ``settings``.

    The command is called with ``settings``, the values of these options: `as_request` makes one request of them, and
    ``Request.from_dict(settings | {...})`` several.

    ``groups`` are ``judging``, ``proposals``, ``answer``, the parts of a `Request` and of its policy, or a setting's
    own name. Settings ``without`` are left out, ``several`` are lists, and ``defaults`` replace the usual ones.
    """
    names = [name for group in groups for name in _names(group) if name not in without]
    chosen = [_many(_OPTIONS[name]) if name in several else _OPTIONS[name] for name in names]
    chosen = [_with_default(option, defaults[option.name]) if option.name in defaults else option for option in chosen]

    def check(settings: Settings, others: Settings) -> None:
        from cactus_decoding.core.drafting.registry import parse_drafter
        from cactus_decoding.core.rules import parse_rule

        if "stop" in settings:
            settings["stop"] = tuple(settings["stop"] or ())
        for name, value in settings.items():
            check_text(name, value)
            _check_value(name, value)
        for rule in (settings.get("rule"), others.get("rule")):
            for text in _texts(rule):
                parse_rule(text)
        for text in _texts(others.get("draft")):
            parse_drafter(text)

    return _adding(chosen, check)


def options_of(described: type[Any], panels: Mapping[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command options of a dataclass, by names in panels of help, in the place of its parameter ``settings``."""
    known = settings_of(described)
    named = [(panel, name) for panel, names in panels.items() for name in names.split()]
    return _adding([_option(name, known[name], panel, ranged=False) for panel, name in named], lambda *_: None)


def _adding(
    chosen: Sequence[inspect.Parameter], check: Callable[[Settings, Settings], None]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command options in the place of its parameter ``settings``; ``check`` sees these and the others first."""

    def extend(command: Callable[..., Any]) -> Callable[..., Any]:
        def extended(**arguments: Any) -> Any:
            settings = {option.name: arguments.pop(option.name) for option in chosen}
            check(settings, arguments)
            return command(settings=settings, **arguments)

        hints, parameters = get_type_hints(command, include_extras=True), list[inspect.Parameter]()
        for name, parameter in inspect.signature(command).parameters.items():
            own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            parameters += chosen if name == "settings" else [own]
        # typer reads both
        extended.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        extended.__annotations__ = {each.name: each.annotation for each in parameters}
        extended.__name__, extended.__doc__, extended.__module__ = command.__name__, command.__doc__, command.__module__
        return extended

    return extend


def _many(option: inspect.Parameter) -> inspect.Parameter:
    made = copy(get_args(option.annotation)[1])
    made.help = made.help.rstrip(".") + _BESIDES.get(option.name, ". May be given several times.")
    return option.replace(default=None, annotation=Annotated[list[str] | None, made])


def _with_default(option: inspect.Parameter, default: Any) -> inspect.Parameter:
    kind, made = get_args(option.annotation)
    shown = copy(made)
    shown.show_default = True if default is not None else _ABSENT[option.name]
    return option.replace(default=default, annotation=Annotated[kind if default is not None else kind | None, shown])


def asked_chat(chat: bool | None, system: str | None, target: str) -> Chat | None:
    """Return how a target is asked, and say so if the user did not choose it."""
    from cactus_decoding.lab.evaluation.chat import choose_chat

    check_text("system", system or "")
    notes.say_what_is_logged("cactus_decoding.lab.evaluation")
    return choose_chat(chat, system, target)


def as_request(settings: Settings) -> Request:
    """Return the request that a command line asks for.

    Raises `TypeError`, `ValueError` if options do not go together, in the words of the command line.
    """
    check_budget(settings, settings["rule"])
    return Request.from_dict(settings)


def check_budget(settings: Settings, *rules: str) -> None:
    """Raise `ValueError` if the options of a budget do not go together, or no rule would spend it."""
    if settings["budget_nats"] is None and settings["max_shift"] is None:
        if settings["expected_tokens"] is not None:
            raise ValueError("--expected-tokens spreads a budget: give --budget or --max-shift too")
        if settings.get("max_relaxed") is not None:
            raise ValueError("--max-relaxed is a part of a budget: give --budget too, which may be inf")
    elif all(rule.strip().rstrip(":") == "lossless" for rule in rules):
        raise ValueError("the lossless rule spends nothing of a budget: give --rule, such as --rule clamped:width=1")
    elif settings["budget_nats"] is not None and settings["max_shift"] is not None:
        raise ValueError("--budget and --max-shift exclude each other: give one of them")


def _check_value(name: str, value: object) -> None:
    """Raise `ValueError` for an invalid value, before anything heavy is imported."""
    if name in ("tree", "num_speculative_tokens"):
        for text in _texts(value):
            SETTINGS[name].check(text)
    elif value is not None and name == "verification":
        check_verification(str(value))
    elif value is not None and not isinstance(value, (list, tuple)):
        SETTINGS[name].check(value)


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def check_text(name: str, value: object) -> None:
    """Raise `ValueError` for a text with bytes that are not UTF-8, which Python hands on as surrogates."""
    for text in value if isinstance(value, tuple) else (value,):
        try:
            str(text).encode()
        except UnicodeEncodeError:
            raise ValueError(f"--{name.replace('_', '-')} must be UTF-8 text, but is {text!r}") from None


def flags_of(request: Request) -> str:
    """Return the options that ask for a request, as they are typed; those at their default are left out.

    >>> from cactus_decoding.core.request import Request
    >>> flags_of(Request.from_dict({"rule": "clamped:width=3", "protect": "digits", "temperature": 0.6}))
    '--rule clamped:width=3.0 --protect digits --num-speculative-tokens 6 --temperature 0.6'
    """
    values, words = request.as_dict(), list[str]()
    always = ("rule", "num_speculative_tokens") if request.tree is None else ("rule", "tree")
    for name, option in _OPTIONS.items():
        value, default = values.get(name), _plain_default(name)
        is_default = value in (None, default) or (name == "num_speculative_tokens" and request.tree is not None)
        if name in _LEFT_OUT or (is_default and name not in always):
            continue
        spelled = _FLAGS.get(name, f"--{option.name.replace('_', '-')}")
        words += [spelled, *map(_typed, value if isinstance(value, list) else [value])]
    return shlex.join(words)


def _plain_default(name: str) -> object:
    default = SETTINGS[name].default
    return (
        list(default)
        if isinstance(default, tuple)
        else default
        if isinstance(default, bool | int | float)
        else str(default)
    )


def _typed(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_suffix(option: str, path: Path | None, *suffixes: str) -> None:
    """Raise `ValueError` for a file whose suffix belongs to another format than the written one; it may have none.

    >>> check_suffix("--picture", Path("frontier.png"), ".svg")
    Traceback (most recent call last):
    ValueError: --picture is written as .svg, but 'frontier.png' ends in '.png'
    """
    if path is not None and path.suffix and path.suffix.lower() not in suffixes:
        raise ValueError(f"{option} is written as {suffixes[0]}, but {str(path)!r} ends in {path.suffix!r}")


def prepare_process(threads: int | None, *models: str | None, small: bool) -> None:
    """Ask the hub for models, set the CPU threads, and silence libraries' own progress bars and log lines.

    None leaves the threads to torch, or sets one if only ``small`` models run, which gain nothing from more. (On a busy
    machine, threads that wait for each other made the bundled pair 20 times slower.)
    """
    from cactus_decoding.core.drafting.registry import is_drafter
    from cactus_decoding.core.models.loading import only_cached
    from cactus_decoding.engines.llama_cpp.models.library import library
    from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf

    for place, name in enumerate(models):
        if name is not None and draft_path(name) is None and not is_drafter(name):
            only_cached("draft" if place else "target", name)  # first, as a missing model needs no torch
            if parse_gguf(name) is not None:
                library()
    import torch
    from transformers.utils import logging

    raise_when_interrupted()
    notes.say_what_is_logged("cactus_decoding.engines.transformers")
    notes.say_what_is_logged("cactus_decoding.core.models")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if threads is not None or small:
        torch.set_num_threads(threads or 1)
