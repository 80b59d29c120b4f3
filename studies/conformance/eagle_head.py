"""Writes an EAGLE head of random weights for the tiny target: `python -m studies.conformance.eagle_head tiny`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from cactus_decoding.lab.conformance.models import tiny_llama, tokenizer, write_models


def write_head(folder: Path) -> Path:
    """Write the tiny models, and beside them ``eagle``: one layer behind a token's embedding and a hidden state."""
    config = json.loads((write_models(folder) / "target" / "config.json").read_text())
    place, width = folder / "eagle", config["hidden_size"]
    tokenizer().save_pretrained(place)
    (place / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    weights = {
        name.removeprefix("model."): weight.float().contiguous()
        for name, weight in tiny_llama("bad").state_dict().items()
        if name.startswith(("model.layers.0.", "model.embed_tokens")) and "input_layernorm" not in name
    }
    generator = torch.Generator().manual_seed(0)
    weights["fc.weight"] = torch.randn(width, 2 * width, generator=generator) / (2 * width) ** 0.5
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    return place


if __name__ == "__main__":
    write_head(Path(sys.argv[1]))
