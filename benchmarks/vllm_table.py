"""What rules bring in vLLM on a pair of models: tokens per second, time per answer and length, by load.

    python benchmarks/vllm_table.py --target Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B

It needs an environment with vLLM, with a GPU or with its CPU engine. Each number of proposals has an engine of its own,
drawn or likeliest, and one has no draft. Within an engine every request asks for its rule. The loop of this package
answers the same prompts, one at once. With several requests at once, a finished one is replaced by the next.

What an option lists first matters most, and is answered first: a run that is cut short gives a table. Each answer is a
line of OUTPUT.jsonl when it is finished, so the same command goes on where it stopped, also with more --prompts or
longer lists. OUTPUT.json holds all answers' numbers and the summary, and no texts.
"""

from __future__ import annotations

import json
import multiprocessing
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from draft_lengths import RULES
from pairing import RESULTS, asked, mistaken, parse, write
from vllm_environment import set_environment
from vllm_loops import LOOPS, SAMPLINGS, Asked, Cell, Prompt, answer_cells
from vllm_summary import NO_DRAFT, as_text, summaries

from cactus_decoding.cli.display import duration
from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.files.jsonl import GrowingFile, objects_in, whole_lines
from cactus_decoding.core.files.provenance import commit
from cactus_decoding.core.files.writing import lock
from cactus_decoding.core.models.tokenizers import Tokenizer
from cactus_decoding.engines.vllm.offline import parse_engine_arguments
from cactus_decoding.lab.evaluation.chat import Chat, tokenizer_of
from cactus_decoding.lab.evaluation.tasks.sources import parse_tasks
from cactus_decoding.lab.evaluation.tasks.task import task_in_chat

DRAFTING = ("drawn", "likeliest")
Line = Mapping[str, Any]
"""A line of the journal: the settings, the start of an engine, or an answer."""


def rank(given: Namespace, cell: Cell) -> int:
    """Return how late a cell is answered: two numbers of proposals, two loads, one way to draft and one to sample
    belong together, in the order in which they were listed."""
    drafted = 0 if cell.rule == NO_DRAFT else given.proposals.index(cell.proposals) // 2
    late = given.drafting.index(cell.drafting) if cell.drafting else 0
    return drafted + late + given.sampling.index(cell.sampling) + given.at_once.index(cell.at_once) // 2


def cells_of(given: Namespace) -> list[Cell]:
    """Return everything that is to be measured, in no order."""
    found = []
    for loop in given.loops:
        ways = [("", 0, NO_DRAFT)] if NO_DRAFT in given.rules else []
        rules = [rule for rule in given.rules if rule != NO_DRAFT]
        draftings = given.drafting if loop == "vllm" else [way for way in given.drafting if way == "drawn"]
        ways += [(way, count, rule) for way in draftings for count in given.proposals for rule in rules]
        loads = [count for count in given.at_once if loop == "vllm" or count == 1]
        found += [Cell(loop, *way, sampling, load) for way in ways for sampling in given.sampling for load in loads]
    return found


def engine_of(cell: Cell) -> str:
    """Return the name of the engine that answers for a cell; models are loaded once for all cells of an engine."""
    return (
        "transformers" if cell.loop == "transformers" else f"vllm {cell.drafting} {cell.proposals}".replace("  ", " ")
    )


def stages(given: Namespace) -> list[tuple[str, list[Cell]]]:
    """Return engines in the order in which they start, with what each answers; one can start several times."""
    cells = cells_of(given)
    ranks = {cell: rank(given, cell) for cell in cells}
    engines = [*dict.fromkeys(map(engine_of, cells))]  # as listed
    by = sorted(cells, key=lambda cell: (ranks[cell], engines.index(engine_of(cell))))
    grouped = groupby(by, key=lambda cell: (ranks[cell], engine_of(cell)))
    return [(name, list(some)) for (_, name), some in grouped]


def prompts_of(tasks: Sequence[str], count: int, tokenizer: Tokenizer) -> list[Prompt]:
    """Return the first problems of each task, asked by the target's chat template, the tasks in turn."""
    made = []
    for name, task in parse_tasks(tasks, problems=count, chat=True).items():
        asked_in_chat = task_in_chat(task, tokenizer, Chat())
        made.append([
            Prompt(f"{name}/{each.id.removeprefix('HumanEval/')}", each.prompt, tuple(tokenizer(each.prompt).input_ids),
                   task.stop)
            for each in asked_in_chat.problems
        ])  # fmt: skip
    return [each for some in zip(*made, strict=True) for each in some]


