"""`cactus serve`: an OpenAI-compatible server with a draft, by vLLM."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from cactus_decoding.cli import options

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus serve --rule cactus:delta=0.5 --port 8000\n\n"
    "cactus serve meta-llama/Llama-3.3-70B-Instruct --draft meta-llama/Llama-3.2-1B-Instruct --draft-sampling "
    "probabilistic --tensor-parallel-size 4\n\n"
    "Requests choose a rule by "
    '"vllm_xargs": {"acceptance_rule": "cactus:delta=1.0", "protect": "digits"}.'
)
SETTINGS = {"ignore_unknown_options": True}
"""What typer does not know is for vLLM."""


@options.request_options(
    "protect", "protect_threshold", "importance", "max_importance", "lossless_tokens", "relax_within"
)
def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET] [VLLM OPTIONS]", help="Verifying model, a local path or a hub name, and then "
                       "whatever vLLM's server takes.", show_default="bundled"),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Proposing model, or 'ngram'.", show_default="bundled:worded"),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="For requests that name none, such as cactus:delta=0.5.",
                     show_default="lossless"),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(min=0, metavar="NATS", help="What a response may spend on the rule, if its request says nothing.",
                     show_default="no limit"),
    ] = None,
    num_speculative_tokens: options.NumSpeculativeTokens = 4,
    draft_sampling: Annotated[
        str,
        typer.Option(metavar="greedy|probabilistic", help="How the draft model proposes: its likeliest tokens, or "
                     "draws at the request's temperature."),
    ] = "greedy",
    audit_fraction: Annotated[
        float, typer.Option(min=0, max=1, metavar="F", help="Part of the positions to audit for the metrics.")
    ] = 0.0,
    *,
    settings: options.Settings,
) -> int:  # fmt: skip
    """Serve a model with relaxed acceptance, chosen per request, over vLLM's OpenAI-compatible API."""
    from cactus_decoding import zoo
    from cactus_decoding.arguments.checks import check_choice, check_integer, check_number
    from cactus_decoding.integrations.vllm.request import BUDGET_KEY, RULE_KEY, request_of
    from cactus_decoding.integrations.vllm.server import check_installed, run_server, server_command, speculative_config

    engine_arguments = list(arguments or ())
    # an unknown option's value looks like an argument too, so the target can only be what comes first
    target = engine_arguments.pop(0) if engine_arguments and not engine_arguments[0].startswith("-") else None
    check_choice("draft_sampling", draft_sampling, ("greedy", "probabilistic"))
    check_integer("num_speculative_tokens", num_speculative_tokens, 1)
    bundled = draft is None or zoo.draft_path(draft) is not None
    if (target is None) != bundled and draft != "ngram":
        raise ValueError("the bundled models work with each other only: give TARGET and --draft, or neither")
    if budget is not None:
        check_number("budget", budget, 0, math.inf)
    policy = {name: value for name, value in settings.items() if value is not None}
    if not policy["lossless_tokens"]:
        del policy["lossless_tokens"]
    default = request_of({RULE_KEY: rule, BUDGET_KEY: budget, **policy}, any_pattern=True)
    check_installed()
    speculation = speculative_config(draft, num_speculative_tokens, draft_sampling)
    return run_server(server_command(target, speculation, default, audit_fraction, engine_arguments))
