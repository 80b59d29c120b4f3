"""Assisted generation of Hugging Face transformers as an engine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from cactus_conform.engine import CUTS, DRAFTS, END, LOOK_UP, Engine, EngineAnswer, Query, Sampling, needing
from cactus_conform.models import tokens_of, write_models


class TransformersEngine(Engine):
    """`generate` with an ``assistant_model``, or with ``prompt_lookup_num_tokens``, in float32.

    ``settings`` are passed to every call, such as ``{"assistant_confidence_threshold": 0}``; ``speculation=False``
    proposes nothing, and shows what assisted generation should equal.
    """

    supports = frozenset(
        {*CUTS, "repetition_penalty", "logit_bias", "letters", "stop_token_ids", "cancels", "repeats", "logprobs"}
    )
    drafts: Sequence[str] = (*DRAFTS, LOOK_UP)

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        with needing("transformers torch"):
            import torch
            import transformers
            from transformers.utils import logging

        torch.set_num_threads(1)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._settings = dict(settings or {})
        said = "".join(f", {name}={value}" for name, value in self._settings.items())
        self.name = f"transformers {transformers.__version__}{said}"
        self._speculates = bool(self._settings.pop("speculation", True))
        self._models: dict[str, Any] = {}

    def _model(self, name: str) -> Any:
        from transformers import AutoModelForCausalLM

        if name not in self._models:
            with tempfile.TemporaryDirectory() as folder:
                self._models[name] = AutoModelForCausalLM.from_pretrained(write_models(Path(folder)) / name)
        return self._models[name]

    def one(self, query: Query) -> EngineAnswer:
        if query.sampling.cancels:
            with suppress(_GivenUp):
                self._generated(replace(query, prompt=(*query.prompt, 9, 8)), stopping_criteria=[_give_up])
        return self._generated(query)

    def _generated(self, query: Query, **more: Any) -> EngineAnswer:
        import torch

        target, settings = self._model("target"), _settings(query.sampling)
        settings |= self._assistance(query.sampling) if self._speculates else {}
        read: list[tuple[int, list[int]]] = []  # of each pass, from where on and which tokens

        def note(model: Any, args: object, given: Mapping[str, Any]) -> None:
            cache = given["cache" if "cache" in given else "past_key_values"]
            read.append((cache.get_seq_length(), given["input_ids"][0].tolist()))

        torch.manual_seed(query.seed)  # after the models are made, which draws numbers too
        with torch.no_grad(), target.register_forward_pre_hook(note, with_kwargs=True):
            output = target.generate(
                torch.tensor([query.prompt]),
                attention_mask=torch.ones(1, len(query.prompt), dtype=torch.long),
                return_dict_in_generate=True,
                output_logits=True,
                **settings | self._settings | more,
            )
        tokens = tuple(output.sequences[0, len(query.prompt) :].tolist())
        rows = [row[0].log_softmax(-1) for row in output.logits]
        logprobs = tuple(row[token].item() for row, token in zip(rows, tokens, strict=False))
        return EngineAnswer(tokens, logprobs, _accepted(query.prompt, tokens, read) if self._speculates else None)

    def _assistance(self, sampling: Sampling) -> dict[str, Any]:
        count = sampling.num_speculative_tokens
        if sampling.draft == LOOK_UP:
            return {"prompt_lookup_num_tokens": count}
        draft = self._model(sampling.draft)
        draft.generation_config.num_assistant_tokens = count
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        if (threshold := self._settings.get("assistant_confidence_threshold")) is not None:  # a draft's, not a call's
            draft.generation_config.assistant_confidence_threshold = threshold
        return {"assistant_model": draft}


def _accepted(prompt: Sequence[int], tokens: Sequence[int], read: Sequence[tuple[int, list[int]]]) -> int:
    """Count proposals that the output kept: a rejected token is never the one drawn in its place.

    >>> _accepted((1, 2), (3, 4, 5), [(0, [1, 2, 3, 7]), (3, [4, 5])])
    2
    """
    text, total = [*prompt, *tokens], 0
    for start, ids in read:
        known = start + 1 if start else len(prompt)  # all but the last token are cached
        kept = zip(ids[known - start :], text[known:], strict=False)
        total += len([*takewhile(lambda pair: pair[0] == pair[1], kept)])
    return total


class _GivenUp(Exception):
    pass


def _give_up(*given: object, **more: object) -> bool:
    raise _GivenUp


def _settings(sampling: Sampling) -> dict[str, Any]:
    made: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "eos_token_id": [*sampling.ends],
        "pad_token_id": END,
        "do_sample": sampling.temperature > 0,
        "repetition_penalty": sampling.repetition_penalty,
    }
    if sampling.temperature > 0:
        made |= sampling.named()
    if sampling.logit_bias:
        made["sequence_bias"] = {(token,): bias for token, bias in sampling.logit_bias}
    if sampling.letters:
        allowed = [END, *tokens_of(sampling.letters)]
        made["prefix_allowed_tokens_fn"] = lambda batch, ids: allowed
    return made
