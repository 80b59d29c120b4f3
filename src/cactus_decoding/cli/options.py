"""Options that several commands share, and what is done before any work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from cactus_decoding.cli import raise_when_interrupted

if TYPE_CHECKING:
    from cactus_decoding.generation.request import Request

SAMPLING, BUDGET, RUNNING, OUTPUT = "Sampling", "Budget", "Running", "Output"
Settings = dict[str, Any]
"""What the options of a request say, by the names that `Request.from_dict` takes."""

NumSpeculativeTokens = Annotated[
    int, typer.Option(metavar="N", help="Tokens that the draft proposes per step.", rich_help_panel=RUNNING)
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
    name: str, kind: Any, default: Any, text: str, metavar: str, *spelled: str, panel: str | None = None, **more: Any
) -> inspect.Parameter:
    made = typer.Option(*spelled, help=text, metavar=metavar, rich_help_panel=panel, **more)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made])


_OPTIONS = {
    "rule": [
        _option("rule", str, "lossless", "Acceptance rule, such as cactus:delta=0.5; 'cactus rules' lists all.", "RULE")
    ],
    "budget": [
        _option(
            "budget_nats", float | None, None,
            "Limit on how far the distribution of a whole answer may move from the target's; 'inf' only "
            "measures. With relaxed_greedy: on the log-probability given up.",
            "NATS", "--budget", min=0, show_default="none", panel=BUDGET,
        ),
        _option(
            "max_shift", float | None, None,
            "The same by its consequence: no event's probability moves by more than P.",
            "P", min=0, max=1, show_default="none", panel=BUDGET,
        ),
        _option(
            "expected_tokens", int | None, None,
            "Spread the budget over this many tokens by moving the width of clamped:width=…",
            "N", min=1, show_default="none", panel=BUDGET,
        ),
    ],
    "num_speculative_tokens": [
        _option(
            "num_speculative_tokens", str, "6",
            "Tokens that the draft proposes per step; or 'confidence:threshold=0.4' to stop where it is unsure, or "
            "'adaptive' to propose as many as are worth their time.",
            "N", panel=RUNNING,
        )
    ],
    "verification": [
        _option(
            "verification", str, "token",
            "'token': one proposal after another; 'block': all of a step jointly, which accepts more (for lossless, "
            "clamped and ensemble).",
            "HOW", panel=RUNNING,
        )
    ],
    "temperature": [
        _option(
            "temperature", float, 1.0,
            "0 takes the most likely token; 1 leaves the model's probabilities as they are.", "T", panel=SAMPLING,
        )
    ],
    "top_k": [_option("top_k", int, 0, "Keep the K most likely tokens; 0 keeps all.", "K", min=0, panel=SAMPLING)],
    "top_p": [
        _option("top_p", float, 1.0, "Keep the most likely tokens with mass P, in (0, 1].", "P", panel=SAMPLING)
    ],
    "min_p": [
        _option(
            "min_p", float, 0.0,
            "Drop tokens less than P times as likely as the most likely, in [0, 1].", "P", panel=SAMPLING,
        )
    ],
    "max_new_tokens": [
        _option("max_new_tokens", int, 256, "Upper limit of an answer's length.", "N", min=1, panel=SAMPLING)
    ],
    "seed": [
        _option(
            "seed", int | None, None, "The same seed gives the same text.", "S",
            min=0, show_default="drawn", panel=SAMPLING,
        )
    ],
    "stop": [
        _option(
            "stop", list[str] | None, None, "End before this text; may be given several times.", "TEXT", panel=SAMPLING
        )
    ],
}  # fmt: skip
_OPTIONS["sampling"] = [option for name in ("temperature", "top_k", "top_p", "min_p") for option in _OPTIONS[name]]


def request_options(*groups: str, **defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a request, in the place of its parameter ``settings``.

    The command is called with ``settings``, what these options say: one request by `as_request`, or several by
    ``Request.from_dict(settings | {...})``.

    Args:
        groups: which options, in this order: ``rule``, ``budget`` (--budget, --max-shift and --expected-tokens),
            ``num_speculative_tokens``, ``verification``, ``sampling`` (--temperature, --top-k, --top-p and --min-p,
            which may also be named one by one), ``max_new_tokens``, ``seed``, ``stop``.
        defaults: other defaults than the usual ones.

    Example:
        >>> @request_options("sampling", "seed", top_p=0.95)
        ... def command(*, prompt: str = "", settings: Settings) -> None: ...
        >>> list(inspect.signature(command).parameters)
        ['prompt', 'temperature', 'top_k', 'top_p', 'min_p', 'seed']
    """
    chosen = [option for group in groups for option in _OPTIONS[group]]
    chosen = [option.replace(default=defaults.get(option.name, option.default)) for option in chosen]

    def extend(command: Callable[..., Any]) -> Callable[..., Any]:
        def extended(**arguments: Any) -> Any:
            settings = {option.name: arguments.pop(option.name) for option in chosen}
            if "stop" in settings:
                settings["stop"] = tuple(settings["stop"] or ())
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
    elif all(rule.strip() == "lossless" for rule in rules):
        raise ValueError("the lossless rule spends nothing of a budget: give --rule, such as --rule clamped:width=1")
    elif settings["budget_nats"] is not None and settings["max_shift"] is not None:
        raise ValueError("--budget and --max-shift exclude each other: give one of them")


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
