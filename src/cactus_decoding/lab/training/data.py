"""What a draft learns from: documents, and their tokens."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.files.jsonl import read_objects, text_field
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.lab.evaluation.tasks.sources import SOURCES, check_not_held_out, parse_task
from cactus_decoding.zoo.word_problems import format_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100  # transformers' label of a token that is not learned


@dataclass(frozen=True)
class Document:
    """A prompt, which is not learned, and its completion, None where the target is still to write it."""

    prompt: str
    completion: str | None


class TokenSequence(NamedTuple):
    """A document's tokens, of which the first ``prompt_length`` are not learned."""

    token_ids: list[int]
    prompt_length: int

    @property
    def learned(self) -> int:
        """How many tokens are learned: all but the prompt's, and never the first."""
        return len(self.token_ids) - max(self.prompt_length, 1)


def read_documents(data: str, limit: int | None = None, *, chat: bool = False) -> list[Document]:
    """Return the documents of a file or a task; prompts of a ``chat`` are a user's messages."""
    if data.strip().partition(":")[0] in SOURCES and not Path(data).exists():
        check_not_held_out(data)
        return [Document(problem.prompt, None) for problem in parse_task(data, limit, chat=chat).problems]
    documents = [_document(value, where, chat) for _, where, value in islice(read_objects(data), limit)]
    if not documents:
        raise ValueError(f"{data} has no documents: give JSON Lines of objects with a prompt or a text")
    return documents


def in_chat(documents: Sequence[Document], tokenizer: Any, system: str | None) -> list[Document]:
    return [
        replace(each, prompt=as_chat_prompt(tokenizer, each.prompt, system=system)) if each.prompt else each
        for each in documents
    ]


def _document(value: dict[str, object], where: str, chat: bool) -> Document:
    if "text" in value:
        return Document("", text_field(value, "text", where))
    if "question" in value and "prompt" not in value:  # GSM8K's own files, whose answers are not the target's
        question = text_field(value, "question", where)
        return Document(question if chat else format_prompt(question), None)
    prompt = text_field(value, "prompt", where)
    return Document(prompt, text_field(value, "completion", where) if "completion" in value else None)


def digest_of(documents: Sequence[Document]) -> str:
    digest = hashlib.sha256()
    for each in documents:
        digest.update(json.dumps(astuple(each)).encode() + b"\n")
    return digest.hexdigest()


def as_sequence(
    tokenizer: PreTrainedTokenizerBase,
    document: Document,
    answer: Sequence[int] | None,
    stop_token_ids: Sequence[int],
    max_length: int,
) -> TokenSequence:
    """Return the tokens of the prompt and the answer or, with an end of text, the completion, cut at ``max_length``."""
    prompt = list(tokenizer(document.prompt).input_ids) if document.prompt else []
    if answer is None:
        added = tokenizer(document.completion, add_special_tokens=not prompt).input_ids
        answer = [*added, *stop_token_ids]
    return TokenSequence([*prompt, *answer][:max_length], len(prompt))


def commonest(token_ids: Iterable[int], size: int, always: Sequence[int] = ()) -> list[int]:
    """Return the ``size`` most frequent tokens, or all, in ascending order; those in ``always`` count first.

    Source: FR-Spec, arXiv 2502.14856.
    """
    counts = Counter(token_ids)
    rest = sorted(counts.keys() - set(always), key=lambda each: (-counts[each], each))
    return sorted([*set(always), *rest][: max(size, len(set(always)))])


class DataSplit(NamedTuple):
    """Sequences to train on, to choose the best checkpoint by, and to measure the result on."""

    train: list[TokenSequence]
    validation: list[TokenSequence]
    test: list[TokenSequence]


def split(sequences: Sequence[TokenSequence], held_out: int, seed: int) -> DataSplit:
    """Split sequences in three parts at random; those of which nothing is learned are left out.

    Sequences of one prompt, and equal texts, stay together, so that no part reveals another's answers.
    """
    alike: dict[tuple[int, ...], list[TokenSequence]] = {}
    for each in sequences:
        if each.learned > 0:
            alike.setdefault(tuple(each.token_ids[: each.prompt_length or None]), []).append(each)
    if len(alike) < 3:
        raise ValueError(
            f"there are {len(alike)} documents of which anything could be learned, but at least 3 are needed: to "
            "train on, to choose the best checkpoint by, and to measure the result on (those of one prompt count once)"
        )
    groups = list(alike.values())
    random.Random(seed).shuffle(groups)
    held = min(held_out, max(1, len(groups) // 10))
    parts = groups[2 * held :], groups[:held], groups[held : 2 * held]
    return DataSplit(*([each for group in part for each in group] for part in parts))


def collate(sequences: Sequence[TokenSequence]) -> dict[str, Tensor]:
    shape = len(sequences), max(len(each.token_ids) for each in sequences)
    input_ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, IGNORED)
    for row, (token_ids, prompt_length) in enumerate(sequences):
        ids, start = torch.tensor(token_ids), max(prompt_length, 1)
        input_ids[row, : len(ids)], mask[row, : len(ids)] = ids, 1
        labels[row, start : len(ids)] = ids[start:]
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}
