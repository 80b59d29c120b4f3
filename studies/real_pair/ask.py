"""A target's answers in chat under several settings: whether right, how long, in how many steps.

    python -m studies.real_pair.ask FILE --target T.gguf --draft D.gguf --task gsm8k:path=gsm8k_test.jsonl

Problems are answered at the same time, by the loop that serves several requests: on one core a token of a pass over
64 takes a third to two thirds of the time of one that is read alone. Each is answered under every setting of `ASKED` in
turn, its prompt read once. An answer is kept when it ends, so that the command can be stopped and goes on where it was.
FILE.gz then holds, as results of `cactus eval`, the problems that every setting has answered; how many seconds an
answer took is not known.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock
from typing import Any

import torch

from cactus_decoding.cli.evaluation_table import check_may_run
from cactus_decoding.core.files.provenance import provenance, with_engines
from cactus_decoding.core.generate import stream
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.engines.llama_cpp.models.passes import Cancelled
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import PairPool
from cactus_decoding.lab.evaluation.chat import Chat
from cactus_decoding.lab.evaluation.engines.engine import Answer, TransformersEngine
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.results import Journal, RunResult, journal_of
from cactus_decoding.lab.evaluation.runs.runner import about, entry_of, journal_name
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import Task
from scripts.results import parser
from studies.stored import write_packed

CLAMPED, CACTUS, BUDGET = {"rule": "clamped:width=2.0"}, {"rule": "cactus:delta=1.0"}, {"budget_nats": 1.0}
COUPLED = {"verification": "coupled"}
PAPER = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
ASKED: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "gsm8k": ({}, CLAMPED, CLAMPED | {"protect": "digits"}, CLAMPED | BUDGET),
    "gsm8k, coupled": (COUPLED, COUPLED | CLAMPED),
    "gsm8k, truncated": (PAPER, PAPER | CACTUS),
    "humaneval": ({}, CLAMPED, CLAMPED | {"protect": "digits"}, CACTUS, CLAMPED | BUDGET),
    "humaneval, truncated": (PAPER, PAPER | CACTUS),
    "ifeval": ({}, CACTUS, CACTUS | BUDGET, CACTUS | {"lossless_tokens": 64}),
}
"""Settings that are compared; the first of each is lossless."""
PROBLEMS = {"humaneval": 100}
"""How many are asked; 120 of other tasks."""
PROPOSALS, TOKENS, CONTEXT = 3, 512, 1280
WORDS = 150
"""An IFEval prompt that asks for more words than this is left out: so few tokens do not hold them."""


def asked(spelling: str, problems: int | None) -> Task:
    """Return a task's first problems that can be answered in `TOKENS`."""
    task = parse_task(spelling, chat=True)
    documents = getattr(task.judge, "documents", {})
    fitting = [each for each in task.problems if _words(documents.get(each.id, {})) <= WORDS]
    return replace(task, problems=tuple(fitting[: problems or PROBLEMS.get(task.name, 120)]))


def _words(document: Mapping[str, Any]) -> int:
    """Return how many words an IFEval prompt asks for at least."""
    least = (each for each in document.get("kwargs", ()) if each.get("relation") == "at least")
    return max((each.get("num_words") or 0 for each in least), default=0)


