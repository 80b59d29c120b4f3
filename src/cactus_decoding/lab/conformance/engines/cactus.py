"""This package's own loop as an engine."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from cactus_decoding.lab.conformance.asking import CUTS, DRAFTS, LETTERS, LOOK_UP, Answer, Engine, Query
from cactus_decoding.lab.conformance.models import text_of, tiny_llama, tokenizer


class CactusEngine(Engine):
    """`cactus_decoding.generate` over the tiny models, in float32; ``settings`` are fields of every `Request`.

    Example:
        >>> from cactus_decoding.lab.conformance.asking import Sampling
        >>> CactusEngine().answer([Query((1, 2, 3), Sampling(temperature=0.0, max_tokens=2), 0)])[0].token_ids
        (2, 7)
    """

    supports = frozenset({*CUTS, "stop_token_ids", "cancels", "repeats"})
    drafts: Sequence[str] = (*DRAFTS, LOOK_UP)

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        from importlib.metadata import version

        import torch

        from cactus_decoding.core.request import Request

        Request.from_dict(dict(settings or {}))
        torch.set_num_threads(1)
        self._settings, self._pairs = dict(settings or {}), dict[str, Any]()
        said = "".join(f", {name}={value}" for name, value in self._settings.items())
        self.name = f"cactus-decoding {version('cactus-decoding')}{said}"

    def _pair(self, draft: str) -> Any:
        from cactus_decoding.core.drafting.lookup import NgramDrafter
        from cactus_decoding.core.drafting.model import ModelDrafter
        from cactus_decoding.core.pair import Pair
        from cactus_decoding.engines.transformers.cached_model import CachedModel

        if draft not in self._pairs:
            target = CachedModel(copy.deepcopy(tiny_llama("target")).float())
            drafter = NgramDrafter() if draft == LOOK_UP else ModelDrafter(copy.deepcopy(tiny_llama(draft)).float())
            self._pairs[draft] = Pair(target, drafter, tokenizer())
        return self._pairs[draft]

    def one(self, query: Query) -> Answer:
        from cactus_decoding.core.generate import stream
        from cactus_decoding.core.request import Request
        from cactus_decoding.core.types import Fate

        sampling, pair = query.sampling, self._pair(query.sampling.draft)
        asked = sampling.named() | {
            "num_speculative_tokens": sampling.num_speculative_tokens,
            "max_new_tokens": sampling.max_tokens,
            "stop": [LETTERS[token - 1] for token in sampling.stop_token_ids],
            "seed": query.seed,
        }
        request = Request.from_dict(asked | self._settings)
        if sampling.cancels:
            given_up = stream(pair, text_of((*query.prompt, 9, 8)), request)
            next(given_up)
            given_up.close()
        response = stream(pair, text_of(query.prompt), request)
        for _ in response:
            pass
        kept = sum(fate in {Fate.ACCEPTED, Fate.RELAXED} for fate in response.fates)  # none after the end
        return Answer(tuple(response.token_ids), None, kept)
