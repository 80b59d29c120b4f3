"""Train a draft for acceptance: the whole way, from a target and data to a model folder with a card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cactus_decoding import zoo
from cactus_decoding.core.audit import audit_rows
from cactus_decoding.core.divergences.rows import normalised
from cactus_decoding.core.drafting.registry import check_model_names, parse_drafter
from cactus_decoding.core.files.home import expanded
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, check_folder
from cactus_decoding.core.models.loading import load_tokenizer, only_cached
from cactus_decoding.core.models.tokenizers import compare_vocabularies
from cactus_decoding.core.rules import as_rule
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.transformers.loader import load_model, stored_dtype
from cactus_decoding.engines.transformers.partial_head import propose_from
from cactus_decoding.lab.evaluation.chat import tokenizer_of
from cactus_decoding.lab.evaluation.intervals import Interval, ratio_of_sums
from cactus_decoding.lab.evaluation.score import steps_of_texts
from cactus_decoding.lab.training.acceptance.data import (
    IGNORED,
    TokenSequence,
    collate,
    commonest,
    digest_of,
    in_chat,
    read_documents,
)
from cactus_decoding.lab.training.acceptance.fitting import arguments, fit
from cactus_decoding.lab.training.acceptance.losses import Relaxed, Rows, parse_loss
from cactus_decoding.lab.training.acceptance.material import (
    Material,
    draft_name,
    longest_of,
    material_of,
    start,
    target_name,
)
from cactus_decoding.lab.training.acceptance.row_cache import RowCache
from cactus_decoding.lab.training.acceptance.saving import finish, naming, occupied, unfinished_folder
from cactus_decoding.lab.training.acceptance.settings import ProgressReport, TrainingSettings, check_installed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROWS = 256  # audited at once


class DraftAcceptance(NamedTuple):
    """What a rule accepts of a draft: the mean over positions, and tokens per expected step (`steps_taken`)."""

    rate: Interval
    length: Interval


@torch.no_grad()
def measure(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    sequences: Sequence[TokenSequence],
    rules: Sequence[str],
    num_speculative_tokens: int,
    report: Callable[[int], None] = lambda done: None,
) -> dict[str, DraftAcceptance]:
    """Return what rules accept at the learned positions of some sequences, exact at each position, at temperature 1.

    The models must be on the same device; intervals are over sequences.
    """
    draft.eval()
    sums: list[list[tuple[float, float, int]]] = []
    for done, sequence in enumerate(sequences, start=1):
        batch = {name: values.to(target.device) for name, values in collate([sequence]).items()}
        labels = batch.pop("labels")[:, 1:]
        logits, theirs = (model(**batch, use_cache=False).logits[:, :-1] for model in (draft, target))
        rows = Rows.of(theirs, logits, labels.clamp(min=0), labels != IGNORED)
        q, p = (normalised(probs.double()) for probs in (rows.target_probs, rows.draft_probs))
        found = []
        for rule in map(as_rule, rules):
            parts = zip(q.split(_ROWS), p.split(_ROWS), strict=True)
            accepted = torch.cat([audit_rows(rule, *part).acceptance for part in parts])
            steps = steps_of_texts(accepted, rows.mask, num_speculative_tokens)
            found.append((accepted.sum().item(), steps.sum().item(), len(accepted)))
        sums.append(found)
        report(done)
    accepted, steps, positions = torch.tensor(sums, dtype=torch.float64).unbind(-1)
    return {
        rule: DraftAcceptance(
            ratio_of_sums(accepted[:, place], positions[:, place]), ratio_of_sums(positions[:, place], steps[:, place])
        )
        for place, rule in enumerate(rules)
    }


def card(
    settings: TrainingSettings,
    *,
    material: Material,
    before: Mapping[str, DraftAcceptance],
    after: Mapping[str, DraftAcceptance],
    commit: str | None,
) -> str:
    licence, measured_on = licence_of(material.target_name, material.target), len(material.parts.test)
    head: dict[str, Any] = {"library_name": "transformers", "tags": ["speculative-decoding", "draft-model"]}
    if licence is not None:
        head["license"] = licence
    recipe = {name: value for name, value in settings.as_dict().items() if value is not None}
    cells = {rule: (before[rule].length, after[rule].length, after[rule].rate) for rule in after}
    rows = [f"| `{rule}` | {' | '.join(map(_shown, intervals))} |" for rule, intervals in cells.items()]
    unknown = "not stated by its model card or configuration: look it up before you publish"
    stated = f"`{licence}`" if licence else unknown
    return "\n".join(
        [
            "---",
            *(f"{name}: {json.dumps(value)}" for name, value in head.items()),
            "---",
            "",
            f"# A draft for `{settings.target}`",
            "",
            f"Trained with `cactus train-draft` (cactus-decoding, commit {commit or 'unknown'}) to be accepted by its "
            "target in speculative decoding.",
            "",
            f"Tokens over expected steps of {settings.num_speculative_tokens} proposals, and the mean acceptance of a "
            f"position, at temperature 1, from both models' rows along {measured_on} documents that training did not "
            "see; in brackets 95 % intervals over documents.",
            "",
            "| rule | tokens per step before | after | acceptance after |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Data: {len(material.documents)} documents, SHA-256 `{material.digest}`. Licence of the target: {stated}.",
            "",
            "Recipe:",
            "",
            "```json",
            json.dumps(recipe, indent=2),
            "```",
            "",
        ]
    )


def _shown(interval: Interval) -> str:
    if not interval.has_ends:
        return f"{interval.value:.3f} (no interval: too few documents, or all alike)"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def licence_of(name: str | Path, model: PreTrainedModel) -> str | None:
    """Return the licence that a model's card or configuration states; None where neither does."""
    stated: Any = getattr(model.config, "license", None)
    file = Path(name) / "README.md"
    if not file.is_file() and not Path(name).exists():
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(str(name), "README.md")
        file = Path(found) if isinstance(found, str) else file
    if file.is_file():
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        head = lines[1 : lines.index("---", 1)] if lines[:1] == ["---"] and "---" in lines[1:] else []
        stated = next((line.partition(":")[2].strip(" \"'") for line in head if line.startswith("license:")), stated)
    return str(stated) if stated else None


