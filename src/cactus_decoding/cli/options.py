"""Options that several commands share, and what is done before any work."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from cactus_decoding.cli import raise_when_interrupted

if TYPE_CHECKING:
    from cactus_decoding.generation.request import Request

SAMPLING, BUDGET, RUNNING, OUTPUT = "Sampling", "Budget and protection", "Running", "Output"
Settings = dict[str, Any]
"""What the options of a request say, by the names that `Request.from_dict` takes."""

NumSpeculativeTokens = Annotated[
    int, typer.Option(metavar="N", help="Tokens that the draft proposes per step.", rich_help_panel=RUNNING)
]
Protections = Annotated[
    list[str] | None,
    typer.Option(
        "--protect",
        metavar="PATTERN",
        rich_help_panel=BUDGET,
        show_default="none",
        help="Judge losslessly where the target may write a token of this kind: digits, "
        "numbers_and_operators, json, code, negation, several joined by '|', or a regular expression over a token's "
        "text; 'none' protects nothing. May be given several times: every rule protects each of them in turn.",
    ),
]
ProtectThreshold = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        min=0,
        max=1,
        rich_help_panel=BUDGET,
        show_default="0.01",
        help="The largest probability of such tokens at which a position may be relaxed.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="CPU threads.",
        show_default="1 for small models such as the bundled pair, else torch's own",
        rich_help_panel=RUNNING,
    ),
]


def _option(
    name: str, kind: Any, default: Any, metavar: str | None, text: str, *spelled: str, **more: Any
) -> inspect.Parameter:
    made = typer.Option(*spelled, help=text, metavar=metavar, **more)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made])


_BUDGET: Settings = {"rich_help_panel": BUDGET, "show_default": "none"}
_SAMPLING: Settings = {"rich_help_panel": SAMPLING}
_RUNNING: Settings = {"rich_help_panel": RUNNING}
_OPTIONS = {each.name: each for each in (
    _option("rule", str, "lossless", "RULE",
            "Acceptance rule, such as cactus:delta=0.5; 'cactus rules' lists all."),
    _option("budget_nats", float | None, None, "NATS",
            "Limit on how far the distribution of a whole answer may move from the target's; 'inf' only measures. With "
            "relaxed_greedy: on the log-probability given up.", "--budget", min=0, **_BUDGET),
    _option("max_shift", float | None, None, "P",
            "The same by its consequence: no event's probability moves by more than P.", min=0, max=1, **_BUDGET),
    _option("expected_tokens", int | None, None, "N",
            "Spread the budget over this many tokens by moving the width of clamped:width=…", min=1, **_BUDGET),
    _option("protect", str | None, None, "PATTERN",
            "Judge losslessly where the target may write a token of this kind: digits, numbers_and_operators, json, "
            "code, negation, several joined by '|', or a regular expression over a token's text.", **_BUDGET),
    _option("protect_threshold", float | None, None, "P",
            "The largest probability of such tokens at which a position may be relaxed.", min=0, max=1,
            rich_help_panel=BUDGET, show_default="0.01"),
    _option("importance", str | None, None, "FILE",
            "Learned importance of positions, a file of 'cactus learn-importance': important ones are judged "
            "losslessly.", **_BUDGET),
    _option("max_importance", float | None, None, "P",
            "The greatest importance at which a position may be relaxed.", min=0, max=1, rich_help_panel=BUDGET,
            show_default="0.2, or 1 with --importance-scale"),
    _option("importance_scale", bool, False, None,
            "Multiply the knob of the rule by 1 - importance at each position (for cactus, clamped, ensemble, "
            "relaxed_greedy).", "--importance-scale", rich_help_panel=BUDGET, show_default=False),
    _option("lossless_tokens", int, 0, "N",
            "The first N tokens of an answer are lossless.", min=0, rich_help_panel=BUDGET),
    _option("relax_within", tuple[str, str] | None, None, "OPEN CLOSE",
            "Relax only between these marks, such as '<think>' '</think>'.", **_BUDGET),
    _option("num_speculative_tokens", str, "6", "N",
            "Tokens that the draft proposes per step; or 'confidence:threshold=0.4' to stop where it is unsure, or "
            "'adaptive' to propose as many as are worth their time; or 'tree:static=4.2.2.1' for a tree in which 4 may "
            "follow the text, 2 each of them, and so on, 'tree:best_first,nodes=16' for one of the likeliest tokens, "
            "'tree:adaptive' for one as large as is worth its time.", **_RUNNING),
    _option("verification", str, "token", "HOW",
            "'token': one proposal after another; 'block': all of a step jointly, which accepts more (for lossless, "
            "clamped and ensemble); 'joint': the same for a tree ('recursive' and 'traversal' are there to compare).",
            **_RUNNING),
    _option("temperature", float, 1.0, "T",
            "0 takes the most likely token; 1 leaves the model's probabilities as they are.", **_SAMPLING),
    _option("top_k", int, 0, "K",
            "Keep the K most likely tokens; 0 keeps all.", min=0, **_SAMPLING),
    _option("top_p", float, 1.0, "P",
            "Keep the most likely tokens with mass P, in (0, 1].", **_SAMPLING),
    _option("min_p", float, 0.0, "P",
            "Drop tokens less than P times as likely as the most likely, in [0, 1].", **_SAMPLING),
    _option("max_new_tokens", int, 256, "N",
            "Upper limit of an answer's length.", min=1, **_SAMPLING),
    _option("seed", int | None, None, "S",
            "The same seed gives the same text.", min=0, show_default="drawn", **_SAMPLING),
    _option("stop", list[str] | None, None, "TEXT",
            "End before this text; may be given several times.", **_SAMPLING),
)}  # fmt: skip
_LEFT_OUT = ("max_shift", "max_new_tokens", "seed", "stop")
"""What advice does not repeat: a budget is given by its nats, and the rest is the answers' own."""
_USUAL_THRESHOLD = 0.01
_POLICY = (
    "protect_threshold", "importance", "max_importance", "importance_scale", "lossless_tokens", "relax_within",
)  # fmt: skip
_GROUPS = {
    "budget": ("budget_nats", "max_shift", "expected_tokens"),
    "protection": ("protect", *_POLICY),
    "policy": _POLICY,
    "sampling": ("temperature", "top_k", "top_p", "min_p"),
}


