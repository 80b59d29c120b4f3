"""A response: prompt, request, models, tokens and text in one object, and the one way to begin it in every engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.choices import ChoiceTokens, check_choices, choose
from cactus_decoding.core.constraints.base import ConstrainedSampling, Constraint
from cactus_decoding.core.constraints.thinking import Thinking, ThinkingFirst
from cactus_decoding.core.loop import StopCheck, StoppingCriteria, cut_at_stop, decode
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.models.base import check_fits
from cactus_decoding.core.request import Request
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.core.sampling.params import RowSampling, SamplingFn
from cactus_decoding.core.types import Choice, Fate, ForcedTokens, Outcome

if TYPE_CHECKING:
    from cactus_decoding.core.models.tokenizers import Tokenizer
    from cactus_decoding.core.pair import Models


class Response(Iterator[Outcome]):
    """A response that grows as its steps are taken.

    From its first step until it is finished, closed, or no longer referred to, no other response runs on its pair: the
    first step of another one raises `RuntimeError`.

    Attributes:
        pair: the models that it runs on.
        request: what was asked for.
        prompt_token_ids: the tokens of the prompt.
        token_ids: tokens so far, a stop token included.
        fates: how each of them came about.
        finish_reason: ``stop`` or ``length`` once it is finished, else None.
        metrics: counts and seconds so far.
        choices: how likely each answer was, as `Choice`, where it is one of several.
    """

    def __init__(
        self,
        pair: Models,
        request: Request,
        prompt_token_ids: list[int],
        outcomes: Iterator[Outcome],
        cancelled: threading.Event | None = None,
    ) -> None:
        self.pair, self.request, self.prompt_token_ids = pair, request, prompt_token_ids
        self.token_ids: list[int] = []
        self.fates: list[Fate] = []
        self.finish_reason: str | None = None
        self.metrics = Metrics()
        self.choices: tuple[Choice, ...] = ()
        self._outcomes = _reserving(pair, outcomes, cancelled)

    def __next__(self) -> Outcome:
        """Take one step; one that fails, or is interrupted, ends the response."""
        start = time.perf_counter()
        outcome = next(self._outcomes)
        self.token_ids += outcome.token_ids
        self.fates += outcome.fates
        self.finish_reason, self.choices = outcome.finish_reason, outcome.choices or self.choices
        self.metrics += Metrics.of(outcome)
        self.metrics.seconds += time.perf_counter() - start
        return outcome

    def close(self) -> None:
        """Take no more steps, and free the pair."""
        self._outcomes.close()

    @property
    def budget_left(self) -> float | None:
        """Nats that are left of the budget; None without a budget."""
        budget = self.request.budget
        return None if budget is None else max(budget.limit - self.metrics.nats, 0.0)

    @property
    def pass_times(self) -> dict[str, Any] | None:
        """Measured seconds of forward passes, and their ``source``: with ``auto``, from the first step on.

        None for other draft lengths.
        """
        return self.pair.pass_times(self.request.draft_length)

    @property
    def text(self) -> str:
        """The text so far, without special tokens, cut before a stop string."""
        return self._text_of(self.token_ids)

    @property
    def reasoning_content(self) -> str | None:
        """The thinking part so far, without its marks; None where the model's chat template knows none."""
        thinking = Thinking.of(self._tokenizer, self.prompt_token_ids)
        return None if thinking is None else self._text_of(thinking.thought(self.token_ids)).strip("\n")

    @property
    def content(self) -> str:
        """The answer after the thinking part so far; where there is none, all the text."""
        thinking = Thinking.of(self._tokenizer, self.prompt_token_ids)
        start = 0 if thinking is None else thinking.answer_start(self.token_ids)
        text = "" if start is None else self._text_of(self.token_ids[start:])
        return text.lstrip("\n") if start else text

    def _text_of(self, token_ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return cut_at_stop(text, self.request.stop)

    @property
    def _tokenizer(self) -> Tokenizer:
        if self.pair.tokenizer is None:
            raise TypeError("this response has tokens and no text: its models were given without a tokenizer")
        return self.pair.tokenizer


def _reserving(pair: Models, outcomes: Iterator[Outcome], cancelled: threading.Event | None) -> Generator[Outcome]:
    with pair.reserve():
        if cancelled is not None:
            pair.cancel_by(cancelled)
        try:
            yield from outcomes
        finally:
            if cancelled is not None:
                pair.cancel_by(None)


def begin(
    pair: Models,
    request: Request,
    prompt_token_ids: Sequence[int],
    *,
    sampling: RowSampling | None = None,
    order: RowSampling | None = None,
    stop: StopCheck | None = None,
    generator: torch.Generator | Literal["seed"] | None = "seed",
    max_length: int | None = None,
    first_alone: bool = False,
    constraint: Constraint | None = None,
    choices: Sequence[str] | None = None,
    thinking_budget: int | None = None,
    cancelled: threading.Event | None = None,
) -> Response:
    """Check that a request can be answered, and return its response, of which no step is taken yet.

    Every engine and server begins its responses here. Sources: Leviathan et al. (arXiv 2211.17192); Hao and Mou
    (arXiv 2604.04987).

    Args:
        pair: the models; without a tokenizer where ``stop`` is given and the request's policy needs no texts.
        request: what is asked for.
        prompt_token_ids: the prompt's tokens, at least one.
        sampling: how logits become probabilities; by default as ``request.sampling`` says.
        order: the same for log-probabilities of ``choices``, without what processes logits of tokens.
        stop: ends the response; by default the target's end tokens and the request's stop strings do.
        generator: source of the random numbers, on the target's device; None for torch's default one, ``seed`` for a
            new one with the request's seed. Coupled verification takes the seed of its noise from it.
        max_length: another limit on the tokens of the sequence; by default the target's context window.
        first_alone: whether the first step proposes nothing, so that there is a token before the draft has read the
            prompt.
        constraint: which tokens the response may have; the logits of both models are masked by it, before ``sampling``
            sees them. Where the model thinks first, by its chat template, it begins after that.
        choices: answers of which the response is one, drawn by the probability of each whole answer. Nothing is
            drafted, and nothing relaxed: one pass of the target reads all of them. :func:`choose` says by which
            distribution one is drawn; the request's sampling parameters apply to the answers, not to their tokens.
        thinking_budget: tokens that the thinking part may have, after which its end mark is forced.
        cancelled: lets another thread end the response: where it is set, what is read next raises `Cancelled`.
    """
    prompt_ids = list(prompt_token_ids)
    if choices is not None:
        outcomes = _choosing(pair, request, prompt_ids, choices, sampling, order)
        return Response(pair, request, prompt_ids, outcomes, cancelled)
    target, drafter, tokenizer = pair.target, pair.drafter, pair.tokenizer
    window = target.max_length if max_length is None else max_length
    if not prompt_ids:
        raise ValueError("prompt must have at least one token, but has none")
    pair.check(request)
    request.check_room(window, drafter.max_length, len(prompt_ids))
    longest = len(prompt_ids) + request.max_new_tokens
    if stop is None:
        if tokenizer is None:
            raise TypeError("tokenizer must be given where stop is None: stop strings are looked for in texts")
        stop = StoppingCriteria(pair.stop_token_ids, request.stop, tokenizer, len(prompt_ids))
    if sampling is None:
        sampling = SamplingFn(request.sampling)
    if constraint is not None or thinking_budget is not None:
        constraint = _after_thinking(pair, prompt_ids, constraint, thinking_budget)
    forced: ForcedTokens | None = None
    if constraint is not None:
        sampling = constrained = ConstrainedSampling(sampling, constraint, len(prompt_ids))
        forced = constrained.forced
    fitted = request.policy.fit(tokenizer, target.vocabulary_size)
    outcomes = decode(
        target,
        drafter,
        prompt_ids,
        request.verifier(sampling, sampling.untempered, sampling.plain, fitted),
        sampling,
        draft_length=request.draft_length,
        max_length=longest if window is None else min(longest, window),
        stopping_criteria=stop,
        generator=_source(request, generator, target.device),
        first_alone=first_alone,
        free=request.one_text or (generator == "seed" and request.seed is None),
        forced=forced,
        fixed_blocks=request.needs_fixed_blocks,
    )
    return Response(pair, request, prompt_ids, outcomes, cancelled)


def _choosing(
    pair: Models,
    request: Request,
    prompt_ids: list[int],
    choices: Sequence[str],
    sampling: RowSampling | None,
    order: RowSampling | None,
) -> Generator[Outcome]:
    """Return the only step of a response that is one of several answers, which is not taken yet."""
    target, tokenizer = pair.target, pair.tokenizer
    if tokenizer is None:
        raise TypeError("tokenizer must be given where there are choices, which are texts")
    ends = [token for token in pair.stop_token_ids if token < target.vocabulary_size]
    tokens = ChoiceTokens.of(check_choices(choices), tokenizer, ends)
    if not prompt_ids:
        raise ValueError("prompt must have at least one token, but has none")
    if stopped := [(text, stop) for text in tokens.texts for stop in request.stop if stop in text]:
        text, stop = map(short_repr, stopped[0])
        raise ValueError(f"choices are whole answers, but stop has {stop}, which would cut {text}")
    if tokens.longest > request.max_new_tokens:
        raise ValueError(
            f"the longest of the choices has {tokens.longest} tokens, but max_new_tokens is {request.max_new_tokens}"
        )
    check_fits("target", target.max_length, len(prompt_ids) + tokens.longest, 0)
    if (thinking := Thinking.of(tokenizer, prompt_ids)) is not None and thinking.begins == "opened":
        raise ValueError("choices are whole answers, but this prompt opens a thinking part: switch thinking off")
    plain, generator = SamplingFn(request.sampling), _seeded(request.seed, torch.device("cpu"))
    sampling, order = plain if sampling is None else sampling, plain if order is None else order
    return choose(target, prompt_ids, tokens, sampling, order, generator, request.max_new_tokens)


def _after_thinking(
    pair: Models, prompt_ids: list[int], constraint: Constraint | None, budget: int | None
) -> Constraint | None:
    thinking = None if pair.tokenizer is None else Thinking.of(pair.tokenizer, prompt_ids)
    if thinking is not None:
        return ThinkingFirst(thinking, constraint, budget, pair.target.vocabulary_size, pair.stop_token_ids)
    if budget is not None:
        raise ValueError(
            "thinking_budget needs a model whose chat template has marks around a thinking part, such as <think> and "
            "</think>, each of them a token"
        )
    return constraint


def _seeded(seed: int | None, device: torch.device) -> torch.Generator:
    """Return a new generator; without a seed, a different one each time."""
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def _source(
    request: Request, given: torch.Generator | Literal["seed"] | None, device: torch.device
) -> torch.Generator | None:
    """Return what a response draws from: a generator, or noise where the draft shares it."""
    shares = request.scheme.shares_noise
    if shares and given == "seed" and request.seed is not None:
        return SharedNoise(request.seed, device)
    source = _seeded(request.seed, device) if given == "seed" else given
    return SharedNoise.of(source, device) if shares else source
