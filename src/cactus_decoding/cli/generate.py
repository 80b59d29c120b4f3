"""`cactus generate`: one response, as it grows."""

from __future__ import annotations

import json
import math
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cactus_decoding.cli import notes, options, profiles
from cactus_decoding.cli.display import choices_table, metrics_table, pass_times_text, show, summary_line
from cactus_decoding.cli.help import ASK
from cactus_decoding.cli.options import OUTPUT, option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cactus_decoding import Outcome
    from cactus_decoding.lab.tracing import TracedStep

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    f"{ASK}\n\n"
    f"{ASK} --rule cactus:delta=0.5 --top-p 0.95\n\n"
    f"{ASK} --rule clamped:width=1 --budget 0.02\n\n"
    f"{ASK} --rule cactus:delta=1 --trace nuts.jsonl\n\n"
    'cactus generate "Once upon a time" --target gpt2-large --draft gpt2 --seed 7\n\n'
    "cactus generate - --target ./model --draft ngram --json < prompt.txt"
)
MODELS = "Models"


@options.request_options("rule", "budget", "policy", "proposals", "sampling", "answer")
def generate(
    *,
    prompt: Annotated[str, typer.Argument(help="The text to continue; '-' reads standard input.", metavar="PROMPT")],
    target: Annotated[str | None, option(
        "Verifying model: a local path, a GGUF file or a hub name.", "MODEL", MODELS, shown="bundled")] = None,
    draft: Annotated[str | None, option(
        "Proposing model, 'suffix' to look proposals up in the text, or 'early_exit:layers=3' for the target's "
        "first layers.", "MODEL", MODELS, shown="suffix, or bundled:worded for the bundled target")] = None,
    raw: Annotated[bool, option(
        "Pass the prompt on as it is. Otherwise a question to the bundled pair becomes 'Question: … Answer:'.",
        panel=MODELS, flag="--raw")] = False,
    chat: Annotated[bool, option(
        "Ask by the target's chat template, as chat models want it.", panel=MODELS, flag="--chat")] = False,
    settings: options.Settings,
    as_json: Annotated[bool, option(
        "Write one JSON object to stdout, and nothing else.", panel=OUTPUT, flag="--json")] = False,
    verbose: Annotated[bool, option(
        "End with a table of all counts instead of one line.", panel=OUTPUT, flag="--verbose")] = False,
    trace: Annotated[Path | None, option(
        "Record what happened at every token here; 'cactus trace FILE' makes a page of it.", "FILE", OUTPUT,
        shown="none")] = None,
    json_schema: Annotated[Path | None, option(
        "Answer in JSON that fits the JSON schema in this file.", "FILE", OUTPUT,
        shown="none")] = None,
    regex: Annotated[str | None, option(
        "Answer in text that fits this regular expression from its beginning to its end.", "PATTERN", OUTPUT,
        shown="none")] = None,
    choices: Annotated[str | None, option(
        "Answer with one of these texts, by the exact probability of each: separated by commas, or a JSON list of "
        "texts.", "TEXTS", OUTPUT, shown="none")] = None,
    profile: profiles.ProfileFile = None,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Continue a prompt by drafting and verifying, with every token styled by how it came about.

    The text goes to stdout. One line on what it took goes to stderr, or with --verbose a table.
    """
    from cactus_decoding.core.drafting.registry import check_model_names

    if raw and chat:
        raise ValueError("--raw and --chat exclude each other: give one of them")
    response_format, answers = _response_format(json_schema, regex), _choices(choices)
    if answers is not None and response_format is not None:
        raise ValueError("--choices goes neither with --json-schema nor with --regex: give one of them")
    if trace is not None and (answers is not None or response_format is not None):
        raise ValueError(
            "--trace goes neither with --json-schema nor with --regex or --choices: traces show unconstrained responses"
        )
    text = _read(prompt, raw)
    given = profiles.Chosen(target, draft, settings["num_speculative_tokens"] or settings["tree"], threads)
    target, draft, proposals, threads = profiles.with_profile(profile, given)
    check_model_names(target, draft)
    if settings["tree"] is None:
        settings = settings | {"num_speculative_tokens": proposals}
    from cactus_decoding.core.request import with_default_proposals
    from cactus_decoding.zoo import BUNDLED

    # first, as mistakes need not wait for transformers
    request = options.as_request(with_default_proposals(settings, automatic=target not in (None, BUNDLED)))
    from cactus_decoding import AutoLength, load_pair, stream
    from cactus_decoding.core.files.writing import as_json as to_json
    from cactus_decoding.core.files.writing import check_writable
    from cactus_decoding.core.models.tokenizers import as_chat_prompt
    from cactus_decoding.zoo.word_problems import as_prompt

    if request.seed is None:
        length = request.draft_length
        # the seed is drawn, so it need not keep `auto` from learning
        free = {"num_speculative_tokens": replace(length, learns="always")} if isinstance(length, AutoLength) else {}
        request = request.replace(seed=secrets.randbelow(2**32), **free)
    errors = Console(stderr=True, highlight=False)
    notes.say_what_changes_nothing(request)
    if request.warning is not None:
        typer.echo(f"cactus: warning: {request.warning}", err=True)
    check_writable(trace)
    if trace is not None:
        from cactus_decoding.lab.tracing.positions import check_traced

        check_traced(request)
    named = notes.default_draft(target, draft)
    options.prepare_process(threads, target, named, small=target is None)
    with errors.status("Loading the models"):
        pair = load_pair(target, named)
    notes.prepare_length(pair, request.draft_length)
    question = text
    if chat:
        text = as_chat_prompt(pair.tokenizer, text)
    elif pair.bundled and not raw:
        text = as_prompt(text)
    steps: Iterable[Outcome | TracedStep]
    if trace is None:
        response = stream(pair, text, request, response_format=response_format, choices=answers)
        steps = response
    else:
        from cactus_decoding.lab.tracing import stream_trace, written

        traced = stream_trace(pair, text, request, target=target, draft=named)
        response, steps = traced.response, written(traced, trace)
    if named != draft:
        notes.say_looked_up()
    notes.say_of_prompt(pair, question, chat=chat, raw=raw)
    if as_json:
        for _ in steps:
            pass
    else:
        show(steps, pair.tokenizer, request.stop)
        sys.stdout.flush()
    if as_json:
        left = response.budget_left
        result = {
            "text": response.text,
            "token_ids": response.token_ids,
            "fates": response.fates,
            "finish_reason": response.finish_reason,
            "metrics": response.metrics.as_dict(),
            "choices": [choice.as_dict() for choice in response.choices],
            "budget_left": None if left is None or math.isinf(left) else left,
            "pass_times": response.pass_times,
            "arguments": {"target": target, "draft": named, "prompt": text, "response_format": response_format}
            | request.as_dict(),
        }
        typer.echo(to_json(result))
    else:
        errors.print()
        if response.choices:
            errors.print(choices_table(response.choices))
        if verbose:
            errors.print(metrics_table(response))
        else:
            errors.print(summary_line(response), soft_wrap=True)
        if verbose and response.pass_times is not None:
            errors.print(f"Proposed what pays by {pass_times_text(response.pass_times)}", soft_wrap=True, markup=False)
    if trace is not None and not as_json:
        errors.print(f"\nwrote {trace}: 'cactus trace {trace}' makes a page of it", soft_wrap=True, markup=False)


def _choices(given: str | None) -> tuple[str, ...] | None:
    """Return the answers that an option lists; raise `TypeError` or `ValueError` for what is no list of answers."""
    if given is None:
        return None
    from cactus_decoding.core.choices import check_choices

    if not given.lstrip().startswith("["):
        return check_choices([each.strip() for each in given.split(",")], "--choices")
    try:
        return check_choices(json.loads(given), "--choices")
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"--choices must be texts with commas between them, or a JSON list: {error}") from None


def _response_format(json_schema: Path | None, regex: str | None) -> dict[str, Any] | None:
    """Return what the response must look like; `ValueError` for what cannot be read."""
    if json_schema is not None and regex is not None:
        raise ValueError("--json-schema and --regex exclude each other: give one of them")
    if regex is not None:
        return {"type": "grammar", "syntax": "regex", "definition": regex}
    if json_schema is None:
        return None
    try:
        schema = json.loads(json_schema.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {json_schema}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{json_schema} must be a JSON schema, but is no JSON: {error}") from None
    from cactus_decoding.core.constraints.base import as_grammar

    found = {"type": "json_schema", "json_schema": {"schema": schema}}
    as_grammar(found, str(json_schema))  # whose message names the file
    return found


def _read(prompt: str, raw: bool) -> str:
    """Return the prompt as valid text, read from standard input if it is ``-``."""
    given = prompt == "-"
    if given and sys.stdin is None:
        raise ValueError("the prompt is '-', but standard input is closed")
    data = sys.stdin.buffer.read() if given else prompt.encode(errors="surrogateescape")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt must be UTF-8 text, but byte {error.start} is {data[error.start]:#04x}") from None
    if raw:
        return text
    if not text.strip():
        raise ValueError("the prompt must not be blank (with --raw it may)")
    return text.removesuffix("\n") if given else text
