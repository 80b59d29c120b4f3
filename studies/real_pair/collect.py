"""Both models' rows at every position of a target's own answers, for pairs of GGUF files with one vocabulary.

    python -m studies.real_pair.collect FOLDER --target T.gguf --draft D.gguf --task gsm8k:path=gsm8k_test.jsonl

Give --task once for each. Answers are the target's, at temperature 1, asked by its chat template, first turns only. An
answer is a file of its own, so that the command can be stopped and goes on where it was. Rows are shortened
(`cactus_decoding.lab.frontier.recorded_rows`); one in `WHOLE` is kept whole too, to measure what that loses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from cactus_decoding import generate, load_pair
from cactus_decoding.core.files.writing import Format, read_tensors, write_tensors
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.sampling.rows import draw
from cactus_decoding.lab.evaluation.chat import Chat
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import task_in_chat
from cactus_decoding.lab.frontier.recorded_rows import PackedRows, RecordedRows, shortened
from scripts.results import parse, write

FORMAT = Format("real_pair", schema=1, described="of rows of a study")
PROTECTED = ("digits", "numbers_and_operators", "code")
WHOLE = 97
SHORTENED = 0.01
"""What is put together of either row at most."""
_AT_ONCE, _PROBABILITIES = 16, 2**21
"""Positions that are read together, and probabilities of each model that are looked at together."""
T = TypeVar("T")


@torch.inference_mode()
def rows_along(pair: Pair, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[Tensor]:
    """Yield target's and draft's probabilities along an answer in parts, ``[2, positions, vocabulary]``."""
    read, left = [*prompt[:-1]], [prompt[-1], *answer[:-1]]
    caches: list[Any] = [pair.target, pair.drafter.model_cache]  # type: ignore[attr-defined]
    width = min(cache.vocabulary_size for cache in caches)
    for cache in caches:
        cache.reset()
        cache.append(read, rows=1)
    for begin in range(0, len(left), _AT_ONCE):
        block = left[begin : begin + _AT_ONCE]
        yield torch.stack([cache.append(block, rows=len(block))[:, :width].double().softmax(-1) for cache in caches])
    for cache in caches:
        cache.reset()


def tensors_of(
    rows: Iterator[Tensor], answer: Sequence[int], protected: Sequence[Tensor], first: int
) -> dict[str, Tensor]:
    """Return what a file keeps of an answer; of one position in `WHOLE`, counted from ``first``, whole rows."""
    kept, masses, whole = [], [], dict[int, Tensor]()
    pairs = (pair.float() for block in rows for pair in block.unbind(1))
    for place, (pair, token) in enumerate(zip(pairs, answer, strict=True)):
        found = shortened(pair[0], pair[1], token, SHORTENED)
        kept.append((found.token_ids.int(), found.target.float(), found.draft.float()))
        masses.append(torch.stack([pair[0, ids].sum() for ids in protected]))
        if (first + place) % WHOLE == 0:
            whole[place] = pair
    ids, target, draft = (torch.cat(each) for each in zip(*kept, strict=True))
    return {
        "ids": ids, "target": target, "draft": draft, "token_ids": torch.tensor(answer),
        "counts": torch.tensor([len(each[0]) for each in kept]), "masses": torch.stack(masses),
        "whole_places": torch.tensor([*whole], dtype=torch.long),
    } | ({"whole": torch.stack([*whole.values()])} if whole else {})  # fmt: skip


def queue(tasks: Sequence[str], tokenizer: Any, problems: int) -> Iterator[tuple[str, int, Problem]]:
    """Yield problems of all tasks in turn, in the chat template; of a task with groups, a group after the other."""
    lists = []
    for spelling in tasks:
        name = spelling.partition(":")[0]
        groups: dict[str, list[tuple[str, int, Problem]]] = {}
        for place, problem in enumerate(task_in_chat(parse_task(spelling, chat=True), tokenizer, Chat()).problems):
            groups.setdefault(problem.group if name == "spec_bench" else "", []).append((name, place, problem))
        lists.append(list(in_turn(groups.values()))[:problems])
    yield from in_turn(lists)


def in_turn(lists: Iterable[Sequence[T]]) -> Iterator[T]:
    """Yield one of each list after the other, then the second of each, and so on."""
    yield from (each for each in chain.from_iterable(zip_longest(*lists)) if each is not None)


class Chunk(NamedTuple):
    """Some positions' rows in float64, ``[positions, columns]``; columns behind a row's own are zeros of token 0."""

    places: Tensor
    token_ids: Tensor
    target: Tensor
    draft: Tensor


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers one after another, those of a task together; what each position has stands in ``[positions]``."""

    about: Sequence[dict[str, Any]]  # what each answer's file says of it
    problem: Tensor  # which answer a position belongs to, ascending
    written: Tensor  # the token that stands there
    counts: Tensor  # how many tokens of its row are kept
    token_ids: Tensor  # of all rows, one after another, as the probabilities
    target: Tensor
    draft: Tensor
    masses: Tensor  # what whole rows of the target put on each of `PROTECTED`, ``[positions, sets]``
    whole: dict[int, Tensor]  # pairs of whole rows of some positions, ``[2, vocabulary]``

    def chunks(self, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield all positions, those with rows of about the same length together."""
        starts, order = self.counts.cumsum(0) - self.counts, self.counts.argsort()
        begin = 0
        while begin < len(order):
            end = begin + 1
            while end < len(order) and (end + 1 - begin) * int(self.counts[order[end]]) <= _PROBABILITIES:
                end += 1
            places, begin = order[begin:end], end
            columns = torch.arange(int(self.counts[places].max()))
            held = columns < self.counts[places].unsqueeze(1)
            found = (starts[places].unsqueeze(1) + columns).where(held, 0)
            rows = (each[found].double().where(held, 0.0) for each in (self.target, self.draft))
            target, draft = (sampling(row.log()).where(held, 0.0) for row in rows)
            yield Chunk(places, self.token_ids[found].long().where(held, 0), target, draft)

    def recorded(self, provenance: Mapping[str, Any]) -> RecordedRows:
        """Return the rows as `cactus frontier` records them: every position as a step of one proposal."""
        vocabulary, ends = next(iter(self.whole.values())).shape[-1], self.counts.cumsum(0)
        target, draft = (
            PackedRows(vocabulary, each, self.token_ids.clone(), ends.clone()) for each in (self.target, self.draft)
        )
        generator, drafted = torch.Generator().manual_seed(0), torch.zeros(len(ends), dtype=torch.int32)
        for chunk in self.chunks(SamplingParams()):
            picked = draw(chunk.draft, torch.rand(len(chunk.places), generator=generator))
            drafted[chunk.places] = chunk.token_ids.gather(1, picked.unsqueeze(1)).squeeze(1).int()
        positions = len(ends)
        visited, over = torch.ones(positions, dtype=torch.bool), torch.zeros(positions, dtype=torch.bool)
        settings = {"answers": len(self.about), "positions": positions}
        steps = torch.arange(positions)
        return RecordedRows(target, draft, drafted, visited, steps, self.problem, over, settings, provenance)


def read_answers(folder: Path, tasks: Sequence[str]) -> Answers:
    """Return all answers of a folder, task after task."""
    about, parts, whole, positions = [], [], {}, 0
    for task in tasks:
        for path in sorted(folder.glob(f"{task}-*.safetensors")):
            tensors, said = read_tensors(path, FORMAT)
            for place, rows in zip(tensors["whole_places"].tolist(), tensors.get("whole", ()), strict=True):
                whole[positions + place] = rows
            positions += len(tensors["counts"])
            about.append(said)
            parts.append([tensors[key] for key in ("token_ids", "counts", "ids", "target", "draft", "masses")])
    if not parts:
        raise FileNotFoundError(2, "there are no answers of these tasks", str(folder))
    written, counts, ids, target, draft, masses = (torch.cat(each) for each in zip(*parts, strict=True))
    problem = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part[0]) for part in parts]))
    return Answers(about, problem, written, counts, ids, target, draft, masses, whole)


def main() -> None:
    """Answer what has no file yet."""
    must = {"required": True}
    given = parse(
        __doc__, folder=Path, target=(None, must), draft=(None, must), task=([], must, {"action": "append"}),
        problems=(100, "at most so many of each task"),
        prompt_tokens=(2048, "longer prompts are left out"),
        max_new_tokens=160,
    )  # fmt: skip
    torch.set_num_threads(1)
    names = {"target": Path(given.target).name, "draft": Path(given.draft).name, "max_new_tokens": given.max_new_tokens}
    given.folder.mkdir(parents=True, exist_ok=True)
    write(given.folder / "collected.json", {"settings": names}, names)
    pair = load_pair(given.target, given.draft, kept_prompts=0)
    words = Vocabulary.of(pair.tokenizer, pair.target.vocabulary_size)
    protected = [Protection(name).mask(words).nonzero().squeeze(1) for name in PROTECTED]
    asked: dict[str, Any] = {"num_speculative_tokens": 0, "max_new_tokens": given.max_new_tokens}
    for task, place, problem in queue(given.task, pair.tokenizer, given.problems):
        path, prompt = given.folder / f"{task}-{place:04d}.safetensors", pair.tokenizer(problem.prompt).input_ids
        if path.exists() or len(prompt) > given.prompt_tokens:
            continue
        answer = generate(pair, problem.prompt, seed=seed_of(0, place), **asked).token_ids
        about = {"task": task, "place": place, "id": problem.id, "group": problem.group, "prompt_tokens": len(prompt)}
        found = tensors_of(rows_along(pair, prompt, answer), answer, protected, place)
        write_tensors(path, FORMAT, found, about | names)
        kept = len(found["ids"]) / len(answer)
        print(f"{time.strftime('%H:%M:%S')} {task} {place}: {len(answer)} tokens, {kept:.0f} kept of a row", flush=True)


if __name__ == "__main__":
    main()
