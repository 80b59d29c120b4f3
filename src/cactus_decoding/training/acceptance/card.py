"""The model card of a trained draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from cactus_decoding.evaluation.intervals import Interval
from cactus_decoding.training.acceptance.material import Material
from cactus_decoding.training.acceptance.measuring import Acceptance
from cactus_decoding.training.acceptance.settings import TrainingSettings


def card(
    settings: TrainingSettings,
    *,
    material: Material,
    before: Mapping[str, Acceptance],
    after: Mapping[str, Acceptance],
    commit: str | None,
) -> str:
    """Return the text of README.md."""
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
    if not interval.told:
        return f"{interval.value:.3f} (no interval: too few documents, or all alike)"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def licence_of(name: str | Path, model: PreTrainedModel) -> str | None:
    """Return the licence that a model's card or configuration states; None where neither does.

    ``name`` is its folder, or its name on the hub, of which only what was fetched before is read.
    """
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
