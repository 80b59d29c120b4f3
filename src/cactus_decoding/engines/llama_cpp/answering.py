"""One answer as it grows: text that is settled, and what the target thought of each token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from llama_cpp import LlamaGrammar

from cactus_decoding.core.detokenizer import IncrementalDetokenizer
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.loop import StopCheck, StoppingCriteria, decode
from cactus_decoding.core.models.base import without_gradients
from cactus_decoding.core.models.tokenizers import conversation_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.settings import with_default_proposals
from cactus_decoding.core.types import Outcome
from cactus_decoding.engines.llama_cpp.grammar import GrammarMask
from cactus_decoding.engines.llama_cpp.sampling import (
    LlamaSampling,
    LogitBias,
    Penalties,
    RowProcessor,
    without_penalties,
)
from cactus_decoding.engines.llama_cpp.server.counters import ResponseCounts
from cactus_decoding.engines.llama_cpp.server.request import Asked

_PENALISED = 64
"""How many of the last tokens penalties look at, as in llama.cpp."""
LEAST = -9999.0
"""What clients are told in the place of minus infinity, which JSON does not have."""


class TokenLogprobs(NamedTuple):
    """A token's log-probability and those of the likeliest ones at its place, likeliest first."""

    token: bytes
    logprob: float
    top: list[tuple[bytes, float]]


class Piece(NamedTuple):
    """What a step adds to an answer: text that nothing can change any more, and the tokens that it is of."""

    text: str
    logprobs: list[TokenLogprobs]
    finish_reason: str | None


def prompts_of(pair: Pair, asked: Asked) -> list[list[int]]:
    """Return a request's prompts in tokens; raise `ValueError` for one that the model cannot read."""
    tokenizer: Any = pair.tokenizer
    tools = {} if asked.tools is None else {"tools": asked.tools.described}
    texts = asked.prompts or [conversation_prompt(tokenizer, asked.messages, **asked.template, **tools)]
    prompts = [list(tokenizer(text).input_ids if isinstance(text, str) else text) for text in texts]
    if any(not ids or max(ids) >= pair.target.vocabulary_size for ids in prompts):
        raise ValueError(f"prompt must be tokens from 0 to {pair.target.vocabulary_size - 1}, and at least one of them")
    return prompts


def respond(
    pair: Pair,
    prompt_ids: list[int],
    request: Request,
    sampling: LlamaSampling,
    max_length: int,
    stopping_criteria: StopCheck,
) -> Iterator[Outcome]:
    """Return the steps of a response whose rows are llama.cpp's; a draft model reads the prompt after the first one."""
    generator = torch.Generator()
    generator.manual_seed(generator.seed() if request.seed is None else request.seed)
    policy = request.policy.fit(pair.tokenizer, pair.target.vocabulary_size)
    return decode(
        pair.target,
        pair.drafter,
        prompt_ids,
        request.verifier(sampling, sampling.untempered, sampling.plain, policy),
        sampling,
        length=request.draft_length,
        max_length=max_length,
        stopping_criteria=stopping_criteria,
        generator=generator,
        first_alone=isinstance(pair.drafter, ModelDrafter),
    )