class Journal:
    """The answers so far, of one settings, in a file that may be cut off anywhere."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        data = whole_lines(path.read_bytes()) if path.exists() else b""
        self.lines: list[Line] = [value for _, _, value in objects_in(data, path)]
        if self.lines and self.lines[0].get("settings") != settings:
            mistaken(
                f"{path} is of {self.lines[0].get('settings')}, but this run is of {settings}: give another --output"
            )
        self._kept = data
        self._settings = settings

    @property
    def answers(self) -> list[Line]:
        return [line for line in self.lines if "prompt" in line]

    @property
    def starts(self) -> list[Line]:
        return [line for line in self.lines if "started" in line]

    def missing(self, cells: Iterable[Cell], prompts: Sequence[Prompt]) -> list[Asked]:
        """Return what is not answered yet, each cell with its prompts."""
        there = {(*(line[name] for name in Cell._fields), line["prompt"]) for line in self.answers}
        left = {cell: [each for each in prompts if (*cell, each.id) not in there] for cell in cells}
        return [Asked(cell, some) for cell, some in left.items() if some]

    def appending(self, file: IO[bytes]) -> Iterator[None]:
        """Write each line that is sent."""
        growing = GrowingFile(file, self._kept)
        if not self.lines:
            self._add(growing, {"settings": self._settings})
        while True:
            self._add(growing, (yield))

    def _add(self, growing: GrowingFile, line: Line) -> None:
        self.lines.append(line)
        growing.add(json.dumps(line) + "\n")


def seconds_left(missing: Iterable[Asked], engines: int, journal: Journal) -> float:
    """Estimate how long what is missing takes, from the mean of the answers of the same load, or of all."""
    per_answer: dict[int, list[float]] = {}
    for line in journal.answers:
        per_answer.setdefault(line["at_once"], []).append(line["seconds"] / line["at_once"])
    every = [each for some in per_answer.values() for each in some]
    if not every:
        return 0.0
    starts = [line["seconds"] for line in journal.starts]
    left = engines * sum(starts) / max(len(starts), 1)
    for each in missing:
        some = per_answer.get(each.cell.at_once, every)
        # requests that only keep the load up are answered too, in part
        rounds = len(each.prompts) + (each.cell.at_once - 1) / 2
        left += rounds * sum(some) / len(some)
    return left


def answer_engine(given: Namespace, settings: Mapping[str, Any], place: int, prompts: Sequence[Prompt]) -> None:
    """Answer what is missing of a stage, in a process of its own, and write each answer when it is finished."""
    journal = Journal(journal_of(given.output), settings)
    plan = stages(given)
    name, cells = plan[place]
    with journal.path.open("ab") as file:
        add = journal.appending(file)
        next(add)
        missing = journal.missing(cells, prompts)
        for line in answer_cells(given, missing, prompts):
            if "started" in line:
                add.send(line | {"started": name, "commit": commit()})
                continue
            add.send(line)
            left = [journal.missing(some, prompts) for _, some in plan[place:]]
            seconds = seconds_left((each for some in left for each in some), sum(map(bool, left[1:])), journal)
            count = sum(len(each.prompts) for some in left for each in some)
            what = f"{name}, {line['rule']}, {line['sampling']}, {line['at_once']} at once, {line['prompt']}"
            rate = f"{line['tokens'] / line['seconds']:.1f} tokens/s"
            print(f"{what}: {rate}; {count} answers to go, {duration(seconds)}", flush=True)


def journal_of(output: Path) -> Path:
    return output.with_suffix(".jsonl")


def columns(answers: Iterable[Line]) -> list[dict[str, Any]]:
    """Return answers as columns, a dictionary for each cell, which takes a tenth of the room."""
    found: dict[Cell, dict[str, Any]] = {}
    for line in answers:
        cell = Cell(*(line[name] for name in Cell._fields))
        for name, value in line.items():
            if name not in Cell._fields:
                found.setdefault(cell, {}).setdefault(name, []).append(value)
    return [cell._asdict() | values for cell, values in found.items()]


def settings_of(given: Namespace, tasks: Iterable[str]) -> dict[str, Any]:
    """Return what all answers of a file have in common; models and tasks without where their files are."""
    names = {role: Path(getattr(given, role)).name if Path(getattr(given, role)).exists() else getattr(given, role)
             for role in ("target", "draft")}  # fmt: skip
    engine = parse_engine_arguments(given.engine_args)
    kept = {name: getattr(given, name) for name in ("dtype", "tokens", "threads")}
    return names | kept | {"tasks": list(tasks), "engine_args": engine}


def measure(given: Namespace, settings: Mapping[str, Any], prompts: Sequence[Prompt]) -> list[str]:
    """Start each engine that has something to answer; return those that failed."""
    failed = []
    spawn = multiprocessing.get_context("spawn")
    set_environment(given.threads)
    for place, (name, cells) in enumerate(stages(given)):
        missing = Journal(journal_of(given.output), settings).missing(cells, prompts)
        if not missing or name in failed:
            continue
        print(f"starting {name}: {sum(len(each.prompts) for each in missing)} answers", flush=True)
        process = spawn.Process(target=answer_engine, args=(given, settings, place, prompts))
        process.start()
        process.join()
        if process.exitcode:
            failed.append(name)
            print(f"{name} ended with exit code {process.exitcode}; the others go on", flush=True)
        save(given, settings)
    return failed


def save(given: Namespace, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Write the result file, from the journal; return its summary."""
    journal = Journal(journal_of(given.output), settings)
    if not journal.answers:
        return None
    found = {"settings": settings, "starts": journal.starts, "summary": summaries(journal.answers)}
    about = asked(given) | {name: settings[name] for name in ("target", "draft")} | {"task": settings["tasks"]}
    write(given.output, found | {"answers": columns(journal.answers)}, about)
    return found["summary"]


