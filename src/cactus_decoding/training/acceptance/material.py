"""What a draft is trained with: the target, and sequences of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus_decoding.training.acceptance.answers import answer, read_answers
from cactus_decoding.training.acceptance.checkpoints import Report
from cactus_decoding.training.acceptance.data import DataSplit, Document, as_sequence, digest_of, split
from cactus_decoding.training.acceptance.settings import TrainingSettings


@dataclass(frozen=True, eq=False)
class Material:
    """What a draft is trained with.

    Attributes:
        target: the verifying model.
        target_name: its folder, or its name on the hub.
        tokenizer: of both models.
        stop_token_ids: which end a text of the target.
        documents: as they were read.
        parts: their tokens, with the target's answers.
        answers: the file with the target's answers; None where it was asked nothing.
        max_length: tokens of a sequence, at most.
    """

    target: PreTrainedModel
    target_name: str | Path
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: Sequence[int]
    documents: Sequence[Document]
    parts: DataSplit
    answers: Path | None
    max_length: int

    @property
    def digest(self) -> str:
        """SHA-256 of the documents."""
        return digest_of(self.documents)


def material_of(
    settings: TrainingSettings,
    documents: Sequence[Document],
    target: PreTrainedModel,
    target_name: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    file: Path,
    report: Report,
    *,
    answering: bool,
    wait: Callable[[], None],
) -> Material:
    """Return the material of documents, after the target has answered those that are prompts alone.

    Answers are kept in ``file``. Of several processes one is ``answering``, and ``wait`` returns when all have come so
    far.

    Raises:
        ValueError: for a prompt that leaves no room for an answer, or too few documents.
    """
    stops = stop_token_ids(target, tokenizer)
    prompts = []
    for number, each in enumerate(documents, 1):
        if each.completion is None:
            prompts.append(list(tokenizer(each.prompt).input_ids))
            if (length := len(prompts[-1])) >= longest:
                raise ValueError(
                    f"the prompt of document {number} has {length} tokens, but a sequence at most {longest}: raise "
                    "max_length"
                )
    if prompts and answering:
        answer(
            target,
            prompts,
            file,
            stop_token_ids=stops,
            max_new_tokens=settings.max_new_tokens,
            longest=longest,
            seed=settings.seed,
            report=lambda done: report("Answering", done, len(prompts), ""),
        )
    wait()
    answered = iter(read_answers(file))
    sequences = [
        as_sequence(tokenizer, each, next(answered) if each.completion is None else None, stops[:1], longest)
        for each in documents
    ]
    parts = split(sequences, settings.held_out, settings.seed)
    return Material(target, target_name, tokenizer, stops, documents, parts, file if prompts else None, longest)


def longest_of(settings: TrainingSettings, *models: PreTrainedModel) -> int:
    """Return how many tokens a sequence may have: as many as are asked for, and as all models can read."""
    windows = (getattr(each.config.get_text_config(decoder=True), "max_position_embeddings", None) for each in models)
    return min([settings.max_length, *(int(each) for each in windows if each is not None)])


def stop_token_ids(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end a text of a target, the tokenizer's if the model says nothing."""
    given = target.generation_config.eos_token_id
    given = tokenizer.eos_token_id if given is None else given
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [int(given)]