@dataclass
class Asking:
    """Problems that are answered at the same time, each by a thread with a pair of its own."""

    task: Task
    configs: Sequence[RunConfig]
    seats: PairPool
    journal: Journal
    names: Sequence[str]
    until: float
    stopped: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)

    def answer_all(self) -> None:
        """Answer what is not kept yet; what has begun when the time is over is left."""
        places = iter(range(len(self.task.problems)))
        with ThreadPoolExecutor(len(self.seats.pairs)) as pool:
            running = [pool.submit(self._work, places) for _ in self.seats.pairs]
            try:
                for each in running:
                    each.result()
            finally:
                self.stopped.set()

    def kept(self, place: int) -> list[dict[str, Any]]:
        """Return the answers to a problem so far, in the order of settings."""
        return [entry for name in self.names for entry in self.journal.entries(f"{name} {place}")]

    def _work(self, places: Iterator[int]) -> None:
        while not self.stopped.is_set():
            with self.lock:
                place = next((each for each in places if len(self.kept(each)) < len(self.configs)), None)
            if place is None:
                return
            with self.seats.take([], self.stopped) as pair:
                try:
                    self._answer(pair, place)
                except Cancelled:
                    return

    def _answer(self, pair: Pair, place: int) -> None:
        """Answer a problem under one setting after another."""
        problem = self.task.problems[place]
        prompt = as_chat_prompt(pair.tokenizer, problem.prompt) + problem.begun
        for config, name in list(zip(self.configs, self.names, strict=True))[len(self.kept(place)) :]:
            response = stream(pair, prompt, config.request_at(place, self.task.stop))
            for _ in response:
                if time.process_time() > self.until:
                    self.stopped.set()
            answer = Answer(response.text, response.finish_reason or "length", response.metrics)
            entry = entry_of(problem, answer, self.task.is_right(problem, answer.text)) | {"seconds": None}
            with self.lock:
                self.journal.add(f"{name} {place}", entry)
            print(time.strftime("%H:%M:%S"), place, config.label, entry["generated"], entry["right"], flush=True)

    def results(self, made_by: Mapping[str, Any]) -> str:
        """Return the result lines of all problems that every setting has answered."""
        kept = [entries for place in range(len(self.task.problems)) if (entries := self.kept(place))]
        whole = [entries for entries in kept if len(entries) == len(self.configs)]
        if not whole:
            raise SystemExit(f"no problem is answered under all {len(self.configs)} settings yet")
        ids = {entries[0]["id"] for entries in whole}
        task = replace(self.task, problems=tuple(each for each in self.task.problems if each.id in ids))
        lines = []
        for config, entries in zip(self.configs, zip(*whole, strict=True), strict=True):
            cut = replace(config, problems=len(whole))
            columns = {name: [each.get(name) for each in entries] for name in entries[0]}
            lines.append(RunResult(cut, columns, {**made_by, **about(task, cut)}).line())
        return "".join(lines)


def main() -> None:
    """Answer, then write what all settings have answered."""
    must = (None, {"required": True})
    made = parser(
        __doc__, file=Path, target=must, draft=must, task=must,
        settings=(None, "those of the task, if not given", {"choices": ASKED}),
        problems=(None, "the first so many; 100 of HumanEval, 120 of others, if not given", {"type": int}),
        at_once=(16, "problems that are answered at the same time"),
        allow_code_execution=(False, "humaneval runs what the target wrote"),
        minutes=(1e9, "of processor time, after which all is left"),
    )  # fmt: skip
    given = made.parse_args()
    torch.set_num_threads(1)
    until = time.process_time() + 60 * given.minutes
    task = asked(given.task, given.problems)
    check_may_run([task], given.allow_code_execution)
    count, shared = len(task.problems), {"num_speculative_tokens": PROPOSALS, "max_new_tokens": TOKENS}
    configs = [
        RunConfig(task.name, given.target, given.draft, "llama-cpp", count, Request.from_dict(shared | each), Chat())
        for each in ASKED[given.settings or task.name]
    ]
    file = parse_gguf(given.target)
    if file is None:
        made.error(f"--target must be a GGUF file, but is {given.target}")
    size = file.settings.context_size or CONTEXT
    file = file._replace(settings=replace(file.settings, context_size=size, threads=1))
    seats = PairPool.load(file, given.draft, given.at_once, given.at_once)
    engine = TransformersEngine(seats.pairs[0], audited=False)
    for config in configs:
        task.check(engine, config)
    made_by = with_engines(provenance({"study": "real_pair", "settings": given.settings or task.name}))
    journal = Journal(journal_of(given.file))
    names = [journal_name(config, {task.name: task}, made_by) for config in configs]
    asking = Asking(task, configs, seats, journal, names, until)
    try:
        asking.answer_all()
    except KeyboardInterrupt:
        print("stopped: what was answered is kept")
    write_packed(given.file, asking.results(made_by))


if __name__ == "__main__":
    main()
