"""The target's answers to prompts, kept in a file that grows batch by batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from cactus_decoding.files.jsonl import objects_in, whole_lines
from cactus_decoding.training.acceptance.sampling import sample
from cactus_decoding.training.acceptance.saving import naming

BATCH = 64


def answer(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    file: Path,
    *,
    stop_token_ids: Sequence[int],
    max_new_tokens: int,
    seed: int,
    report: Callable[[int], None] = lambda done: None,
    batch: int = BATCH,
) -> None:
    """Write the target's answer to each prompt; those that an earlier call left in the file are not given again.

    Each batch has a seed of its own, so that an interruption changes nothing.

    Args:
        target: who answers, at temperature 1.
        prompts: token ids, of one data set and in its order.
        file: JSON Lines of objects with ``token_ids``; a line that a kill cut off is written again.
        stop_token_ids: which end an answer.
        max_new_tokens: its greatest length.
        seed: of all answers.
        report: called with how many are done.
        batch: answers at once.
    """
    kept = read_answers(file)
    if len(kept) < len(prompts):
        kept = kept[: len(kept) // batch * batch]  # whole batches, whose random numbers are their own
        with naming(file):
            file.write_text("".join(map(_line, kept)), encoding="utf-8")
    for start in range(len(kept), len(prompts), batch):
        found = sample(
            target,
            prompts[start : start + batch],
            stop_token_ids=stop_token_ids,
            max_new_tokens=max_new_tokens,
            seed=seed * 1_000_003 + start,
        )
        with naming(file), file.open("a", encoding="utf-8") as out:
            out.write("".join(map(_line, found)))
        report(start + len(found))


def read_answers(file: Path) -> list[list[int]]:
    """Return the answers that a file holds; none, where there is no file."""
    data = whole_lines(file.read_bytes()) if file.exists() else b""
    return [value["token_ids"] for _, _, value in objects_in(data, file)]


def _line(token_ids: list[int]) -> str:
    return json.dumps({"token_ids": token_ids}) + "\n"
