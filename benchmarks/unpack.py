"""Write a GGUF file as a folder of transformers, its weights unpacked.

python benchmarks/unpack.py FILE.gguf FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def unpack(file: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write model and tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    unpacked = GgufConfig(gguf_file=file.name, dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=dtype, quantization_config=unpacked
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Read arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    unpack(given.file, given.folder, getattr(torch, given.dtype))


if __name__ == "__main__":
    main()
