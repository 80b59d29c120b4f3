"""What a draft is trained with: the target, and sequences of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus_decoding.training.acceptance.answers import answer, read_answers
from cactus_decoding.training.acceptance.checkpoints import Report
from cactus_decoding.training.acceptance.data import Document, Split, as_sequence, digest_of, split
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
    """

    target: PreTrainedModel
    target_name: str | Path
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: Sequence[int]
    documents: Sequence[Document]
    parts: Split
    answers: Path | None

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
    file: Path,
    report: Report,
    *,
    answering: bool,
    wait: Callable[[], None],
) -> Material:
    """Return the material of documents, after the target has answered those that are prompts alone.

    Args:
        settings: all that was asked for.
        documents: in order.
        target: the verifying model.
        target_name: its folder or name.
        tokenizer: of the target.
        file: where its answers are kept.
        report: told of each batch of answers.
        answering: whether this process asks the target, and not another one.
        wait: returns when all processes have come so far.

    Raises:
        ValueError: for a prompt that leaves no room for an answer, or too few documents.
    """
    stops = stop_token_ids(target, tokenizer)
    window = getattr(target.config.get_text_config(decoder=True), "max_position_embeddings", None)
    longest = settings.max_length if window is None else min(settings.max_length, window)
    prompts = [list(tokenizer(each.prompt).input_ids) for each in documents if each.completion is None]
    for prompt in prompts:
        if len(prompt) >= longest:
            raise ValueError(f"a prompt has {len(prompt)} tokens, but a sequence at most {longest}: raise max_length")
    room = min(settings.max_new_tokens, longest - max(map(len, prompts), default=0))
    if prompts and answering:
        answer(
            target,
            prompts,
            file,
            stop_token_ids=stops,
            max_new_tokens=room,
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
    return Material(target, target_name, tokenizer, stops, documents, parts, file if prompts else None)


def stop_token_ids(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end a text of a target, the tokenizer's if the model says nothing."""
    given = target.generation_config.eos_token_id
    given = tokenizer.eos_token_id if given is None else given
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [int(given)]
