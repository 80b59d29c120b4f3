"""`cactus serve`: an OpenAI-compatible server with a draft, by vLLM or llama.cpp."""

from __future__ import annotations

import gc
import math
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from cactus_decoding.cli import notes, options, profiles, raise_when_interrupted
from cactus_decoding.cli.display import pass_times_text
from cactus_decoding.cli.help import long_options
from cactus_decoding.cli.options import RUNNING, option
from cactus_decoding.core.files.home import expanded
from cactus_decoding.core.models.loading import check_model_name
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf

if TYPE_CHECKING:
    from cactus_decoding.engines.vllm.schedule import Schedule

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus serve --rule clamped:width=1 --port 8000\n\n"
    "cactus serve target.gguf:context_size=8192 --draft draft.gguf --threads 4 --rule clamped:width=1\n\n"
    "cactus serve meta-llama/Llama-3.3-70B-Instruct --draft meta-llama/Llama-3.2-1B-Instruct --draft-sampling "
    "probabilistic --tensor-parallel-size 4\n\n"
    "Requests to vLLM choose a rule by "
    '"vllm_xargs": {"acceptance_rule": "clamped:width=1", "budget": 0.5}; to llama.cpp by the same names '
    "beside the others."
)
CONTEXT = {"ignore_unknown_options": True}  # these are passed on to vLLM
SERVING_ENGINES = ("vllm", "llama-cpp")
_PORT = 8000
KEY = "CACTUS_API_KEY"
_MODELS = "give TARGET and --draft, TARGET alone, or neither"
_NO_TREES = {"vllm": "vLLM has removed tree attention", "llama-cpp": "trees do not pay with llama.cpp on a CPU"}
_ONLY = {
    "vllm": "draft_sampling audit_fraction client_rules",
    "llama-cpp": "max_waiting parallel kept_prompts shared_prompts alias allow_origin threads",
}
SERVER = "Server"


