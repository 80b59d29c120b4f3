"""A tiny random model whose chat template opens a thinking part, or leaves that to the model."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer

from cactus_decoding import NgramDrafter, Pair, zoo
from cactus_decoding.engines.transformers.cached_model import CachedModel
from support.tiny_models import tiny_llama

OPENS = (
    "{% for m in messages %}{% if '</think>' in m.content %}{% endif %}{{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
MAY_OPEN = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}\n{% endfor %}"


def thinking_tokenizer(template: str = OPENS) -> Any:
    """Return the bundled tokenizer with two more tokens, and a template."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.chat_template = template
    return tokenizer


def thinking_pair(template: str = OPENS) -> Pair:
    tokenizer = thinking_tokenizer(template)
    model = tiny_llama(0, len(tokenizer), positions=512, sharpness=2.0)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    return Pair(CachedModel(model), NgramDrafter(), tokenizer)
