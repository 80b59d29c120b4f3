"""The bundled target as anybody's model: in a folder of its own, with a chat template or without one."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import zoo


def save_target(folder: Path, chat_template: str | None) -> str:
    """Write it in float32, in which it is read: of another type a note says so."""
    AutoModelForCausalLM.from_pretrained(zoo.path("target"), dtype="float32").save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return str(folder)
