"""Answers by the package's own loop, over models of Hugging Face or GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cactus_decoding.evaluation.engines.auditing import AuditedCosts
from cactus_decoding.evaluation.engines.engine import Answer
from cactus_decoding.generation.generate import Response, check_prompt, generate, stream
from cactus_decoding.generation.pair import Pair, load_pair
from cactus_decoding.generation.request import Request
from cactus_decoding.types import Outcome


class TransformersEngine:
    """One pair, one response at a time.

    ``watch`` sees every response's outcomes on their way, such as `DraftAdaptation.watch`.
    """

    def __init__(
        self, pair: Pair, *, audited: bool = True, watch: Callable[[Response], Iterator[Outcome]] = iter
    ) -> None:
        self._pair, self._audited, self._watch = pair, audited, watch
        # the first passes of a process are slow
        generate(pair, "Question:", num_speculative_tokens=2, max_new_tokens=8, seed=0)

    @classmethod
    def load(cls, target: str, draft: str, *, audited: bool = True) -> TransformersEngine:
        """Load the models; raise `ValueError` where they cannot be."""
        return cls(load_pair(target, draft), audited=audited)

    def check(self, request: Request) -> None:
        """Raise `ValueError` where the drafter does not go with the way to verify."""
        request.check_drafter(self._pair.drafter)

    def check_prompt(self, prompt: str, request: Request) -> None:
        """Raise `ValueError` for an empty prompt, or one that leaves no room in a context window."""
        check_prompt(self._pair, prompt, request)

    def answer(self, prompt: str, request: Request) -> Answer:
        """Answer one prompt, as if it were the first: what an earlier answer left cached would cut this one's time."""
        self._pair.drafter.reset()
        audited = AuditedCosts() if self._audited else None
        response = stream(self._pair, prompt, request)
        for outcome in self._watch(response):
            if audited is not None:
                audited.add(outcome)
        return Answer(
            response.text,
            response.finish_reason or "length",
            response.metrics,
            audited,
            token_ids=tuple(response.token_ids),
        )

    def close(self) -> None:
        """Do nothing: all that this engine holds are Python objects."""