@options.request_options("policy")
def serve(
    context: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(
        help="Verifying model, a local path, a GGUF file or a hub name, and then whatever vLLM's server takes.",
        metavar="[TARGET] [VLLM OPTIONS]", show_default="bundled, with vLLM")] = None,
    engine: Annotated[str | None, option(
        "What runs the models.", "vllm|llama-cpp", shown="llama-cpp for a GGUF file")] = None,
    draft: Annotated[str | None, option(
        "Proposing model, or 'suffix' to look proposals up in the text.", "MODEL",
        shown="suffix, or ngram with vLLM; bundled:worded for the bundled target")] = None,
    rule: Annotated[str | None, option(
        "For requests that name none, such as clamped:width=1, or your own: my_module:MyRule,ratio=0.5. No request "
        "imports a module: they name the package's rules, those that installed packages register, and this one.",
        "RULE", shown="lossless")] = None,
    budget: Annotated[float | None, option(
        "What a response may spend on the rule, if its request says nothing.", "NATS", shown="no limit", min=0)] = None,
    num_speculative_tokens: Annotated[str | None, option(
        "Tokens that the draft proposes per step, or 'auto' for as many as pay on this machine, which may be none: "
        "llama.cpp chooses in every step; vLLM measures when it starts, for some minutes, and chooses by the number of "
        "requests at once. '1:4,3:2,5:0' tells vLLM: 4 from one request on, 2 from three, none from five. Neither "
        "engine reads trees.", "N|auto", RUNNING, shown="vLLM: 4; llama.cpp: auto")] = None,
    draft_sampling: Annotated[str, option(
        "vLLM: how the draft model proposes: its likeliest tokens, or draws at the request's temperature, as it always "
        "does with llama.cpp.", "greedy|probabilistic")] = "greedy",
    audit_fraction: Annotated[float, option(
        "vLLM: part of the positions to audit for the metrics.", "F", min=0, max=1)] = 0.0,
    client_rules: Annotated[bool, option(
        "vLLM: let requests choose rule, budget and protection; or refuse those that ask for more than "
        "'lossless', a report and fewer proposals.", flag="--client-rules/--no-client-rules")] = True,
    host: Annotated[str | None, option(
        "Address to listen on. llama.cpp demands a key for one that other machines reach.", "ADDRESS", SERVER,
        shown="vLLM: all of them; llama.cpp: 127.0.0.1")] = None,
    port: Annotated[int | None, option(
        "Port; for llama.cpp, 0 takes a free one.", "N", SERVER, shown=str(_PORT), min=0, max=65535)] = None,
    api_key: Annotated[list[str] | None, option(
        "Answer those only who bring this key as 'Authorization: Bearer KEY'; may be given more than once. llama.cpp: "
        f"{KEY} in the environment does the same, with commas between keys, and other users of the machine do not see "
        "it.", "KEY", SERVER, shown="none")] = None,
    max_waiting: Annotated[int, option("llama.cpp: requests that may wait; others get 503.", "N", SERVER, min=0)] = 32,
    parallel: Annotated[int, option(
        "llama.cpp: requests at a time; they are read together.", "N", SERVER, min=1, max=64)] = 1,
    kept_prompts: Annotated[str, option(
        "llama.cpp: texts that stay read, or the memory that copies of them may take, such as 2GiB; 0 keeps none.",
        "N|SIZE", SERVER)] = "4",
    shared_prompts: Annotated[bool, option(
        "llama.cpp: let a request reuse what was read for another key, by whose time it can then tell what "
        "that was.", panel=SERVER, flag="--shared-prompts")] = False,
    alias: Annotated[str | None, option(
        "llama.cpp: what answers call the model; requests may name any.", "NAME", SERVER,
        shown="what the file says")] = None,
    allow_origin: Annotated[list[str] | None, option(
        "llama.cpp: let pages of this site ask, such as https://chat.example.org, or * for all; may be given more than "
        "once.", "ORIGIN", SERVER, shown="none")] = None,
    profile: profiles.ProfileFile = None,
    threads: options.Threads = None,
    *,
    settings: options.Settings,
) -> int:  # fmt: skip
    """Serve a GGUF file, or a model in vLLM, over an OpenAI-compatible API, with a rule chosen per request."""
    from cactus_decoding.core.checks import check_choice, check_number, suggestion
    from cactus_decoding.core.rules import parse_rule

    given = list(arguments or ())
    # an unknown option's value looks like an argument too, so the target can only be what comes first
    target = given.pop(0) if given and not given[0].startswith("-") else None
    if profile is not None and engine != "vllm":
        chosen = profiles.with_profile(profile, profiles.Chosen(target, draft, num_speculative_tokens, threads))
        target, draft, num_speculative_tokens, threads = chosen
    if engine is None:
        engine = "vllm" if target is None or parse_gguf(target) is None else "llama-cpp"
    check_choice("engine", engine, SERVING_ENGINES)
    known = long_options(context)
    for name in (each.partition("=")[0] for each in given if each.startswith("--")):
        if close := suggestion(name, known, cutoff=0.9):  # else it is handed on to vLLM
            raise ValueError(f"there is no option {name}{close}")
    for other, names in _ONLY.items():
        for name in names.split() if other != engine else ():
            if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE":
                raise ValueError(f"--{name.replace('_', '-')} is for --engine {other}, but the engine is {engine}")
    if profile is not None and engine == "vllm":
        raise ValueError("a profile is of this package's own loop: give --engine llama-cpp, or leave --profile out")
    if rule is not None:
        parse_rule(rule)
    proposals = _proposals(num_speculative_tokens, engine)
    if any(each.partition("=")[0] == "--tree" for each in given):
        raise ValueError(f"{_NO_TREES[engine]}, so there is no --tree: give --num-speculative-tokens")
    if budget is not None:
        check_number("budget", budget, 0, math.inf)
    for name, given_texts in (("--api-key", api_key or ()), ("--alias", () if alias is None else (alias,))):
        if not all(each.strip() for each in given_texts):
            raise ValueError(f"{name} must not be empty: give one, or leave the option out")
    keys = _keys(api_key or (), engine)
    policy = {name: value for name, value in settings.items() if value is not None}
    if not policy["lossless_tokens"]:
        del policy["lossless_tokens"]
    if engine == "llama-cpp":
        if given:
            raise ValueError(f"{given[0]} is for vLLM: with --engine llama-cpp all options are those of --help")
        if target is not None and parse_gguf(target) is not None:
            from cactus_decoding.core.drafting.registry import check_model_names

            check_model_names(target, draft)  # first, as a mistyped name needs no torch
        asked = policy | {"rule": rule or "lossless"}
        if proposals is not None:  # else the number that is fastest, which a request's settings may exclude
            asked["num_speculative_tokens"] = proposals
        if budget is not None:
            asked["budget"] = budget
        listens = (host or "127.0.0.1", _PORT if port is None else port)
        place = ServerAddress(*listens, keys, alias, max_waiting, shared_prompts, _origins(allow_origin or ()))
        return _serve_llama_cpp(target, draft, asked, parallel, kept_prompts, threads, place)
    for name, value in (("--host", host), ("--port", port)):
        given += [] if value is None else [name, str(value)]
    given += ["--api-key", *api_key] if api_key else []
    check_choice("draft_sampling", draft_sampling, ("greedy", "probabilistic"))
    for role, model in (("target", target), ("draft", draft)):
        # vLLM knows other places, such as s3://bucket, and other folders
        if model is not None and ":" not in model and not expanded(model).exists():
            check_model_name(role, model)
    asked = policy | {"acceptance_rule": rule, "budget": budget}
    return _serve_vllm(target, draft, asked, proposals, draft_sampling, audit_fraction, client_rules, given)


