"""Writes an EAGLE head of random weights for the tiny target: `python -m studies.conformance.eagle_head tiny`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from cactus_conform.models import CONFIG, WIDTH, norms, weights_of, write_models
from safetensors.numpy import save_file

from scripts.results import parse


def write_head(folder: Path) -> Path:
    """Write the tiny models, and beside them ``eagle``: one layer after a token's embedding and a hidden state."""
    place = folder / "eagle"
    shutil.copytree(write_models(folder) / "target", place, dirs_exist_ok=True)
    (place / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 1}))
    weights = {
        name.removeprefix("model."): weight
        for name, weight in (weights_of("bad") | norms()).items()
        if name.startswith(("model.layers.0.", "model.embed_tokens")) and "input_layernorm" not in name
    }
    shape = (WIDTH, 2 * WIDTH)
    weights["fc.weight"] = (np.random.default_rng(0).normal(size=shape) / shape[1] ** 0.5).astype(np.float32)
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    return place


if __name__ == "__main__":
    write_head(parse(__doc__, folder=Path).folder)