def main(given: Namespace) -> int:
    """Measure what is missing, write the result file and print its summary; return the exit code."""
    given.output = given.output.resolve()
    if given.output.suffix != ".json":
        mistaken(f"--output must end in .json, but is {given.output}")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        for name in ("prompts", "tokens", "threads", "proposals", "at_once"):
            value = getattr(given, name)
            for each in value if isinstance(value, list) else [value]:
                check_integer(f"--{name.replace('_', '-')}", each, 1)
        prompts = prompts_of(given.task, given.prompts, tokenizer_of(given.target))
        settings = settings_of(given, dict.fromkeys(each.id.partition("/")[0] for each in prompts))
        with journal_of(given.output).open("ab") as held:
            lock(held.fileno(), given.output)
            failed = [] if given.only_render else measure(given, settings, prompts)
    except (ValueError, TypeError) as error:
        mistaken(f"vllm_table.py: {error}")
    except KeyboardInterrupt:
        print(f"stopped: the same command goes on from {journal_of(given.output)}")
        return 130
    if (found := save(given, settings)) is not None:
        print(f"{as_text(found['all'])}\nwritten to {given.output}")
    if failed:
        print(f"without {', '.join(failed)}: the messages stand above; the same command tries again")
    return bool(failed)


OPTIONS: dict[str, Any] = {
    "target": (None, "a folder, a name on the hub, or bundled", {"required": True, "metavar": "MODEL"}),
    "draft": (None, "the same; both must have the same tokens", {"required": True, "metavar": "MODEL"}),
    "task": (["word_problems"], "as for cactus eval, such as gsm8k:path=FILE humaneval:path=FILE; asked in chat"),
    "prompts": (6, "the first problems of each task; an interval needs six in all"),
    "tokens": (256, "of an answer at most"),
    "rules": ([NO_DRAFT, *RULES], {"choices": [NO_DRAFT, *RULES]}),
    "proposals": ([3, 7, 11, 1], "per step"),
    "drafting": ([*DRAFTING], "how the draft proposes", {"choices": DRAFTING}),
    "sampling": ([*SAMPLINGS], "temperature 1; temperature 0.6, top-k 20, top-p 0.95", {"choices": [*SAMPLINGS]}),
    "at_once": ([1, 8, 4], "requests"),
    "loops": ([*LOOPS], "vLLM, and this package's own with transformers, one request at once", {"choices": LOOPS}),
    "dtype": "bfloat16",
    "threads": (2, "without a GPU"),
    "engine_args": (None, "further arguments of vLLM's engine, as for cactus eval", {"metavar": "JSON"}),
    "only_render": (False, "write the result file anew from what was answered"),
    "output": (RESULTS / "vllm_table.json", "the result file"),
}  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main(parse(__doc__, **OPTIONS)))