@dataclass
class Answer:
    """One of a request's choices.

    Args:
        pair: which answers, of GGUF files.
        asked: what was asked.
        prompt_ids: one of `prompts_of`.
        defaults: settings of requests that say nothing.
        index: which choice; of those of a prompt, each has the next seed.

    Attributes:
        counts: what its rule did so far.
        num_tokens: how many it has so far, end tokens left out.

    Raises:
        TypeError, ValueError: for what cannot be answered, before a token is read.
    """

    pair: Pair
    asked: Asked
    prompt_ids: list[int]
    defaults: Mapping[str, Any]
    index: int = 0

    def __post_init__(self) -> None:
        pair, asked, start = self.pair, self.asked, len(self.prompt_ids)
        settings = with_default_proposals({**self.defaults, **asked.settings}, automatic=pair.chooses)
        temperature = 0.0 if asked.sampling["temperature"] == 0 else 1.0
        settings |= {"temperature": temperature, "seed": asked.seed + self.index % asked.n}
        self.request = Request.from_dict(settings)
        self.request.check_room(pair.target.max_length, pair.drafter.max_length, start)
        pair.check(self.request)
        self.counts, self.num_tokens = ResponseCounts(), 0
        processors: list[RowProcessor] = []
        if asked.logit_bias:
            processors.append(LogitBias(asked.logit_bias, pair.target.vocabulary_size))
        if not without_penalties(*asked.penalties):
            processors.append(Penalties(start, _PENALISED, *asked.penalties))
        if asked.grammar is not None:
            grammar = LlamaGrammar.from_string(asked.grammar, verbose=False)
            processors.append(GrammarMask(pair.target.model, grammar, start))
        self.sampling = LlamaSampling(**asked.sampling, processors=processors)
        self._ends = frozenset(pair.stop_token_ids)

    def pieces(self, on_step: Callable[[Request, Outcome], None]) -> Iterator[Piece]:
        """Yield what each step adds; the last piece, and only that, has a finish reason."""
        pair, asked, start = self.pair, self.asked, len(self.prompt_ids)
        limit = pair.target.max_length or start + (asked.max_tokens or 0)
        if asked.max_tokens is not None:
            limit = min(limit, start + asked.max_tokens)
        stops = StoppingCriteria([*self._ends], asked.stop, pair.tokenizer, start)
        detokenizer: IncrementalDetokenizer[int] = IncrementalDetokenizer(pair.tokenizer, asked.stop)
        known, sent = list[TokenLogprobs](), 0
        reservation = pair.reserve()
        try:
            for outcome in respond(pair, self.prompt_ids, self.request, self.sampling, limit, stops):
                on_step(self.request, outcome)
                self.counts.add(outcome)
                parts = []
                for place, token in enumerate(outcome.token_ids):
                    if token in self._ends:
                        continue
                    if asked.logprobs is not None:
                        known.append(self._logprobs(outcome, place, token, asked.logprobs))
                    parts += detokenizer.push(token, self.num_tokens)
                    self.num_tokens += 1
                if outcome.finish_reason is not None:
                    parts += detokenizer.finish()
                settled = parts[-1].fate + 1 if parts else sent
                if outcome.finish_reason == "length" or outcome.token_ids[-1] in self._ends:
                    settled = len(known)  # no stop string has cut any
                text = "".join(part.text for part in parts)
                if text or outcome.finish_reason is not None:
                    yield Piece(text, known[sent:settled], outcome.finish_reason)
                    sent = max(sent, settled)
        finally:
            reservation.active = False

    @without_gradients
    def _logprobs(self, outcome: Outcome, place: int, token: int, count: int) -> TokenLogprobs:
        """Return a token's, in the row that it was sampled from; at temperature 0 in that before the temperature."""
        greedy, node = self.request.sampling.temperature == 0, place - 1
        row = outcome.rows.untempered_behind(node) if greedy else outcome.rows.target_behind(node)
        logprobs = row.double().log().clamp(min=LEAST)
        values, ids = logprobs.topk(min(count, len(logprobs)))
        top = [(self._bytes(i), value) for i, value in zip(ids.tolist(), values.tolist(), strict=True)]
        return TokenLogprobs(self._bytes(token), float(logprobs[token]), top)

    def _bytes(self, token: int) -> bytes:
        tokenizer: Any = self.pair.tokenizer
        return bytes(tokenizer.piece(token))


def text_of(token: bytes) -> str:
    r"""Return a token's text; bytes that are no whole character are written as clients write them.

    Example:
        >>> text_of(b" caf"), text_of(bytes([0xC3]))
        (' caf', 'bytes:\\xc3')
    """
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
