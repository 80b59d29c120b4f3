"""A tiny target and draft in folders, data for them, and trainings of a few steps."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.lab.training import TrainingSettings, train_draft
from cactus_decoding.zoo.word_problems import word_problems
from support.tiny_models import tiny_llama


def save_tiny_models(folder: Path) -> None:
    """Write ``target`` and ``draft``, both with the bundled tokenizer, in float32."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    for seed, role in enumerate(("target", "draft")):
        model = tiny_llama(seed, len(tokenizer), positions=128, sharpness=0.5).float()
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.config.dtype = torch.float32
        model.save_pretrained(folder / role)
        tokenizer.save_pretrained(folder / role)


def write_data(file: Path, count: int = 30, **fields: str) -> Path:
    problems = islice(word_problems("train", seed=9), count)
    lines = [{"prompt": each.prompt, "completion": f" {each.solution}"} | fields for each in problems]
    file.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return file


def settings(folder: Path, **others: object) -> TrainingSettings:
    """Return settings for a few quick steps from the tiny models."""
    given = {
        "target": str(folder / "target"),
        "data": str(folder / "data.jsonl"),
        "max_length": 96,
        "steps": 8,
        "batch_size": 2,
        "learning_rate": 1e-3,
        "evaluate_every": 2,
    }
    if not {"layers", "first_layers"} & set(others):
        given["draft"] = str(folder / "draft")
    return TrainingSettings(**(given | others))


def main() -> None:
    """Train as the JSON of the first argument says, and tell each step on a line: a process that tests can kill."""
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    folder, output = Path(asked.pop("folder")), asked.pop("output")
    train_draft(settings(folder, **asked), output, lambda stage, done, total, remark: print(stage, done, flush=True))


if __name__ == "__main__":
    main()