MEASURED = ("lossless", "clamped:width=1.0", "clamped:width=3.0", "cactus:delta=1.0")
"""Rules whose acceptance a model card states."""


def write_model(
    folder: Path,
    best: Path,
    settings: TrainingSettings,
    material: Material,
    logged: Sequence[dict[str, float]],
    report: ProgressReport,
) -> Path:
    """Write a Hugging Face model with a model card, after measuring it as it is written; return the folder.

    What is in the folder is replaced. The weights of the checkpoint ``best`` are stored in the precision of the model
    that training started from.
    """
    target = material.target
    shutil.rmtree(folder, ignore_errors=True)
    with naming(folder):
        model = load_model("draft", best, torch.float32, torch.device("cpu"))
        # in the precision that the start's weights are stored in, whatever they are loaded in
        start_name = draft_name(settings) or target_name(settings)
        dtype = stored_dtype(start_name, local=only_cached("draft", start_name)) or torch.float32
        model.to(dtype).save_pretrained(folder)
        material.tokenizer.save_pretrained(folder)
    loss = parse_loss(settings.loss)
    rules = list(dict.fromkeys([*MEASURED, *([str(loss.rule)] if isinstance(loss, Relaxed) else [])]))
    measured: list[dict[str, DraftAcceptance]] = []
    for stage, draft in (
        ("Measuring the start", start(settings, target)),
        ("Measuring the draft", load_model("draft", folder, torch.float32, target.device)),
    ):
        found = measure(
            target,
            draft,
            material.parts.test,
            rules,
            settings.num_speculative_tokens,
            lambda done, stage=stage: report(stage, done, len(material.parts.test), ""),  # type: ignore[misc]
        )
        measured.append(found)
    before, after = measured
    about = provenance(settings.as_dict() | {"data_sha256": material.digest})
    record = {
        "provenance": about,
        "documents": {"all": len(material.documents)} | {n: len(p) for n, p in material.parts._asdict().items()},
        "before": {rule: each._asdict() for rule, each in before.items()},
        "after": {rule: each._asdict() for rule, each in after.items()},
        "log": list(logged),
    }
    text = card(settings, material=material, before=before, after=after, commit=about["commit"])  # type: ignore[arg-type]
    with naming(folder):
        (folder / "README.md").write_text(text, encoding="utf-8")
        (folder / "training.json").write_text(as_json(record, indent=2), encoding="utf-8")
        if material.answers is not None:
            shutil.copy(material.answers, folder)
    return folder


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
            propose_from(draft, part_of(settings, material))
        reference = _reference(settings, material, work / "reference", report, cache)
        best, logged = fit(settings, material, args, draft, report, reference=reference, cache=cache)
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


def part_of(settings: TrainingSettings, material: Material) -> list[int]:
    text = chain.from_iterable(each.token_ids for each in material.parts.train)
    return commonest(text, settings.draft_vocabulary or 0, material.stop_token_ids)


def _reference(
    settings: TrainingSettings, material: Material, folder: Path, report: ProgressReport, cache: RowCache | None
) -> PreTrainedModel | None:
    """Distil the draft that the settings' filter compares with; None without a filter."""
    if settings.filter is None:
        return None
    args, draft = arguments(settings, folder), start(settings, material.target)
    if settings.draft_vocabulary is not None:
        propose_from(draft, part_of(settings, material))
    best, _ = fit(settings, material, args, draft, report, stage="Training the reference", loss="kl", cache=cache)
    return load_model("reference", best, torch.float32, args.device).requires_grad_(False)


def check_models(settings: TrainingSettings) -> None:
    for name in (settings.target, settings.draft):
        if name is not None and parse_gguf(name) is not None:
            raise ValueError(f"{name!r} is a GGUF file, which only llama.cpp reads: give the folder it was made from")
    check_model_names(settings.target, settings.draft)
    if settings.draft is not None and parse_drafter(settings.draft) is not None:
        raise ValueError(f"{settings.draft!r} has no weights to train: give a model, a shape, or first_layers")
