"""Write a GGUF file as a folder of transformers, its weights unpacked.

python benchmarks/unpack.py FILE.gguf FOLDER
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def unpack(file: Path, folder: Path, dtype: str) -> None:
    """Write model and tokenizer."""
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    unpacked = GgufConfig(gguf_file=file.name, dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=getattr(torch, dtype), quantization_config=unpacked
    )
    if hasattr(model.config, "quantization_config"):  # its weights are floats by now
        del model.config.quantization_config
    model.save_pretrained(folder)


if __name__ == "__main__":
    from pairing import parse

    given = parse(__doc__, file=Path, folder=Path, dtype="bfloat16")
    unpack(given.file, given.folder, given.dtype)