def request_options(*groups: str, **defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a request, in the place of its parameter ``settings``.

    The command is called with ``settings``, what these options say: one request by `as_request`, or several by
    ``Request.from_dict(settings | {...})``.

    Args:
        groups: which options, in this order: ``rule``, ``budget`` (--budget, --max-shift and --expected-tokens),
            ``protection`` (--protect, --protect-threshold, --importance, --max-importance, --importance-scale,
            --lossless-tokens and --relax-within), ``policy`` (the same without --protect),
            ``num_speculative_tokens``, ``verification``, ``sampling`` (--temperature, --top-k, --top-p and --min-p),
            ``max_new_tokens``, ``seed``, ``stop``; those of a group may be named one by one.
        defaults: other defaults than the usual ones.

    Example:
        >>> @request_options("sampling", "seed", top_p=0.95)
        ... def command(*, prompt: str = "", settings: Settings) -> None: ...
        >>> list(inspect.signature(command).parameters)
        ['prompt', 'temperature', 'top_k', 'top_p', 'min_p', 'seed']
    """
    chosen = [_OPTIONS[name] for group in groups for name in _GROUPS.get(group, (group,))]
    chosen = [_with_default(option, defaults[option.name]) if option.name in defaults else option for option in chosen]

    def extend(command: Callable[..., Any]) -> Callable[..., Any]:
        def extended(**arguments: Any) -> Any:
            settings = {option.name: arguments.pop(option.name) for option in chosen}
            if "stop" in settings:
                settings["stop"] = tuple(settings["stop"] or ())
            for name, value in settings.items():
                _check_text(name, value)
            if settings.get("importance") is not None:
                from cactus_decoding.budgets.importance import read_importance

                read_importance(settings["importance"])  # before models are loaded
            return command(settings=settings, **arguments)

        hints, parameters = get_type_hints(command, include_extras=True), []
        for name, parameter in inspect.signature(command).parameters.items():
            own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            parameters += chosen if name == "settings" else [own]
        # typer reads both
        extended.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        extended.__annotations__ = {each.name: each.annotation for each in parameters}
        extended.__name__, extended.__doc__, extended.__module__ = command.__name__, command.__doc__, command.__module__
        return extended

    return extend


def _with_default(option: inspect.Parameter, default: Any) -> inspect.Parameter:
    """Return an option with another default, which its help shows."""
    kind, made = get_args(option.annotation)
    shown = copy(made)
    shown.show_default = True
    return option.replace(default=default, annotation=Annotated[kind, shown])


def as_request(settings: Settings) -> Request:
    """Return the request that a command line asks for.

    Raises:
        TypeError, ValueError: where the options do not go together, in the words of the command line.
    """
    from cactus_decoding.generation.request import Request

    check_budget(settings, settings["rule"])
    return Request.from_dict(settings)


def check_budget(settings: Settings, *rules: str) -> None:
    """Raise `ValueError` where the options of a budget do not go together, or no rule would spend it."""
    if settings["budget_nats"] is None and settings["max_shift"] is None:
        if settings["expected_tokens"] is not None:
            raise ValueError("--expected-tokens spreads a budget: give --budget or --max-shift too")
    elif all(rule.strip().rstrip(":") == "lossless" for rule in rules):
        raise ValueError("the lossless rule spends nothing of a budget: give --rule, such as --rule clamped:width=1")
    elif settings["budget_nats"] is not None and settings["max_shift"] is not None:
        raise ValueError("--budget and --max-shift exclude each other: give one of them")


def _check_text(name: str, value: object) -> None:
    """Raise `ValueError` where an option's text has bytes that are no UTF-8, which Python hands on as surrogates."""
    for text in value if isinstance(value, tuple) else (value,):
        try:
            str(text).encode()
        except UnicodeEncodeError:
            raise ValueError(f"--{name.replace('_', '-')} must be UTF-8 text, but is {text!r}") from None


def flags_of(request: Request) -> str:
    """Return the options that ask for a request, as they are typed; those at their default are left out.

    Example:
        >>> from cactus_decoding.generation.request import Request
        >>> flags_of(Request.from_dict({"rule": "clamped:width=3", "protect": "digits", "temperature": 0.6}))
        '--rule clamped:width=3.0 --protect digits --num-speculative-tokens 6 --temperature 0.6'
    """
    values, words = request.as_dict(), list[str]()
    for name, option in _OPTIONS.items():
        value, given = values.get(name), get_args(option.annotation)[1]
        always = name in ("rule", "num_speculative_tokens")
        if name in _LEFT_OUT or value is None or (value == option.default and not always):
            continue
        if name == "protect_threshold" and value == _USUAL_THRESHOLD:
            continue
        spelled = next(iter(given.param_decls or ()), f"--{name.replace('_', '-')}")
        words += [spelled, *([] if value is True else map(_typed, value if isinstance(value, list) else [value]))]
    return shlex.join(words)


def _typed(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_suffix(option: str, path: Path | None, *suffixes: str) -> None:
    """Raise `ValueError` for a file whose name promises another kind than what is written; one without an end may be.

    >>> check_suffix("--picture", Path("frontier.png"), ".svg")
    Traceback (most recent call last):
    ValueError: --picture is written as .svg, but 'frontier.png' ends in '.png'
    """
    if path is not None and path.suffix and path.suffix.lower() not in suffixes:
        raise ValueError(f"{option} is written as {suffixes[0]}, but {str(path)!r} ends in {path.suffix!r}")


def prepare(threads: int | None, *, small: bool) -> None:
    """Set the number of CPU threads, and keep the libraries' own progress bars and log lines out of the output.

    Args:
        threads: how many; None leaves it to torch, but takes one where ``small`` says that the models gain nothing from
            more (on a busy machine, threads that wait for each other made the bundled pair 20 times slower).
        small: whether only small models will run.
    """
    import torch
    from transformers.utils import logging

    raise_when_interrupted()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if threads is not None or small:
        torch.set_num_threads(threads or 1)
