"""`cactus conform`: is an engine's speculation lossless?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cactus_decoding.cli.options import option

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus conform cactus\n\n"
    "cactus conform transformers --output transformers.json\n\n"
    "cactus conform --models tiny\n\n"
    "cactus serve tiny/target.gguf --draft tiny/bad.gguf --port 8000"
)
WRONG = 1
_PROMPTS = ("abc", "The capital of France is", "1 2 3 4", "Once upon a time")
CHECKS = "Checks"


def conform(
    engine: Annotated[str | None, typer.Argument(
        metavar="ENGINE", show_default=False,
        help="cactus, transformers, vllm, llama-cpp, the address of an OpenAI-compatible "
        "server, or module:function, called with prompt, sampling and seed.")] = None,
    models: Annotated[Path | None, option(
        "Write the tiny models here, as folders and GGUF files.", "FOLDER",
        file_okay=False)] = None,
    settings: Annotated[list[str] | None, option(
        "A setting of the engine, as JSON or text. May be given several times.", "NAME=VALUE", flag="--set",
        shown="none")] = None,
    against: Annotated[str | None, option(
        "Compare servers of your own model: ENGINE drafts, this does not. "
        "Nobody's rows are known.", "ADDRESS", shown="none")] = None,
    prompts: Annotated[Path | None, option(
        "Prompts for --against, one a line; a few are built in.", "FILE", exists=True, shown="none")] = None,
    samples: Annotated[int, option(
        "Responses that a check draws; a few draw four times as many.", "N", CHECKS, min=1)] = 200,
    false_alarm: Annotated[float, option(
        "How often a right engine may be called wrong.", "P", CHECKS)] = 0.001,
    seed: Annotated[int, option("Of the first response.", "S", CHECKS, min=0)] = 0,
    self_test: Annotated[bool, option(
        "Check that engines which are wrong in one way each are caught.", panel=CHECKS, flag="--self-test")] = False,
    output: Annotated[Path | None, option(
        "Write what was found, with its provenance, here.", "FILE")] = None,
) -> int:  # fmt: skip
    """Say whether an engine's speculation is lossless: whether tokens have the law of the target alone.

    It answers over tiny models whose laws are known: temperature, cuts, penalties, stop tokens, cancelled requests
    and seeds. A wrong engine is mostly caught in seconds, with the likely cause.

    Exit code: 0 right, 1 wrong, 2 an engine that is down or gives no answer, or bad input.
    """
    from cactus_decoding.core.files.writing import as_json, check_writable, write_atomically

    if engine is None and models is None and not self_test:
        raise ValueError("give an ENGINE such as cactus, --models FOLDER, or --self-test (see 'cactus conform --help')")
    given = dict(_setting(each) for each in settings or ())
    check_writable(output)
    from cactus_decoding.core.mistakes import check_number

    check_number("false_alarm", false_alarm, 0, 1, low_open=True, high_open=True)
    if against is not None and engine is None:
        raise ValueError("--against compares with ENGINE, which is not given")
    asked = _PROMPTS if prompts is None else tuple(filter(None, prompts.read_text().splitlines()))
    if not asked:
        raise ValueError(f"{prompts} holds no prompt")
    if models is not None:
        _write(models)
    right, result = True, dict[str, object]()
    if self_test:
        right, result["mutants"] = _self_test(samples=samples, false_alarm=false_alarm)
    drawn: dict[str, Any] = {"samples": samples, "false_alarm": false_alarm, "seed": seed}
    if engine is not None and against is not None:
        conforms, result["comparison"] = _compare(engine, against, given, asked, **drawn)
        right = right and conforms
    elif engine is not None:
        conforms, result["report"] = _conform(engine, given, **drawn)
        right = right and conforms
    if output is not None and result:
        from cactus_decoding.core.files.provenance import provenance

        compared = {} if against is None else {"against": against, "prompts": asked}
        arguments = {"engine": engine, "set": given} | compared | drawn
        write_atomically(output, as_json(result | {"provenance": provenance(arguments)}, indent=1) + "\n")
    return 0 if right else WRONG


def _setting(text: str) -> tuple[str, object]:
    import json

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--set must be NAME=VALUE, but is {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _write(folder: Path) -> None:
    from importlib.util import find_spec

    from cactus_decoding.lab.conformance.models import write_models

    gguf = find_spec("gguf") is not None
    write_models(folder, gguf=gguf)
    typer.echo(f"Wrote the tiny models into {folder}/" + ("" if gguf else "; GGUF files need pip install gguf"))


def _conform(name: str, settings: dict[str, object], **drawn: Any) -> tuple[bool, object]:
    from cactus_decoding.lab.conformance.engines.registry import open_engine
    from cactus_decoding.lab.conformance.findings import as_dict, line, verdict
    from cactus_decoding.lab.conformance.suite import conform as conforms

    opened = open_engine(name, settings)
    try:
        report = conforms(opened, report=lambda finding: typer.echo(line(finding)), **drawn)
    finally:
        opened.close()
    for each in verdict(report):
        typer.echo(each)
    return report.right, as_dict(report)


def _compare(
    engine: str, against: str, settings: dict[str, object], prompts: tuple[str, ...], **drawn: Any
) -> tuple[bool, object]:
    from dataclasses import asdict

    from cactus_decoding.lab.conformance.engines.server import ServerEngine
    from cactus_decoding.lab.conformance.two_sample import compare, said

    first, second = (ServerEngine(address, settings) for address in (engine, against))
    found = compare(first, second, prompts, **drawn)
    for each in said(found):
        typer.echo(each)
    return found.right, asdict(found)


def _self_test(**drawn: Any) -> tuple[bool, object]:
    from cactus_decoding.lab.conformance.mutants import self_test

    table = []
    for mutant in self_test(**drawn):
        typer.echo(mutant.line())
        table.append(mutant._asdict())
    return all(each["caught"] for each in table), table
