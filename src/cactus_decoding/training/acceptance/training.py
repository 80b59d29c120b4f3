"""Train a draft for acceptance: the whole way, from a target and data to a model folder."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import torch
from transformers import PreTrainedModel

from cactus_decoding import zoo
from cactus_decoding.drafting.registry import parse_drafter
from cactus_decoding.files.writing import check_folder
from cactus_decoding.generation.pair import check_names
from cactus_decoding.models.llama_cpp.settings import parse_gguf
from cactus_decoding.models.loading import load_model, load_tokenizer, only_cached
from cactus_decoding.models.tokenizers import check_same_vocabulary
from cactus_decoding.training.acceptance.checkpoints import Report
from cactus_decoding.training.acceptance.data import digest_of, read_documents
from cactus_decoding.training.acceptance.fitting import arguments, fit
from cactus_decoding.training.acceptance.installed import check_installed
from cactus_decoding.training.acceptance.material import Material, longest_of, material_of
from cactus_decoding.training.acceptance.publishing import write_model
from cactus_decoding.training.acceptance.row_cache import RowCache
from cactus_decoding.training.acceptance.settings import TrainingSettings
from cactus_decoding.training.acceptance.starts import draft_name, start
from cactus_decoding.training.acceptance.unfinished import finish, occupied, unfinished_folder


def _silent(stage: str, done: int, total: int, remark: str) -> None:
    pass


def train_draft(settings: TrainingSettings, output: str | Path, report: Report = _silent) -> Path:
    """Train a draft for its target's acceptance; return the folder of a plain Hugging Face model with a model card.

    Everything is written to a folder beside the output that is renamed at the end; a call with the same settings goes
    on from the last checkpoint there. Several processes, as ``torchrun`` starts them, share the batches of a step.

    Args:
        settings: what is asked for.
        output: the folder, which must not be there yet, or be empty.
        report: called with what is being done, how much of it is done, how much there is to do, and a remark.

    Raises:
        OSError: where something cannot be read or written; what was written before is whole.
        ValueError: where the extra ``train`` is missing; for another tokenizer than the target's, data of which nothing
            can be learned, an output that is there, unfinished work with other settings, or a loss that is not finite.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from cactus_decoding import load_pair
        >>> settings = TrainingSettings("bundled", "word_problems:split=train", draft="bundled:worded", problems=8,
        ...                             max_new_tokens=8, steps=2, batch_size=2)
        >>> with TemporaryDirectory() as folder:
        ...     draft = train_draft(settings, f"{folder}/draft")
        ...     pair = load_pair("bundled", draft)
        >>> pair.drafter.vocabulary
        1003
    """  # fmt: skip
    check_installed()
    output = Path(os.path.abspath(output))
    documents = read_documents(settings.data, settings.problems)
    digest = digest_of(documents)
    work = unfinished_folder(output, settings, digest)
    if settings.cache is not None:
        check_folder(Path(settings.cache).expanduser())
    target_name = check_models(settings)
    local = only_cached("target", target_name)
    tokenizer = load_tokenizer("target", target_name, local=local)
    if (name := draft_name(settings)) is not None:
        theirs = load_tokenizer("draft", name, local=only_cached("draft", name))
        check_same_vocabulary(tokenizer, theirs, settings.target, str(settings.draft))
    args = arguments(settings, work / "checkpoints")
    main, wait = args.process_index == 0, args.distributed_state.wait_for_everyone
    report = report if main else _silent
    target = load_model("target", target_name, "auto", args.device, local=local).requires_grad_(False)
    draft = start(settings, target)  # before any work: the shape may be impossible
    with occupied(work, settings, digest) if main else nullcontext():
        wait()
        given = target, target_name, tokenizer, longest_of(settings, target, draft), work / "answers.jsonl"
        material = material_of(settings, documents, *given, report, answering=main, wait=wait)
        cache = _cache(settings, material, report, filling=main)
        wait()
        reference = _reference(settings, material, work / "reference", report, cache)
        best, logged = fit(settings, material, args, draft, report, reference=reference, cache=cache)
        if main:
            finish(write_model(work / "model", best, settings, material, logged, report), work, output)
    wait()
    return output


def _cache(settings: TrainingSettings, material: Material, report: Report, *, filling: bool) -> RowCache | None:
    """Return the cache that is asked for, which one process fills."""
    if settings.cache is None:
        return None
    cache = RowCache(Path(settings.cache).expanduser(), material.target, material.parts.train)
    if filling:
        cache.fill(lambda done: report("Keeping rows", done, len(material.parts.train), ""))
    return cache


def _reference(
    settings: TrainingSettings, material: Material, folder: Path, report: Report, cache: RowCache | None
) -> PreTrainedModel | None:
    """Return the draft that the settings' filter compares with, after distilling it; None without a filter."""
    if settings.filter is None:
        return None
    args, draft = arguments(settings, folder), start(settings, material.target)
    best, _ = fit(settings, material, args, draft, report, stage="Training the reference", loss="kl", cache=cache)
    return load_model("reference", best, torch.float32, args.device).requires_grad_(False)


def check_models(settings: TrainingSettings) -> str | Path:
    """Return the target's folder or name; raise `ValueError` for what can be no target or draft."""
    for name in (settings.target, settings.draft):
        if name is not None and parse_gguf(name) is not None:
            raise ValueError(f"{name!r} is a GGUF file, which only llama.cpp reads: give the folder it was made from")
    check_names(settings.target, settings.draft)
    if settings.draft is not None and parse_drafter(settings.draft) is not None:
        raise ValueError(f"{settings.draft!r} has no weights to train: give a model, a shape, or first_layers")
    return zoo.path("target") if settings.target == zoo.BUNDLED else settings.target
