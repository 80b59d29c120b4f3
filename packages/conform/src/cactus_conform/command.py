"""`cactus-conform`: is an engine's speculation lossless?"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from cactus_conform.comparison import compare, said
from cactus_conform.engines import open_engine
from cactus_conform.engines.server import ServerEngine
from cactus_conform.models import write_models
from cactus_conform.mutants import self_test
from cactus_conform.report import ConformanceReport, as_dict, gate_verdict, line, provenance, verdict, writing
from cactus_conform.suite import FALSE_ALARM, SAMPLES, conform

RIGHT, WRONG, MISTAKE, INTERRUPTED = 0, 1, 2, 130
_PROMPTS = ("abc", "The capital of France is", "1 2 3 4", "Once upon a time")
_ABOUT = """\
Say whether an engine's speculation is lossless: whether its tokens have the distribution of the target alone.

The engine answers over tiny models whose distributions are known: temperature, cuts, penalties, stop tokens,
cancelled requests and seeds. A wrong engine is mostly caught in seconds, with the likely cause.

Exit code: 0 right, 1 wrong, 2 an engine that is down or gives no answer, or bad input."""
_EXAMPLES = """\
examples:
  {0} transformers --output transformers.json
  {0} --models tiny
  {0} http://127.0.0.1:8000 --set draft=bad"""
_OPTIONS: dict[str, dict[str, Any]] = {
    "--models FOLDER": {"type": Path, "help": "write the tiny models here, as folders and GGUF files, for servers"},
    "--set NAME=VALUE": {"action": "append", "default": [],
                         "help": "a setting of the engine, as JSON or text; may be given several times"},
    "--against ADDRESS": {"help": "compare servers of your own model by their texts: ENGINE drafts, this one does not"},
    "--prompts FILE": {"type": Path, "help": "prompts for --against, one a line; a few are built in"},
    "--output FILE": {"type": Path, "help": "write what was found, with its provenance, here"},
    "--samples N": {"type": int, "default": SAMPLES,
                    "help": "responses that a check draws (%(default)s); a few checks draw four times as many"},
    "--false-alarm P": {"type": float, "default": FALSE_ALARM,
                        "help": "how often a right engine may be called wrong (%(default)s)"},
    "--seed S": {"type": int, "default": 0, "help": "of the first response (%(default)s)"},
    "--gate": {"action": "store_true", "help":
               "print the verdict within a minute, as one line of JSON; 0 only if every check was answered and right"},
    "--self-test": {"action": "store_true", "help": "check that engines which are wrong in one way each are caught"},
}  # fmt: skip
_ARGPARSE = {
    r"^argument (\S+): invalid int value: (.*)": r"\1 must be an integer, but is \2",
    r"^argument (\S+): invalid float value: (.*)": r"\1 must be a number, but is \2",
    r"^argument (\S+): expected one argument": r"\1 needs a value",
    r"^unrecognized arguments: (--\S+)$": r"there is no option \1",
    r"^unrecognized arguments: ": "too many arguments: ",
}
"""Beginnings of argparse's messages, and what is said in their place."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        for began, rest in _ARGPARSE.items():
            message = re.sub(began, rest, message)
        raise ValueError(f"{message} (see '{self.prog} --help')")


def parser(program: str) -> argparse.ArgumentParser:
    made = _Parser(program, f"{program} [OPTIONS] [ENGINE]", _ABOUT, _EXAMPLES.format(program),
                   formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)  # fmt: skip
    named = "transformers, vllm, llama-cpp, cactus, the address of an OpenAI-compatible server, or module:name of a "
    made.add_argument("engine", nargs="?", metavar="ENGINE", help=named + "function of prompt, sampling and seed")
    for spelled, option in _OPTIONS.items():
        flag, _, metavar = spelled.partition(" ")
        made.add_argument(flag, **(option | {"metavar": metavar} if metavar else option))
    return made


def run(arguments: Sequence[str], program: str = "cactus-conform") -> int:
    try:
        given = parser(program).parse_args(arguments)
    except SystemExit as end:  # after help
        return int(end.code or 0)
    if given.engine is None and given.models is None and not given.self_test:
        known = "give an ENGINE such as transformers, --models FOLDER, or --self-test"
        raise ValueError(f"{known} (see '{program} --help')")
    if given.against is not None and given.engine is None:
        raise ValueError("--against compares with ENGINE, which is not given")
    settings = dict(map(_setting, given.set))
    prompts = _PROMPTS if given.prompts is None else tuple(filter(None, given.prompts.read_text().splitlines()))
    if not prompts:
        raise ValueError(f"{given.prompts} holds no prompt")
    with writing(given.output) if given.output else nullcontext() as file:
        if given.models is not None:
            gguf = find_spec("gguf") is not None
            write_models(given.models, gguf=gguf)
            print(f"Wrote the tiny models into {given.models}/" + "; GGUF files need pip install gguf" * (not gguf))
        drawn = {"samples": given.samples, "false_alarm": given.false_alarm}
        right, result = True, dict[str, object]()
        if given.self_test:
            result["mutants"] = table = []
            for mutant in self_test(**drawn):
                print(mutant.line(), flush=True)
                table.append(mutant._asdict())
                right = right and mutant.caught
        drawn["seed"] = given.seed
        asked: dict[str, object] = {"engine": given.engine, "set": settings}
        if given.against is not None:
            asked |= {"against": given.against, "prompts": prompts}
            first, second = (ServerEngine(address, settings) for address in (given.engine, given.against))
            found = compare(first, second, prompts, **drawn)
            print(*said(found), sep="\n")
            right, result["comparison"] = right and found.right, asdict(found)
        elif given.engine is not None and given.gate:
            report = _gate(given.engine, settings, **drawn)
            print(json.dumps(gate_verdict(report)))
            right, result["report"] = right and report.right, as_dict(report)
        elif given.engine is not None:
            opened = open_engine(given.engine, settings)
            try:
                report = conform(opened, report=lambda each: print(line(each), file=sys.stderr, flush=True), **drawn)
            finally:
                opened.close()
            print(*verdict(report), *map(line, report.wrong), sep="\n")
            right, result["report"] = right and report.right, as_dict(report)
        if file is not None:
            file.write(json.dumps(result | {"provenance": provenance(asked | drawn)}, indent=1, allow_nan=False) + "\n")
    return RIGHT if right else WRONG


def _gate(name: str, settings: dict[str, object], **drawn: Any) -> ConformanceReport:
    try:
        return conform(open_engine(name, settings), gate=True, **drawn)
    except Exception as error:  # whatever goes wrong, the gate stays closed
        return ConformanceReport(name, drawn["false_alarm"], failure=f"{type(error).__name__}: {error}")


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--set must be NAME=VALUE, but is {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and turn a mistake into one line and exit code 2."""
    if "" not in sys.path:  # the current folder, last: an engine may be a module there
        sys.path.append("")
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has left: nothing more may be written when Python exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG
    except (OSError, TypeError, ValueError) as error:
        print(f"cactus-conform: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
