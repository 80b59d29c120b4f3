"""Train a draft for acceptance: the whole way, from a target and data to a model folder with a card."""

from __future__ import annotations

import os
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import torch

from cactus_decoding import zoo
from cactus_decoding.core.drafting.registry import check_model_names, parse_drafter
from cactus_decoding.core.files.home import expanded
from cactus_decoding.core.files.writing import check_folder
from cactus_decoding.core.models.loading import load_tokenizer, only_cached
from cactus_decoding.core.models.tokenizers import compare_vocabularies
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.transformers.loader import load_model
from cactus_decoding.engines.transformers.partial_head import propose_from
from cactus_decoding.lab.evaluation.chat import tokenizer_of
from cactus_decoding.lab.training.card import write_model
from cactus_decoding.lab.training.data import commonest, digest_of, in_chat, read_documents
from cactus_decoding.lab.training.fitting import arguments, fit
from cactus_decoding.lab.training.material import (
    Material,
    draft_name,
    longest_of,
    material_of,
    start,
    target_name,
)
from cactus_decoding.lab.training.row_cache import RowCache
from cactus_decoding.lab.training.saving import finish, occupied, unfinished_folder
from cactus_decoding.lab.training.settings import ProgressReport, TrainingSettings, check_installed


def _silent(stage: str, done: int, total: int, remark: str) -> None:
    pass


def train_draft(settings: TrainingSettings, output: str | Path, report: ProgressReport = _silent) -> Path:
    """Train a draft for its target's acceptance; return the folder of a plain Hugging Face model with a model card.

    Everything is written to a folder beside the output that is renamed at the end; a call with the same settings
    resumes from the last checkpoint there. Several processes, as ``torchrun`` starts them, share the batches of a step.

    Raises `OSError` where something cannot be read or written; what was written before is whole. Raises `ValueError`
    where the extra ``train`` is missing; for another tokenizer than the target's, data of which nothing can be learned,
    an output that exists, unfinished work with other settings, or a loss that is not finite.
    """
    check_installed()
    output = Path(os.path.abspath(output))
    documents = read_documents(settings.data, settings.problems, chat=settings.chat)
    if settings.chat:
        documents = in_chat(documents, tokenizer_of(settings.target), settings.system)
    digest = digest_of(documents)
    work = unfinished_folder(output, settings, digest)
    if settings.cache is not None:
        check_folder(expanded(settings.cache))
    check_models(settings)
    target_path = target_name(settings)
    local = only_cached("target", target_path)
    tokenizer = load_tokenizer("target", target_path, local=local)
    if (name := draft_name(settings)) is not None:
        theirs = load_tokenizer("draft", name, local=only_cached("draft", name))
        compare_vocabularies(tokenizer, theirs, settings.target, str(settings.draft))
    args = arguments(settings, work / "checkpoints")
    main, wait = args.process_index == 0, args.distributed_state.wait_for_everyone
    report = report if main else _silent
    dtype = torch.float32 if settings.target == zoo.BUNDLED else "auto"
    target = load_model("target", target_path, dtype, args.device, local=local).requires_grad_(False)
    draft = start(settings, target)  # before any work: the shape may be impossible
    with occupied(work, settings, digest) if main else nullcontext():
        wait()
        given = target, target_path, tokenizer, longest_of(settings, target, draft), work / "answers.jsonl"
        material = material_of(settings, documents, *given, report, answering=main, wait=wait)
        cache = _cache(settings, material, report, filling=main)
        wait()
        if settings.draft_vocabulary is not None:
            text = chain.from_iterable(each.token_ids for each in material.parts.train)
            propose_from(draft, commonest(text, settings.draft_vocabulary, material.stop_token_ids))
        best, logged = fit(settings, material, args, draft, report, cache)
        if main:
            finish(write_model(work / "model", best, settings, material, logged, report), work, output)
    wait()
    return output


def _cache(settings: TrainingSettings, material: Material, report: ProgressReport, *, filling: bool) -> RowCache | None:
    if settings.cache is None:
        return None
    cache = RowCache(expanded(settings.cache), material.target, material.parts.train)
    if filling:
        cache.fill(lambda done: report("Keeping rows", done, len(material.parts.train), ""))
    return cache


def check_models(settings: TrainingSettings) -> None:
    for name in (settings.target, settings.draft):
        if name is not None and parse_gguf(name) is not None:
            raise ValueError(f"{name!r} is a GGUF file, which only llama.cpp reads: give the folder it was made from")
    check_model_names(settings.target, settings.draft)
    if settings.draft is not None and parse_drafter(settings.draft) is not None:
        raise ValueError(f"{settings.draft!r} has no weights to train: give a model, a shape, or first_layers")
