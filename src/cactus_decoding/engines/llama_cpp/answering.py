"""One answer as it grows: text that is settled, and what the target thought of each token."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch

from cactus_decoding.core.constraints.base import Constraint
from cactus_decoding.core.constraints.thinking import Thinking
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.loop import StopCheck
from cactus_decoding.core.models.tokenizers import IncrementalDetokenizer
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.session import begin, begin_choice
from cactus_decoding.core.types import Outcome
from cactus_decoding.engines.llama_cpp.sampling import GrammarMask, LlamaSampling, Penalties, RowProcessor
from cactus_decoding.engines.openai.counters import ResponseCounts

_PENALISED = 64  # how many of the last tokens penalties look at, as in llama.cpp
MIN_LOGPROB = -9999.0  # what clients are told in the place of minus infinity, which JSON does not have


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


class LlamaAnswer:
    """A response of GGUF files, with the rows of llama.cpp: what the server and `CactusLlama` begin.

    Penalties look at the last ``reach`` tokens, or at all, if it is negative. ``visible`` tokens stand for no text and
    are shown nevertheless.
    """

    def __init__(
        self,
        pair: Pair,
        prompt_ids: list[int],
        request: Request,
        processors: Sequence[RowProcessor] = (),
        penalties: Sequence[float] = (1.0, 0.0, 0.0),
        grammar: Any = None,  # a `llama_cpp.LlamaGrammar`
        *,
        constraint: Constraint | None = None,
        choices: Sequence[str] | None = None,
        thinking_budget: int | None = None,
        reach: int = _PENALISED,
        stop: StopCheck | None = None,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        start, target = len(prompt_ids), pair.target
        rows = [*processors]
        if tuple(penalties) != (1, 0, 0):
            rows.append(Penalties(start, reach, *penalties))
        if grammar is not None:
            rows.append(GrammarMask(target.model, grammar, start))
        self.sampling = LlamaSampling(request.sampling, rows)
        tokenizer = pair.tokenizer
        if choices is not None:
            order = LlamaSampling(request.sampling)
            self.session = begin_choice(
                target, request, prompt_ids, choices, tokenizer=tokenizer, sampling=self.sampling, order=order
            )
        else:
            self.session = begin(
                target,
                pair.drafter,
                request,
                prompt_ids,
                tokenizer=tokenizer,
                sampling=self.sampling,
                stop=stop,
                constraint=constraint,
                thinking_budget=thinking_budget,
                first_alone=isinstance(pair.drafter, ModelDrafter),
            )
        self.counts, self._pair, self._ends = ResponseCounts(), pair, frozenset(pair.stop_token_ids)
        self._tokenizer: Any = _Showing(pair.tokenizer, visible) if visible else pair.tokenizer

    @property
    def num_tokens(self) -> int:
        """How many tokens it has so far, end tokens left out."""
        return sum(token not in self._ends for token in self.session.token_ids)

    def pieces(
        self, on_step: Callable[[Request, Outcome], None], logprobs: int | None = None, *, apart: bool = False
    ) -> Generator[Piece]:
        """Yield what each step adds; the last piece, and only that, has a finish reason. Closing it frees the pair."""
        request = self.session.request
        detokenizer: IncrementalDetokenizer[int] = IncrementalDetokenizer(self._tokenizer, request.stop)
        known, sent, number = list[TokenLogprobs](), 0, count()
        thinking = Thinking.of(self._pair.tokenizer, self.session.prompt_token_ids) if apart else None
        thoughts: IncrementalDetokenizer[int] = IncrementalDetokenizer(self._pair.tokenizer)
        thinks, begun, answers = thinking is not None and thinking.begins == "opened", False, False
        with self._pair.reserve():
            for outcome in self.session:
                on_step(request, outcome)
                self.counts.add(outcome)
                parts, thought = [], []
                for place, token in enumerate(outcome.token_ids):
                    if token in self._ends:
                        continue
                    opens = thinking is not None and token == thinking.opening and not begun
                    begun = True
                    if opens or (thinking is not None and thinks and token == thinking.closing):
                        thought += thoughts.finish()
                        thinks = opens
                        continue
                    if logprobs is not None:
                        start = detokenizer.num_characters
                        known.append(self._logprobs(outcome, place, token, logprobs, start))
                    if thinks:
                        thought += thoughts.push(token, next(number))
                    else:
                        parts += detokenizer.push(token, next(number))
                if outcome.finish_reason is not None:
                    thought += thoughts.finish()
                    parts += detokenizer.finish()
                settled = max([part.fate + 1 for part in (*parts[-1:], *thought[-1:])], default=sent)
                if outcome.finish_reason == "length" or outcome.token_ids[-1] in self._ends:
                    settled = len(known)  # no stop string has cut any
                text, reasoning = ("".join(part.text for part in each) for each in (parts, thought))
                if thinking is not None and not answers:  # line breaks between the parts are of neither
                    text = text.lstrip("\n")
                    answers = bool(text)
                if text or reasoning or outcome.finish_reason is not None:
                    yield Piece(text, known[sent:settled], outcome.finish_reason, reasoning)
                    sent = max(sent, settled)

    @torch.inference_mode()
    def _logprobs(self, outcome: Outcome, place: int, token: int, number: int, start: int) -> TokenLogprobs:
        """Return a token's, in the row that it was sampled from; at temperature 0 in that before the temperature."""
        greedy, node = self.session.request.sampling.temperature == 0, place - 1
        row = outcome.rows.untempered_after(node) if greedy else outcome.rows.target_after(node)
        logprobs = row.double().log().clamp(min=MIN_LOGPROB)
        values, ids = logprobs.topk(min(number, len(logprobs)))
        top = [(self._bytes(i), value) for i, value in zip(ids.tolist(), values.tolist(), strict=True)]
        return TokenLogprobs(self._bytes(token), float(logprobs[token]), top, start)

    def _bytes(self, token: int) -> bytes:
        tokenizer: Any = self._pair.tokenizer
        return bytes(tokenizer.piece(token))


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
