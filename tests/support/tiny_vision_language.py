"""Random vision-language models of a few thousand numbers, made in memory; only their text parts are ever run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
PLAIN = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    **IDS,
}
TEXT = PLAIN | {"head_dim": 8}
IMAGE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
CLIP, SIGLIP = IMAGE | {"model_type": "clip_vision_model"}, IMAGE | {"model_type": "siglip_vision_model"}
LLAMA, QWEN2 = TEXT | {"model_type": "llama"}, PLAIN | {"model_type": "qwen2"}
THREE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
TOKENS = {"image_token_id": 31, "video_token_id": 30, "vision_start_token_id": 29, "vision_end_token_id": 28}

KINDS: dict[str, dict[str, Any]] = {
    "Llava": {"vision_config": CLIP, "text_config": LLAMA, "image_token_index": 31},
    "Qwen2VL": {
        "text_config": PLAIN | THREE,
        "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4},
        **TOKENS,
    },
    "PaliGemma": {
        "vision_config": SIGLIP | {"projection_dim": 16, "vision_use_head": False},
        "text_config": TEXT | {"model_type": "gemma"},
        "image_token_index": 31,
        "projection_dim": 16,
    },
    "Gemma3": {
        "text_config": TEXT | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        "vision_config": IMAGE | {"vision_use_head": False},
        "image_token_index": 31,
        "boi_token_index": 30,
        "eoi_token_index": 29,
        "mm_tokens_per_image": 4,
    },
    "Idefics3": {
        "text_config": LLAMA,
        "vision_config": IMAGE,
        "image_token_id": 31,
        "scale_factor": 2,
        "pad_token_id": 0,
    },
    "Chameleon": {
        **PLAIN,
        "vocabulary_map": {"<image>": 31, "IMGIMGBS1A": 30},
        "vq_config": {
            "base_channels": 32,
            "embed_dim": 16,
            "latent_channels": 16,
            "num_embeddings": 4,
            "resolution": 8,
            "channel_multiplier": [1],
            "num_res_blocks": 1,
            "attn_resolutions": [],
        },
    },
    "Qwen2Audio": {
        "text_config": QWEN2,
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "d_model": 16,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "num_mel_bins": 8,
            "max_source_positions": 16,
        },
        "audio_token_index": 31,
    },
}
MLLAMA = {
    "text_config": PLAIN
    | {"num_hidden_layers": 3, "cross_attention_layers": [1], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_global_layers": 1,
        "attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
        "vision_output_dim": 16,
        "intermediate_layers_indices": [0],
        "supported_aspect_ratios": [[1, 1]],
    },
    "image_token_index": 31,
}


def tiny_vision_language(name: str, settings: dict[str, Any], seed: int = 0) -> PreTrainedModel:
    """Return a model of a kind in float64, its rows far from uniform and different from token to token."""
    config: Callable[..., Any] = getattr(transformers, f"{name}Config")
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config(**settings)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.5 * torch.randn_like(parameter))
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model
