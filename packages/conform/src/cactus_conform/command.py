"""`cactus-conform`: is an engine's speculation lossless?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from cactus_conform.engine import EngineError
from cactus_conform.files import check_writable, provenance, write_json
from cactus_conform.report import Finding, as_dict, line, verdict
from cactus_conform.suite import FALSE_ALARM, SAMPLES

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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see '{self.prog} --help')")


def parser(program: str) -> argparse.ArgumentParser:
    made = _Parser(program, f"{program} [OPTIONS] [ENGINE]", _ABOUT, _EXAMPLES.format(program),
                   formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)  # fmt: skip
    made.add_argument("engine", nargs="?", metavar="ENGINE",
                      help="transformers, vllm, llama-cpp, cactus, the address of an OpenAI-compatible server, or "
                      "module:name of a function that is called with prompt, sampling and seed")  # fmt: skip
    made.add_argument("--models", type=Path, metavar="FOLDER", help="write the tiny models here, as folders and GGUF "
                      "files, for servers")  # fmt: skip
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                      help="a setting of the engine, as JSON or text; may be given several times")  # fmt: skip
    made.add_argument("--against", metavar="ADDRESS", help="compare servers of your own model by their texts: ENGINE "
                      "drafts, this one does not")  # fmt: skip
    made.add_argument("--prompts", type=Path, metavar="FILE", help="prompts for --against, one a line; a few are "
                      "built in")  # fmt: skip
    made.add_argument("--output", type=Path, metavar="FILE", help="write what was found, with its provenance, here")
    checks = made.add_argument_group("checks")
    checks.add_argument("--samples", type=_positive, default=SAMPLES, metavar="N",
                        help="responses that a check draws (%(default)s); a few draw four times as many")  # fmt: skip
    checks.add_argument("--false-alarm", type=float, default=FALSE_ALARM, metavar="P",
                        help="how often a right engine may be called wrong (%(default)s)")  # fmt: skip
    checks.add_argument("--seed", type=int, default=0, metavar="S", help="of the first response (%(default)s)")
    checks.add_argument("--self-test", action="store_true", help="check that engines which are wrong in one way each "
                        "are caught")  # fmt: skip
    return made


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {text}")
    return number


def run(arguments: Sequence[str], program: str = "cactus-conform") -> int:
    """Run the command and return its exit code; a mistake in the arguments raises `ValueError`."""
    try:
        given = parser(program).parse_args(arguments)
    except SystemExit as end:  # after help
        return int(end.code or 0)
    if given.engine is None and given.models is None and not given.self_test:
        raise ValueError(
            f"give an ENGINE such as transformers, --models FOLDER, or --self-test (see '{program} --help')"
        )
    if given.against is not None and given.engine is None:
        raise ValueError("--against compares with ENGINE, which is not given")
    if not 0 < given.false_alarm < 1:
        raise ValueError(f"false_alarm must be in (0, 1), but is {given.false_alarm:g}")
    settings = dict(map(_setting, given.set))
    prompts = _PROMPTS if given.prompts is None else tuple(filter(None, given.prompts.read_text().splitlines()))
    if not prompts:
        raise ValueError(f"{given.prompts} holds no prompt")
    check_writable(given.output)
    if given.models is not None:
        _write(given.models)
    drawn = {"samples": given.samples, "false_alarm": given.false_alarm}
    right, result = True, dict[str, object]()
    if given.self_test:
        right, result["mutants"] = _self_test(**drawn)
    drawn["seed"] = given.seed
    if given.against is not None:
        conforms, result["comparison"] = _compare(given.engine, given.against, settings, prompts, **drawn)
        right = right and conforms
    elif given.engine is not None:
        conforms, result["report"] = _conform(given.engine, settings, **drawn)
        right = right and conforms
    if given.output is not None and result:
        compared = {} if given.against is None else {"against": given.against, "prompts": prompts}
        arguments_ = {"engine": given.engine, "set": settings} | compared | drawn
        write_json(given.output, result | {"provenance": provenance(arguments_)})
    return RIGHT if right else WRONG


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--set must be NAME=VALUE, but is {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _write(folder: Path) -> None:
    from importlib.util import find_spec

    from cactus_conform.models import write_models

    gguf = find_spec("gguf") is not None
    write_models(folder, gguf=gguf)
    print(f"Wrote the tiny models into {folder}/" + ("" if gguf else "; GGUF files need pip install gguf"))


def _say(finding: Finding) -> None:
    print(line(finding), flush=True)


def _conform(name: str, settings: dict[str, object], **drawn: Any) -> tuple[bool, object]:
    from cactus_conform.engines import open_engine
    from cactus_conform.suite import conform

    opened = open_engine(name, settings)
    try:
        report = conform(opened, report=_say, **drawn)
    finally:
        opened.close()
    print(*verdict(report), sep="\n")
    return report.right, as_dict(report)


def _compare(
    engine: str, against: str, settings: dict[str, object], prompts: Sequence[str], **drawn: Any
) -> tuple[bool, object]:
    from cactus_conform.comparison import compare, said
    from cactus_conform.engines.server import ServerEngine

    first, second = (ServerEngine(address, settings) for address in (engine, against))
    found = compare(first, second, prompts, **drawn)
    print(*said(found), sep="\n")
    return found.right, asdict(found)


def _self_test(**drawn: Any) -> tuple[bool, object]:
    from cactus_conform.mutants import self_test

    table = []
    for mutant in self_test(**drawn):
        print(mutant.line(), flush=True)
        table.append(mutant._asdict())
    return all(each["caught"] for each in table), table


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
    except (EngineError, OSError, TypeError, ValueError) as error:
        print(f"cactus-conform: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
