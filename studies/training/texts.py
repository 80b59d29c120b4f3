"""Texts to train a cheap draft of a real pair on: the target's own answers in chat, and files of this machine.

    python -m studies.training.texts FILE ANSWERS --target T.gguf --task gsm8k:path=gsm8k_test.jsonl
        --asked answers_gsm8k.jsonl.gz --files "/usr/lib/python3/**/*.py" --tokens 1500000

ANSWERS is the folder of `studies.real_pair.collect`, and what is asked a result of `cactus eval`. The first
answers of each task, along which drafts are measured, are left out with all other answers to these problems. An answer
comes ``--times``, the files' beginnings once, as many as make up the tokens; FILE is JSON Lines of texts, shuffled.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.evaluation.chat import Chat, tokenizer_of
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import in_chat
from scripts.results import parse
from studies.real_pair.answers import read_answers
from studies.stored import read_results

MEASURED = 8
"""Problems of each task along which `studies.training.cheap_drafts` measures."""
CHARACTERS, LEAST = 1600, 200
"""Of a piece of a file."""


def answered(given: Any, tokenizer: Any) -> Iterator[str]:
    """Yield prompts with the target's answers, as the template writes them."""
    tasks = {
        spelled.partition(":")[0]: in_chat(parse_task(spelled, chat=True), tokenizer, Chat()) for spelled in given.task
    }
    found, measured = read_answers(given.answers, list(tasks)), set()
    for name in tasks:
        mine = [i for i, each in enumerate(found.about) if each["task"] == name]
        measured |= {(name, found.about[i]["id"]) for i in mine[:MEASURED]}
        for i in mine[MEASURED:]:
            problem = tasks[name].problems[found.about[i]["place"]]
            yield problem.prompt + tokenizer.decode(found.written[found.problem == i].tolist())
    for path in given.asked:
        for result in read_results(Path(path.removesuffix(".gz"))):
            task, answers = tasks[result.config.task], result.answers
            prompts = {problem.id: problem.prompt for problem in task.problems}
            for each, text in zip(answers["id"], answers["text"], strict=True):
                if (task.name, each) not in measured:
                    yield prompts[each] + text


def pieces(patterns: Sequence[str], generator: random.Random) -> Iterator[str]:
    """Yield a piece of each file, in an order of the generator."""
    paths = sorted(path for pattern in patterns for path in glob(pattern, recursive=True))
    generator.shuffle(paths)
    for path in paths:
        text = Path(path).read_text(encoding="utf-8", errors="ignore")
        start = text.rfind("\n", 0, generator.randrange(max(len(text) - CHARACTERS, 1))) + 1
        if len(piece := text[start : start + CHARACTERS]) >= LEAST:
            yield piece


def main() -> None:
    """Write the texts, and say how many tokens they have."""
    append = {"action": "append"}
    given = parse(
        __doc__, file=Path, answers=Path, target=(None, {"required": True}), task=([], append, {"required": True}),
        asked=([], append), files=([], append), times=3, tokens=1_500_000,
    )  # fmt: skip
    generator, tokenizer = random.Random(0), tokenizer_of(given.target)
    own = list(answered(given, tokenizer))
    count = sum(len(tokenizer(text).input_ids) for text in own)
    texts, others = own * given.times, 0
    for piece in pieces(given.files, generator):
        if count * given.times + others >= given.tokens:
            break
        texts.append(piece)
        others += len(tokenizer(piece).input_ids)
    generator.shuffle(texts)
    write_atomically(given.file, "".join(json.dumps({"text": text}) + "\n" for text in texts))
    kept = len(own) * given.times
    print(f"{len(own)} answers of {count} tokens, {given.times} times; {len(texts) - kept} pieces of {others}")


if __name__ == "__main__":
    main()
