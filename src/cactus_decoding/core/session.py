"""A response that is under way, and the one way to begin it in every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import torch

from cactus_decoding.core.choices import ChoiceTokens, check_choices, choose
from cactus_decoding.core.constraints.base import ConstrainedSampling, Constraint
from cactus_decoding.core.constraints.thinking import Thinking, ThinkingFirst
from cactus_decoding.core.loop import StopCheck, StoppingCriteria, decode
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.models.base import BaseCachedModel, check_fits
from cactus_decoding.core.request import Request
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.core.sampling.params import RowSampling, SamplingFn
from cactus_decoding.core.types import Choice, Drafter, Fate, ForcedTokens, Outcome

if TYPE_CHECKING:
    from cactus_decoding.core.models.tokenizers import Tokenizer


class Session(Iterator[Outcome]):
    def __init__(self, request: Request, prompt_token_ids: list[int], outcomes: Generator[Outcome]) -> None:
        self.request, self.prompt_token_ids, self.outcomes = request, prompt_token_ids, outcomes
        self.token_ids: list[int] = []
        self.fates: list[Fate] = []
        self.finish_reason: str | None = None
        self.metrics = Metrics()
        self.choices: tuple[Choice, ...] = ()

    def __next__(self) -> Outcome:
        """Take one step; one that fails, or is interrupted, ends the response."""
        start = time.perf_counter()
        outcome = next(self.outcomes)
        self.token_ids += outcome.token_ids
        self.fates += outcome.fates
        self.finish_reason, self.choices = outcome.finish_reason, outcome.choices or self.choices
        self.metrics += Metrics.of(outcome)
        self.metrics.seconds += time.perf_counter() - start
        return outcome

    def close(self) -> None:
        self.outcomes.close()


def begin(
    target: BaseCachedModel,
    drafter: Drafter,
    request: Request,
    token_ids: Sequence[int],
    *,
    tokenizer: Tokenizer | None,
    sampling: RowSampling | None = None,
    stop: StopCheck | None = None,
    generator: torch.Generator | Literal["seed"] | None = "seed",
    max_length: int | None = None,
    first_alone: bool = False,
    constraint: Constraint | None = None,
    thinking_budget: int | None = None,
) -> Session:
    """Check that a request can be answered, and return its response, of which no step is taken yet.

    Only one response at a time may run on the models' caches. Whoever takes the steps has to see to that, for example
    by reserving a `Pair`. Sources: Leviathan et al. (arXiv 2211.17192); Hao and Mou (arXiv 2604.04987).

    Args:
        target: the verifying model.
        drafter: where proposals come from.
        request: what is asked for.
        token_ids: the prompt's tokens, at least one.
        tokenizer: the target's; None where ``stop`` is given and the request's policy needs no texts.
        sampling: how logits become probabilities; by default as ``request.sampling`` says.
        stop: ends the response; by default the target's end tokens and the request's stop strings do.
        generator: source of the random numbers, on the target's device; None for torch's default one, ``seed`` for a
            new one with the request's seed. Coupled verification takes the seed of its noise from it.
        max_length: another limit on the tokens of the sequence; by default the target's context window.
        first_alone: whether the first step proposes nothing, so that there is a token before the draft has read the
            prompt.
        constraint: which tokens the response may have; the logits of both models are masked by it, before ``sampling``
            sees them. Where the model thinks first, by its chat template, it begins after that.
        thinking_budget: tokens that the thinking part may have, after which its end mark is forced.
    """
    prompt_ids, window = list(token_ids), target.max_length if max_length is None else max_length
    if not prompt_ids:
        raise ValueError("prompt must have at least one token, but has none")
    check_models(target, drafter, request)
    request.check_room(window, drafter.max_length, len(prompt_ids))
    longest = len(prompt_ids) + request.max_new_tokens
    if stop is None:
        if tokenizer is None:
            raise TypeError("tokenizer must be given where stop is None: stop strings are looked for in texts")
        stop = StoppingCriteria(stop_token_ids(target, tokenizer), request.stop, tokenizer, len(prompt_ids))
    if sampling is None:
        sampling = SamplingFn(request.sampling)
    if constraint is not None or thinking_budget is not None:
        constraint = _after_thinking(target, tokenizer, prompt_ids, constraint, thinking_budget)
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
        length=request.draft_length,
        max_length=longest if window is None else min(longest, window),
        stopping_criteria=stop,
        generator=_source(request, generator, target.device),
        first_alone=first_alone,
        free=request.one_text or (generator == "seed" and request.seed is None),
        forced=forced,
        fixed_blocks=request.needs_fixed_blocks,
    )
    return Session(request, prompt_ids, outcomes)


def begin_choice(
    target: BaseCachedModel,
    request: Request,
    token_ids: Sequence[int],
    choices: Sequence[str],
    *,
    tokenizer: Tokenizer,
    sampling: RowSampling | None = None,
    order: RowSampling | None = None,
) -> Session:
    r"""Return a response that is one of several answers, drawn by the probability of each whole answer.

    Nothing is drafted, and nothing relaxed: one pass of the target reads all answers. :func:`choose` says by which
    distribution one of them is drawn; ``Session.choices`` are their probabilities.

    Args:
        request: what is asked for; its sampling parameters apply to the answers, not to their tokens.
        order: the same for log-probabilities of answers, without what processes logits of tokens.
    """
    prompt_ids = list(token_ids)
    ends = [token for token in stop_token_ids(target, tokenizer) if token < target.vocabulary_size]
    tokens = ChoiceTokens.of(check_choices(choices), tokenizer, ends)
    if not prompt_ids:
        raise ValueError("prompt must have at least one token, but has none")
    if tokens.longest > request.max_new_tokens:
        raise ValueError(
            f"the longest of the choices has {tokens.longest} tokens, but max_new_tokens is {request.max_new_tokens}"
        )
    check_fits("target", target.max_length, len(prompt_ids) + tokens.longest, 0)
    if (thinking := Thinking.of(tokenizer, prompt_ids)) is not None and thinking.begins == "opened":
        raise ValueError("choices are whole answers, but this prompt opens a thinking part: switch thinking off")
    plain = SamplingFn(request.sampling)
    outcomes = choose(
        target,
        prompt_ids,
        tokens,
        plain if sampling is None else sampling,
        plain if order is None else order,
        _seeded(request.seed, torch.device("cpu")),
        request.max_new_tokens,
    )
    return Session(request, prompt_ids, outcomes)


def _after_thinking(
    target: BaseCachedModel,
    tokenizer: Tokenizer | None,
    prompt_ids: list[int],
    constraint: Constraint | None,
    budget: int | None,
) -> Constraint | None:
    thinking = None if tokenizer is None else Thinking.of(tokenizer, prompt_ids)
    if thinking is not None and tokenizer is not None:
        ends = stop_token_ids(target, tokenizer)
        return ThinkingFirst(thinking, constraint, budget, target.vocabulary_size, ends)
    if budget is not None:
        raise ValueError(
            "thinking_budget needs a model whose chat template has marks around a thinking part, such as <think> and "
            "</think>, each of them a token"
        )
    return constraint


def within(reserve: Callable[[], AbstractContextManager[Any]], outcomes: Iterator[Outcome]) -> Generator[Outcome]:
    with reserve():
        yield from outcomes


def check_models(target: BaseCachedModel, drafter: Drafter, request: Request) -> None:
    request.check_drafter(drafter)
    if request.tree is not None:
        target.check_reads_trees()


def stop_token_ids(target: BaseCachedModel, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that end a sequence: those that the target names, or else its tokenizer's."""
    given, theirs = target.stop_token_ids, tokenizer.eos_token_id
    return given if given is not None else [] if theirs is None else [int(theirs)]


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
    """Return what a response draws from: a generator, or shared noise where verification is coupled."""
    if request.verification == "coupled" and given == "seed" and request.seed is not None:
        return SharedNoise(request.seed, device)
    source = _seeded(request.seed, device) if given == "seed" else given
    return SharedNoise.of(source, device) if request.verification == "coupled" else source
