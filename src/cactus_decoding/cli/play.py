"""`cactus play`: the playground, a page in the browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from cactus_decoding.cli import notes, options, profiles
from cactus_decoding.cli.options import option
from cactus_decoding.core.extras import needing

if TYPE_CHECKING:
    from socket import socket

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus play\n\n"
    "cactus play --target gpt2-large --draft gpt2 --port 8000 --no-browser\n\n"
    "cactus play --host 0.0.0.0 --no-allow-models"
)
PORT = 8421
SERVER, LIMITS = "Server", "Limits for each visitor"


def play(
    target: Annotated[str | None, option(
        "Verifying model where a visitor names none: a local path, a GGUF file or a hub name.", "MODEL",
        shown="bundled")] = None,
    draft: Annotated[str | None, option(
        "Proposing model, or 'suffix' to look proposals up in the text.", "MODEL",
        shown="suffix, or bundled:worded for the bundled target")] = None,
    rule: Annotated[list[str] | None, option(
        "A rule of your own that visitors may choose, by its importable path: my_module:MyRule,ratio=0.5; may be given "
        "several times. No visitor imports a module.", "RULE", shown="none")] = None,
    host: Annotated[str, option(
        "Address to listen on. On another than loopback, whoever reaches it may use it: there is no password.",
        "ADDRESS", SERVER)] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one.",
                     show_default=f"{PORT}, or a free one where that is taken", rich_help_panel=SERVER),
    ] = None,
    browser: Annotated[bool, option("Open the page.", panel=SERVER, flag="--browser/--no-browser")] = True,
    allow_models: Annotated[bool | None, option(
        "Let visitors name models, which are then read from this machine's disk or fetched from the hub. Code that "
        "comes with them is never run.", panel=SERVER, flag="--allow-models/--no-allow-models",
        shown="allowed on loopback")] = None,
    max_new_tokens: Annotated[int, option("Longest answer.", "N", LIMITS, min=1)] = 512,
    max_prompt: Annotated[int, option("Longest prompt.", "CHARACTERS", LIMITS, min=1)] = 8000,
    profile: profiles.ProfileFile = None,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Open a page that shows what a rule does to an answer: token by token, what if, and side by side.

    Needs the extra 'playground', which 'make demo' installs. Stop it with Ctrl-C.
    """
    from cactus_decoding.core.drafting.registry import LOOK_UP, check_keeps_nothing, check_model_names, is_drafter

    chosen = profiles.with_profile(profile, profiles.Chosen(target, draft, None, threads))
    target, draft, proposals, threads = chosen
    check_model_names(target, draft)  # first, as a mistake needs no torch
    from cactus_decoding import AutoLength, parse_rule, zoo
    from cactus_decoding.core.request import AUTO

    if proposals is None and target not in (None, zoo.BUNDLED):
        proposals = AUTO
    rules = [parse_rule(text) for text in rule or []]
    with needing("cactus play needs Starlette and uvicorn", "playground"):
        from cactus_decoding.engines.openai.serving import is_loopback, listen
        from cactus_decoding.lab.playground.form import FormLimits
        from cactus_decoding.lab.playground.server import Playground, run_playground

    limits = FormLimits(new_tokens=max_new_tokens, prompt_characters=max_prompt)
    if not (target or draft is None or is_drafter(draft) or zoo.draft_path(draft)):
        raise ValueError(f"--draft {draft} needs --target: the bundled target goes with its own drafts or '{LOOK_UP}'")
    check_keeps_nothing(draft or LOOK_UP)
    named = notes.default_draft(target, draft)
    models = is_loopback(host) if allow_models is None else allow_models
    playground = Playground(limits, models=models, pair=(target, named), rules=rules, proposals=proposals)
    with_models = "visitors may name models" if models else "only the pair it was started with"

    def announce(address: str) -> None:
        typer.echo(f"cactus play: {address} ({with_models}; Ctrl-C stops it)")
        if not is_loopback(host):
            typer.echo("cactus: warning: whoever reaches this address may use it; there is no password", err=True)

    with _listen(listen, host, port) as listening:  # before the models are loaded, as that takes long
        options.prepare_process(threads, target, named, small=target is None)
        # loaded before anybody waits for it, so that a wrong name ends the command and not the first visitor's run
        pair = playground.pairs.get(None, None)
        if proposals == AUTO:
            pair.prepare(AutoLength())
        if named != draft:
            notes.say_looked_up()
        run_playground(playground, host, listening, browser=browser, announce=announce)


def _listen(listen: Callable[[str, int], socket], host: str, port: int | None) -> socket:
    """Listen on a port; if none is asked for, on the usual one or else any free one."""
    if port is not None:
        return listen(host, port)
    try:
        return listen(host, PORT)
    except ValueError:
        return listen(host, 0)