def _keys(given: Sequence[str], engine: str) -> list[str]:
    """Return keys, of llama.cpp's server perhaps from the environment; raise `ValueError` for what is none."""
    from cactus_decoding.core.checks import check_key

    named = "--api-key" if given or engine == "vllm" else KEY
    keys = [*given] if named != KEY else [key for each in os.environ.get(KEY, "").split(",") if (key := each.strip())]
    for each in keys:
        check_key(named, each)
    return keys


def _origins(given: Sequence[str]) -> list[str]:
    """Return sites as browsers name them, or ``*``; raise `ValueError` for what is none."""
    from cactus_decoding.core.checks import short_repr

    for each in given:
        parts = urlsplit(each)
        if each != "*" and (parts.scheme not in ("http", "https") or each != f"{parts.scheme}://{parts.netloc}"):
            said = "--allow-origin must be * or a site such as https://chat.example.org"
            raise ValueError(f"{said}, but is {short_repr(each)}")
    return [*given]


def _proposals(text: str | None, engine: str) -> int | str | Schedule | None:
    """Return a number, ``auto``, numbers by batch size, or None if llama.cpp's server is to choose; or `ValueError`."""
    from cactus_decoding.core.checks import check_integer, short_repr
    from cactus_decoding.core.request import AUTO

    least = 1 if engine == "vllm" else 0
    if text is None:
        return 4 if engine == "vllm" else None
    if text.strip() == AUTO:
        return AUTO
    if engine == "vllm" and ":" in text:
        from cactus_decoding.engines.vllm.schedule import parse_schedule

        return parse_schedule(text)
    try:
        number = int(text)
    except ValueError:
        others = ", auto, or pairs such as 1:4,3:2,5:0" if engine == "vllm" else " or auto"
        wanted = f"an integer of at least {least}{others}"
        raise ValueError(f"num_speculative_tokens must be {wanted}, but is {short_repr(text)}") from None
    check_integer("num_speculative_tokens", number, least)
    return number


def _serve_vllm(
    target: str | None,
    draft: str | None,
    asked: dict[str, Any],
    proposals: int | str | Schedule | None,
    draft_sampling: str,
    audit_fraction: float,
    client_rules: bool,
    engine_arguments: list[str],
) -> int:
    from cactus_decoding import zoo
    from cactus_decoding.core.request import AUTO
    from cactus_decoding.engines.vllm import server
    from cactus_decoding.engines.vllm.extra_args import request_of
    from cactus_decoding.engines.vllm.schedule import CANDIDATES, SIZES, choose, rates_text, spelled

    server.check_draft(draft)
    if target is not None and draft is None:
        draft = "ngram"  # built into vLLM
        notes.say_looked_up(draft)
    bundled = draft is None or zoo.draft_path(draft) is not None
    if (target is None) != bundled and draft != "ngram":
        raise ValueError(f"the bundled models work with each other only, but draft is {draft!r}: {_MODELS}")
    if target is not None and parse_gguf(target) is not None:
        raise ValueError(f"{target!r} is a GGUF file: give --engine llama-cpp, which reads them")
    default = request_of(asked, any_pattern=True)
    if default is not None:
        server.check_plugin_loads()
        if default.warning is not None:
            where = "sets it where requests do not"
            notes.say(f"{default.warning}: --override-generation-config '{{\"top_p\": 0.95}}' {where}")
    server.check_vllm()
    if memory := server.memory_arguments(engine_arguments, server.free_memory_share()):
        notes.say(f"less than vLLM's usual share of memory is free, so it gets {' '.join(memory)}")
    if precision := server.precision_arguments(target, engine_arguments):
        notes.say(f"vLLM gets {' '.join(precision)}, which is faster on this processor than 16 bits")

    def command(number: int | Schedule) -> list[str]:
        speculation = server.speculative_config(draft, number, draft_sampling)
        given = [*memory, *precision, *engine_arguments]
        return server.server_command(target, speculation, default, audit_fraction, given, client_rules)

    if proposals == AUTO:
        notes.say(f"measures what pays for {SIZES[0]} to {SIZES[-1]} requests at once, before it serves")
        rates = server.measured_rates(command(CANDIDATES[-1]))
        if isinstance(rates, int):
            return rates
        proposals = choose(rates)
        notes.say(f"tokens per second:\n{rates_text(rates)}")
        notes.say(f"the next time without measuring: --num-speculative-tokens {spelled(proposals)}")
    assert proposals is not None
    assert not isinstance(proposals, str)
    return server.run_server(command(proposals))


