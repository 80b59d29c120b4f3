"""Drafts that propose a part of the vocabulary: the tokens that some text has most of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.arguments.extras import needing
from cactus_decoding.arguments.later import torch
from cactus_decoding.files.jsonl import read_json
from cactus_decoding.files.writing import as_json, check_folder, part_of, replacing
from cactus_decoding.models.base import CONFIGURED
from cactus_decoding.models.llama_cpp.part import BESIDE
from cactus_decoding.models.llama_cpp.settings import parse_gguf
from cactus_decoding.models.loading import load_tokenizer
from cactus_decoding.models.names import check_model_name
from cactus_decoding.training.acceptance.data import commonest, read_documents

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Those that read embeddings as they read tokens; others scale one of them."""
_TOKENS = "tokenizer.ggml.tokens"
_OF_TOKENS = (_TOKENS, "tokenizer.ggml.token_type", "tokenizer.ggml.scores")
_ROWS = ("token_embd.weight", "output.weight", "output.bias")


def trim_draft(draft: str, data: str, size: int, output: Path) -> int:
    """Write a draft that proposes from the tokens that a text has most of, untrained; return how many it has.

    Args:
        draft: a folder of transformers, or a GGUF file.
        data: JSON Lines of prompts, completions or texts; or a trimmed folder, whose tokens are taken.
        size: how many tokens to keep, with those that end texts.
        output: what to write, of the same kind.

    Raises `OSError` for what cannot be read or written; `ValueError` likewise, for an output that is there, and for
    what `trim_gguf` refuses.
    """
    check_integer("draft_vocabulary", size, 1)
    file = parse_gguf(draft)
    if os.path.lexists(output) or (file is None) == (output.suffix == ".gguf"):
        kind = "a folder" if file is None else "a name that ends in .gguf"
        raise ValueError(f"output must be {kind} that is not there yet, but is {str(output)!r}")
    check_folder(output.parent)
    configured = Path(data) / "config.json"
    if configured.is_file():
        kept = read_json(configured).get(CONFIGURED)
        if not kept:
            raise ValueError(f"{data!r} is a draft that proposes from its whole vocabulary: give one that was trimmed")
    check_model_name("draft", draft)
    if file is not None and Path(f"{file.path}{BESIDE}").exists():  # its rows are numbered anew
        raise ValueError(f"{draft!r} proposes from a part of its vocabulary already: trim the file that it was made of")
    if file is None and not os.path.isdir(draft):
        raise ValueError(f"the draft must be a folder of transformers or a GGUF file, but is {draft!r}")
    if not configured.is_file() and Path(data).is_dir():
        raise ValueError(f"{data!r} is a folder that holds no draft: give JSON Lines, or a folder that was trimmed")
    documents = [] if configured.is_file() else read_documents(data)
    tokenizer = load_tokenizer("draft", draft, local=True)
    if not configured.is_file():
        ends = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        texts = (part for each in documents for part in (each.prompt, each.completion) if part)
        kept = commonest((i for text in texts for i in tokenizer(text, add_special_tokens=False).input_ids), size, ends)
    if file is not None:
        return trim_gguf(file.path, kept, output)
    part = part_of(output)
    shutil.copytree(draft, part)
    config = part / "config.json"
    config.write_text(as_json(read_json(config) | {CONFIGURED: kept}) + "\n", encoding="utf-8")
    os.rename(part, output)
    return len(kept)


def trim_gguf(source: Path, token_ids: Sequence[int], path: Path) -> int:
    """Write a GGUF draft with the output rows of some tokens, and beside it all embeddings; see `VocabularyPart`.

    Tokens that the file names as special are kept too; how many there are is returned.

    Raises `ValueError` where the package ``gguf`` is missing, for an unknown architecture, and for tokens that the file
    lacks.
    """
    with needing("GGUF files are written by the package gguf", "llama-cpp"):
        from gguf import GGMLQuantizationType, GGUFReader
        from gguf.quants import dequantize
    from safetensors.torch import save_file

    reader: Any = GGUFReader(source)
    fields = reader.fields
    architecture, size = fields["general.architecture"].contents(), len(fields[_TOKENS].data)
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"{str(source)!r} is of the architecture {architecture!r}, whose vocabulary cannot be trimmed; allowed are "
            f"{', '.join(_ARCHITECTURES)}"
        )
    special = {key: fields[key].contents() for key in fields if key.startswith("tokenizer.") and key.endswith("_id")}
    kept = sorted({*token_ids, *special.values()})
    if kept[-1] >= size or kept[0] < 0:
        raise ValueError(f"{str(source)!r} has {size} tokens, but token {kept[-1]} is to be kept")
    changed: dict[str, Any] = {
        key: list(itemgetter(*kept)(fields[key].contents())) for key in _OF_TOKENS if key in fields
    }
    changed |= {key: kept.index(value) for key, value in special.items()}
    if "tokenizer.ggml.merges" in fields:
        changed["tokenizer.ggml.merges"] = ["z z"]  # nobody writes text with it
    if f"{architecture}.vocab_size" in fields:
        changed[f"{architecture}.vocab_size"] = len(kept)
    embeddings, tensors = None, []
    for tensor in reader.tensors:
        if tensor.name == _ROWS[0]:
            embeddings = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
            if tensor.tensor_type != GGMLQuantizationType.F32:
                embeddings = embeddings.half()
        tensors.append((tensor.name, tensor.data[kept] if tensor.name in _ROWS else tensor.data, tensor.tensor_type))
    with replacing(path) as part:
        write_like(reader, part, changed, tensors)
    assert embeddings is not None
    with replacing(Path(f"{path}{BESIDE}")) as part:
        save_file({"token_ids": torch.tensor(kept), "embeddings": embeddings}, part)
    return len(kept)


def write_like(reader: Any, path: Path, changed: Mapping[str, Any], tensors: Iterable[tuple[str, Any, Any]]) -> None:
    """Write a GGUF file with the fields that a ``GGUFReader`` has read, but for some, and with tensors of its own.

    A tensor is a name, what stands in the file, and its type there.
    """
    from gguf import GGUFValueType, GGUFWriter

    writer: Any = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, changed[key] if key in changed else field.contents(), *kind)
    for name, data, type_of_data in tensors:
        writer.add_tensor(name, data, raw_dtype=type_of_data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
