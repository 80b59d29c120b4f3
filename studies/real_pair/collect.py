"""Both models' rows at every position of a target's own answers, for pairs of GGUF files with one vocabulary.

    python -m studies.real_pair.collect FOLDER --target T.gguf --draft D.gguf --task gsm8k:path=gsm8k_test.jsonl

Give --task once for each. Answers are the target's, at temperature 1, asked by its chat template, first turns only.
Those of all tasks are read in one batch: on one core 16 tokens of a pass take 6 to 9 times as long as 1 does. An answer
is a file of its own, so that the command can be stopped and goes on where it was: what was unfinished is read as far as
it had come, and answered again. Rows are shortened (`cactus_decoding.lab.frontier.recorded_rows`); one in `WHOLE` is
kept whole too, to measure what that loses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.files.writing import write_tensors
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.sampling.rows import draw
from cactus_decoding.engines.llama_cpp.models.context import Context, Portion
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.models.weights import GgufModel
from cactus_decoding.lab.evaluation.chat import Chat, tokenizer_of
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import Task, in_chat
from cactus_decoding.lab.frontier.recorded_rows import shortened
from scripts.results import parse, write
from studies.real_pair.answers import FORMAT, PROTECTED, UNFINISHED, file_of

WHOLE = 97


@dataclass
class Text:
    """An answer that grows."""

    task: str
    place: int
    problem: Problem
    prompt: Sequence[int]
    generator: torch.Generator
    token_ids: list[int] = field(default_factory=list)
    kept: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    whole: list[tuple[int, Tensor]] = field(default_factory=list)
    masses: list[Tensor] = field(default_factory=list)

    def take(self, logits: Tensor, protected: Sequence[Tensor]) -> int:
        """Keep both models' rows, ``[2, vocabulary]``, and return the token that is drawn from the target's."""
        rows = logits.softmax(-1)
        token = int(draw(rows[0], torch.rand((), generator=self.generator)))
        found = shortened(rows[0], rows[1], token)
        self.kept.append((found.token_ids.int(), found.target.float(), found.draft.float()))
        self.masses.append(torch.stack([rows[0, ids].sum() for ids in protected]))
        if (self.place + len(self.token_ids)) % WHOLE == 0:
            self.whole.append((len(self.token_ids), rows))
        self.token_ids.append(token)
        return token

    def save(self, path: Path, about: dict[str, object]) -> None:
        ids, target, draft = (torch.cat(each) for each in zip(*self.kept, strict=True))
        tensors = {"ids": ids, "target": target, "draft": draft, "token_ids": torch.tensor(self.token_ids)}
        tensors["counts"] = torch.tensor([len(each[0]) for each in self.kept])
        tensors["masses"] = torch.stack(self.masses)
        tensors["whole_places"] = torch.tensor([place for place, _ in self.whole], dtype=torch.long)
        if self.whole:
            tensors["whole"] = torch.stack([rows for _, rows in self.whole])
        mine = {"task": self.task, "place": self.place, "id": self.problem.id, "group": self.problem.group}
        write_tensors(path, FORMAT, tensors, mine | {"prompt_tokens": len(self.prompt)} | about)


def queue(tasks: Sequence[str], problems: int) -> Iterator[tuple[str, int, Problem]]:
    """Yield problems of all tasks in turn; those of a task with groups come a group after the other."""
    lists = []
    for spelling in tasks:
        name = spelling.partition(":")[0]
        found = list(enumerate(parse_task(spelling, chat=True).problems))
        if name == "spec_bench":
            groups: dict[str, list[tuple[int, Problem]]] = {}
            for place, problem in found:
                groups.setdefault(problem.group, []).append((place, problem))
            found = [each for each in chain.from_iterable(zip_longest(*groups.values())) if each is not None]
        lists.append([(name, place, problem) for place, problem in found[:problems]])
    yield from (each for each in chain.from_iterable(zip_longest(*lists)) if each is not None)


def collect(
    folder: Path, names: Sequence[str], todo: Iterator[tuple[str, int, Problem]], lanes: int, prompt_tokens: int,
    max_new_tokens: int, until: float, about: dict[str, object],
) -> None:  # fmt: skip
    """Answer problems that have no file yet, so many at a time; none is begun after ``until``."""
    files = [file for name in names if (file := parse_gguf(name)) is not None]
    models = [GgufModel.load(role, file.path) for role, file in zip(("target", "draft"), files, strict=True)]
    contexts = [
        Context.make(model, replace(file.settings, context_size=prompt_tokens + max_new_tokens, threads=1), lanes)
        for model, file in zip(models, files, strict=True)
    ]
    width = min(model.vocabulary_size for model in models)
    tokenizer, stops = tokenizer_of(names[0]), set(models[0].stop_token_ids)
    words = Vocabulary.of(tokenizer, width)
    protected = [Protection(name).mask(words).nonzero().squeeze(1) for name in PROTECTED]
    free, running = list(range(lanes)), dict[int, Text]()

    def read(portions: Sequence[Portion]) -> Tensor:
        """Return both models' logits behind each portion, ``[portions, 2, vocabulary]``."""
        return torch.stack([context.read(portions)[:, :width].clone() for context in contexts], 1)

    def step(lane: int, text: Text, logits: Tensor) -> None:
        if text.take(logits, protected) in stops or len(text.token_ids) >= max_new_tokens:
            path = folder / file_of(text.task, text.place)
            text.save(path, about)
            path.with_suffix(UNFINISHED).unlink(missing_ok=True)
            for context in contexts:
                context.clear(lane)
            del running[lane]
            free.append(lane)

    def begin() -> bool:
        """Begin the next problem; say whether there was one."""
        for task, place, problem in todo:
            if (folder / file_of(task, place)).exists():
                continue
            prompt = prompt_of(problem, tokenizer)
            if len(prompt) > prompt_tokens:
                continue
            text = Text(task, place, problem, prompt, torch.Generator().manual_seed(seed_of(0, place)))
            lane = free.pop()
            running[lane] = text
            print(f"{time.strftime('%H:%M:%S')} {task} {place}: {len(prompt)} tokens of prompt", flush=True)
            step(lane, text, read([Portion(lane, np.array(prompt, np.int32), 0, 1)])[0])
            return True
        return False

    positions = 0
    while True:
        while free and time.time() < until and begin():
            pass
        if not running:
            return
        order = sorted(running)
        texts = [running[lane] for lane in order]
        portions = [
            Portion(lane, np.array(text.token_ids[-1:], np.int32), len(text.prompt) + len(text.token_ids) - 1, 1)
            for lane, text in zip(order, texts, strict=True)
        ]
        for lane, text, logits in zip(order, texts, read(portions), strict=True):
            step(lane, text, logits)
        positions += len(order)
        if positions % (lanes * 16) < len(order):
            for text in running.values():
                text.save((folder / file_of(text.task, text.place)).with_suffix(UNFINISHED), about)
            lengths = [len(ids) for text in texts for ids, *_ in text.kept[-16:]]
            kept = sum(lengths) / len(lengths)
            print(f"{time.strftime('%H:%M:%S')} {positions} positions, {kept:.0f} tokens kept of a row", flush=True)


def prompt_of(problem: Problem, tokenizer: Any) -> list[int]:
    """Return the tokens of a problem as the chat template writes it."""
    return list(tokenizer(in_chat(Task("", (problem,)), tokenizer, Chat()).problems[0].prompt).input_ids)


def main() -> None:
    """Collect."""
    must = {"required": True}
    given = parse(
        __doc__, folder=Path, target=(None, must), draft=(None, must), task=([], must, {"action": "append"}),
        problems=(100, "at most so many of each task"),
        prompt_tokens=(2048, "longer prompts are left out"),
        max_new_tokens=160,
        lanes=(16, "answers at a time"),
        minutes=(1e9, "begin no answer after these"),
    )  # fmt: skip
    given.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    names = {"target": Path(given.target).name, "draft": Path(given.draft).name, "max_new_tokens": given.max_new_tokens}
    write(given.folder / "collected.json", {"settings": names}, names)
    until = time.time() + 60 * given.minutes
    with torch.inference_mode():
        todo = queue(given.task, given.problems)
        sizes = given.lanes, given.prompt_tokens, given.max_new_tokens
        collect(given.folder, (given.target, given.draft), todo, *sizes, until, names)


if __name__ == "__main__":
    main()
