"""Both models' rows at every position of a target's own answers, for pairs of GGUF files with one vocabulary.

    python -m studies.real_pair.collect FOLDER --target T.gguf --draft D.gguf --task gsm8k:path=gsm8k_test.jsonl

Give --task once for each. Answers are the target's, at temperature 1, asked by its chat template, first turns only. An
answer is a file of its own, so that the command can be stopped and goes on where it was. Rows are shortened
(`cactus_decoding.lab.frontier.recorded_rows`); one in `WHOLE` is kept whole too, to measure what that loses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from cactus_decoding import generate, load_pair
from cactus_decoding.core.files.writing import write_tensors
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.evaluation.chat import Chat
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import in_chat
from cactus_decoding.lab.frontier.recorded_rows import shortened
from scripts.results import parse, write
from studies.real_pair.answers import FORMAT, PROTECTED

WHOLE = 97
_AT_ONCE = 16
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
        found = shortened(pair[0], pair[1], token)
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
        for place, problem in enumerate(in_chat(parse_task(spelling, chat=True), tokenizer, Chat()).problems):
            groups.setdefault(problem.group if name == "spec_bench" else "", []).append((name, place, problem))
        lists.append(list(in_turn(groups.values()))[:problems])
    yield from in_turn(lists)


def in_turn(lists: Iterable[Sequence[T]]) -> Iterator[T]:
    """Yield one of each list after the other, then the second of each, and so on."""
    yield from (each for each in chain.from_iterable(zip_longest(*lists)) if each is not None)


def main() -> None:
    """Answer what has no file yet."""
    must = {"required": True}
    given = parse(
        __doc__, folder=Path, target=(None, must), draft=(None, must), task=([], must, {"action": "append"}),
        problems=(100, "at most so many of each task"),
        prompt_tokens=(2048, "longer prompts are left out"),
        max_new_tokens=160,
        minutes=(1e9, "begin no answer after these"),
    )  # fmt: skip
    torch.set_num_threads(1)
    until = time.time() + 60 * given.minutes
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
        if time.time() > until:
            break
        answer = generate(pair, problem.prompt, seed=seed_of(0, place), **asked).token_ids
        about = {"task": task, "place": place, "id": problem.id, "group": problem.group, "prompt_tokens": len(prompt)}
        found = tensors_of(rows_along(pair, prompt, answer), answer, protected, place)
        write_tensors(path, FORMAT, found, about | names)
        kept = len(found["ids"]) / len(answer)
        print(f"{time.strftime('%H:%M:%S')} {task} {place}: {len(answer)} tokens, {kept:.0f} kept of a row", flush=True)


if __name__ == "__main__":
    main()
