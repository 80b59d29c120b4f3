"""Responses of GGUF files: how they begin, the text that is settled, and what the target thought of each token."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple

import torch

from cactus_decoding.core.constraints.thinking import Thinking
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.models.tokenizers import IncrementalDetokenizer
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.response import Response, begin
from cactus_decoding.core.types import Outcome
from cactus_decoding.engines.llama_cpp.sampling import GrammarMask, LlamaSampling, Penalties, RowProcessor

_PENALISED = 64  # how many of the last tokens penalties look at, as in llama.cpp
MIN_LOGPROB = -9999.0  # what clients are told in the place of minus infinity, which JSON does not have

StepReader = Callable[[Request, Outcome], None]


class TokenLogprobs(NamedTuple):
    """A token's log-probability and those of the likeliest ones at its place, likeliest first."""

    token: bytes
    logprob: float
    top: list[tuple[bytes, float]]
    start: int  # whole characters of the answer before it


class Piece(NamedTuple):
    """What a step adds to an answer: text that nothing can change any more, and the tokens that it is of."""

    text: str
    logprobs: list[TokenLogprobs]
    finish_reason: str | None
    reasoning: str = ""


def begin_gguf(
    pair: Pair,
    request: Request,
    prompt_ids: list[int],
    processors: Sequence[RowProcessor] = (),
    penalties: Sequence[float] = (1.0, 0.0, 0.0),
    grammar: Any = None,  # a `llama_cpp.LlamaGrammar`
    *,
    reach: int = _PENALISED,
    **more: Any,
) -> Response:
    """Begin a response with the rows of llama.cpp: what the server and `CactusLlama` do.

    Penalties look at the last ``reach`` tokens, or at all, if it is negative. ``more`` are arguments of `begin`.
    """
    rows = [*processors]
    if tuple(penalties) != (1, 0, 0):
        rows.append(Penalties(len(prompt_ids), reach, *penalties))
    if grammar is not None:
        rows.append(GrammarMask(pair.target.model, grammar, len(prompt_ids)))
    return begin(
        pair,
        request,
        prompt_ids,
        sampling=LlamaSampling(request.sampling, rows),
        order=LlamaSampling(request.sampling),
        first_alone=isinstance(pair.drafter, ModelDrafter),
        **more,
    )


def pieces(
    response: Response,
    on_step: StepReader,
    logprobs: int | None = None,
    *,
    apart: bool = False,
    visible: frozenset[int] = frozenset(),
) -> Generator[Piece]:
    """Yield what each step adds; the last piece, and only that, has a finish reason. Closing it frees the pair.

    ``logprobs`` are how many of the likeliest tokens to name at each place. A thinking part stands ``apart``.
    ``visible`` tokens stand for no text and are shown nevertheless.
    """
    request, ends = response.request, frozenset(response.pair.stop_token_ids)
    tokenizer: Any = response.pair.tokenizer
    shown: Any = _Showing(tokenizer, visible) if visible else tokenizer
    detokenizer: IncrementalDetokenizer[int] = IncrementalDetokenizer(shown, request.stop)
    known, sent, number = list[TokenLogprobs](), 0, count()
    thinking = Thinking.of(tokenizer, response.prompt_token_ids) if apart else None
    thoughts: IncrementalDetokenizer[int] = IncrementalDetokenizer(tokenizer)
    thinks, begun, answers = thinking is not None and thinking.begins == "opened", False, False
    with closing(response):
        for outcome in response:
            on_step(request, outcome)
            parts, thought = [], []
            for place, token in enumerate(outcome.token_ids):
                if token in ends:
                    continue
                opens = thinking is not None and token == thinking.opening and not begun
                begun = True
                if opens or (thinking is not None and thinks and token == thinking.closing):
                    thought += thoughts.finish()
                    thinks = opens
                    continue
                if logprobs is not None:
                    start = detokenizer.num_characters
                    known.append(_logprobs(response, outcome, place, token, logprobs, start))
                if thinks:
                    thought += thoughts.push(token, next(number))
                else:
                    parts += detokenizer.push(token, next(number))
            if outcome.finish_reason is not None:
                thought += thoughts.finish()
                parts += detokenizer.finish()
            settled = max([part.fate + 1 for part in (*parts[-1:], *thought[-1:])], default=sent)
            if outcome.finish_reason == "length" or outcome.token_ids[-1] in ends:
                settled = len(known)  # no stop string has cut any
            text, reasoning = ("".join(part.text for part in each) for each in (parts, thought))
            if thinking is not None and not answers:  # line breaks between the parts are of neither
                text = text.lstrip("\n")
                answers = bool(text)
            if text or reasoning or outcome.finish_reason is not None:
                yield Piece(text, known[sent:settled], outcome.finish_reason, reasoning)
                sent = max(sent, settled)


@torch.inference_mode()
def _logprobs(response: Response, outcome: Outcome, place: int, token: int, number: int, start: int) -> TokenLogprobs:
    """Return a token's, in the row that it was sampled from; at temperature 0 in that before the temperature."""
    tokenizer: Any = response.pair.tokenizer
    greedy, node = response.request.sampling.temperature == 0, place - 1
    row = outcome.rows.untempered_after(node) if greedy else outcome.rows.target_after(node)
    logprobs = row.double().log().clamp(min=MIN_LOGPROB)
    values, ids = logprobs.topk(min(number, len(logprobs)))
    top = [(bytes(tokenizer.piece(i)), value) for i, value in zip(ids.tolist(), values.tolist(), strict=True)]
    return TokenLogprobs(bytes(tokenizer.piece(token)), float(logprobs[token]), top, start)


class _Showing:
    """A tokenizer that decodes some of its special tokens too."""

    def __init__(self, tokenizer: Any, visible: frozenset[int]) -> None:
        self._tokenizer, self._hidden = tokenizer, frozenset(tokenizer.all_special_ids) - visible

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return str(self._tokenizer.decode([each for each in token_ids if each not in self._hidden]))


def text_of(token: bytes) -> str:
    r"""Return a token's text; bytes that are no whole character are written as clients write them."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
