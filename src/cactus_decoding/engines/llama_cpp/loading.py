"""Targets of GGUF files and what drafts for them, fitted to each other's lengths and threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.registry import DRAFTERS, parse_drafter
from cactus_decoding.core.models.loading import check_model_name, load_cached, load_tokenizer
from cactus_decoding.core.models.tokenizers import compare_vocabularies
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.types import Drafter
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile, parse_gguf
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
from cactus_decoding.engines.llama_cpp.models.weights import GgufModel


def load_drafter(draft: str | Path | Drafter, target: LlamaCppModel, tokenizer: GgufTokenizer) -> Drafter:
    """Return what drafts, with the target's threads and a context as long."""
    if isinstance(draft, Drafter):
        return draft
    named = parse_drafter(draft) if isinstance(draft, str) else None
    if named is not None:
        return named.drafter(target.model)
    check_model_name("draft", draft, DRAFTERS)
    file = parse_gguf(draft)
    if file is None:
        differing = compare_vocabularies(tokenizer, load_tokenizer("draft", draft), target.name, str(draft))
        return ModelDrafter(load_cached("draft", draft, "auto", target.device), target.vocabulary_size, differing)
    settings = file.settings
    weights = GgufModel.load("draft", file.path, gpu_layers=settings.gpu_layers)
    theirs = GgufTokenizer(weights)
    same = tokenizer.has_all_tokens_of(theirs)  # which takes less than to name what differs
    differing = None if same else compare_vocabularies(tokenizer, theirs, target.name, str(draft))
    size = settings.context_size or min(weights.trained_length, target.max_length)
    settings = replace(settings, context_size=size, threads=settings.threads or target.threads)
    return ModelDrafter(LlamaCppModel(weights, settings, copies=False), target.vocabulary_size, differing)


def load_gguf_pair(file: GgufFile, draft: str | Path, kept_prompts: int | str) -> Pair:
    target = LlamaCppModel.load("target", file)
    tokenizer = GgufTokenizer(target.model)
    return Pair(target, load_drafter(draft, target, tokenizer), tokenizer, kept_prompts=kept_prompts)
