"""The bundled models as GGUF files, for llama.cpp.

    python scripts/bundled_gguf.py build/gguf                       target, worded and draft, in each type: seconds
    python scripts/bundled_gguf.py build/gguf target --type q8_0    one of them

Each becomes FOLDER/NAME-TYPE.gguf: float32, float16, or q8_0, which stores 32 weights in 34 bytes. Models of other
architectures, and other types, are llama.cpp's own tools' (convert_hf_to_gguf.py, llama-quantize).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from cactus_conform.gguf_files import add_shape, tensor_name, tensor_values
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from cactus_decoding import zoo

TYPES = {
    "float32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "float16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}


def write_gguf(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase | None, path: Path, kind: str) -> None:
    """Write a Llama with byte-level BPE tokens, or with bare numbers as tokens where there is no tokenizer."""
    stored, file_type = TYPES[kind]
    writer = GGUFWriter(path, "llama")
    writer.add_file_type(file_type)
    config = model.config.to_dict()
    add_shape(writer, Path(model.config.name_or_path).name or "random", config)
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        _add_tokens(writer, tokenizer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue  # llama.cpp then takes the embedding
        values = tensor_values(name, tensor.float().numpy(), config)
        of = stored if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(tensor_name(name, config), quants.quantize(values, of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: GGUFWriter, tokenizer: PreTrainedTokenizerBase) -> None:
    control = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    # llama.cpp knows no expression like the bundled one. This one keeps digits that follow each other together, but no
    # merge joins them. Only of several spaces in a row it makes other tokens.
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if i in control else TokenType.NORMAL for i in range(len(tokens))])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(True)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def write_bundled(
    name: str, folder: Path, kind: str, chat_template: str | None = None, positions: int | None = None
) -> Path:
    """Write a bundled model, perhaps with another chat template or a longer window; return where it is."""
    source, path = zoo.path(name), folder / f"{name}-{kind}.gguf"
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model.config.max_position_embeddings = positions or model.config.max_position_embeddings
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    write_gguf(model, tokenizer, path, kind)
    return path


def main(arguments: list[str] | None = None) -> None:
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from scripts.results import parser

    names = (None, {"nargs": "*", "positional": True, "default": ["target", "worded", "draft"]})
    several = ([], "may be given several times", {"choices": list(TYPES), "action": "append"})
    given = parser(__doc__, folder=Path, names=names, type=several).parse_args(arguments)
    for name in given.names:
        for kind in given.type or TYPES:
            print(write_bundled(name, given.folder, kind))


if __name__ == "__main__":
    main()