class ServerAddress(NamedTuple):
    """Where a server of GGUF files listens, and whom it answers."""

    host: str
    port: int
    keys: list[str]
    alias: str | None
    max_waiting: int
    shared_prompts: bool
    origins: list[str]


def _serve_llama_cpp(
    target: str | None,
    draft: str | None,
    asked: dict[str, Any],
    parallel: int,
    kept_prompts: str,
    threads: int | None,
    place: ServerAddress,
) -> int:
    from cactus_decoding.core.extras import needing
    from cactus_decoding.core.spelling import read_kept_prompts
    from cactus_decoding.engines.llama_cpp.models.library import library
    from cactus_decoding.engines.llama_cpp.models.weights import begin_to_load

    with needing("cactus serve needs Starlette, uvicorn and prometheus_client", "llama-cpp"):
        import prometheus_client  # noqa: F401

        from cactus_decoding.engines.openai.serving import is_loopback, listen
    if not is_loopback(place.host) and not place.keys:
        raise ValueError(
            f"whoever reaches {place.host} could use the server: give --api-key, or a key in {KEY}, or listen on "
            "127.0.0.1"
        )
    from cactus_decoding.core.drafting.registry import LOOK_UP, check_keeps_nothing, is_drafter

    library()  # says how to install it
    file = None if target is None else parse_gguf(target)
    if file is None:
        raise ValueError("--engine llama-cpp serves GGUF files: give TARGET.gguf")
    if draft is None:
        notes.say_looked_up()
        draft = LOOK_UP
    check_keeps_nothing(draft)
    read_kept_prompts(kept_prompts)
    files = [each for each in (file, parse_gguf(draft)) if each is not None]
    from cactus_decoding.core.request import Request

    Request.from_dict(asked | {"temperature": 0.0})
    with listen(place.host, place.port) as listening:  # before the models are loaded
        gc.disable()  # imported modules stay, and need not be searched for garbage again and again
        try:
            for each in files:
                begin_to_load(each)  # in the background, while modules are imported
            from cactus_decoding.core.drafting.automatic import AutoLength
            from cactus_decoding.core.request import AUTO
            from cactus_decoding.engines.llama_cpp.pairs import PairPool
            from cactus_decoding.engines.llama_cpp.server.server import LlamaServer, run_llama_server

            if len(files) < 2 and not is_drafter(draft):  # a draft of transformers
                options.prepare_process(threads, small=False)
            loaded = PairPool.load(file.with_threads(threads), draft, parallel, kept_prompts)
        finally:
            gc.enable()
        name = place.alias or loaded.pairs[0].target.model.metadata("general.name") or "model"
        server = LlamaServer(loaded, name, asked, place.max_waiting, shared=place.shared_prompts)

        def announce(address: str) -> None:
            guarded = "with a key" if place.keys else "without a key"
            typer.echo(f"cactus serve: {address}v1 ({server.name}, {guarded}; Ctrl-C stops it)")
            raise_when_interrupted()

        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        if loaded.pairs[0].chooses and asked.get("num_speculative_tokens", AUTO) == AUTO:
            with loaded.take([], threading.Event()) as pair:  # so that no client waits for it
                notes.prepare_length(pair, AutoLength())
                if times := pair.pass_times(AutoLength()):
                    notes.say(f"proposes what pays by {pass_times_text(times)}")

        notes.say_what_is_logged("cactus_decoding.engines.transformers")
        notes.say_what_is_logged("cactus_decoding.core.models")
        notes.say_what_is_logged("cactus_decoding.engines.llama_cpp.server.completion")
        run_llama_server(server, place.host, listening, place.keys, place.origins, announce)
    return 0
