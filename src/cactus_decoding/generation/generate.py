"""Generate text with a pair of models: the entry that most users want."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.budgets.budget import Budget, as_budget
from cactus_decoding.drafting import ModelDrafter
from cactus_decoding.drafting.lengths import FixedLength, as_draft_length
from cactus_decoding.generation.loop import Fate, Step, decode
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.stopping import Stopper
from cactus_decoding.models.cached import check_fits
from cactus_decoding.rules import as_rule
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.types import AcceptanceRule, DraftLength, Verifier
from cactus_decoding.verification.verifiers import make_verifier


class Response(Iterator[Step]):
    """A response that grows as its steps are taken.

    Attributes:
        token_ids: tokens so far, a stop token included.
        fates: how each of them came about.
        finish_reason: ``stop`` or ``length`` once it is finished, else None.
        metrics: counts and seconds so far.
        budget: what the response may cost, if that is limited or measured.
    """

    def __init__(self, pair: Pair, steps: Iterator[Step], stopper: Stopper, budget: Budget | None = None) -> None:
        """Follow steps that have not begun."""
        self.budget = budget
        self.token_ids: list[int] = []
        self.fates: list[Fate] = []
        self.finish_reason: str | None = None
        self.metrics = Metrics()
        self._pair, self._steps, self._stopper = pair, steps, stopper

    def __next__(self) -> Step:
        """Take one step."""
        start = time.perf_counter()
        step = next(self._steps)
        self.token_ids += step.token_ids
        self.fates += step.fates
        self.finish_reason = step.finish_reason
        self.metrics += step.metrics()
        self.metrics.seconds += time.perf_counter() - start
        return step

    @property
    def budget_left(self) -> float | None:
        """Nats of the budget that are left; None without a budget."""
        return None if self.budget is None else max(self.budget.limit - self.metrics.nats, 0.0)

    @property
    def text(self) -> str:
        """The text so far, without special tokens, cut before a stop string."""
        return self._stopper.trim(self._pair.tokenizer.decode(self.token_ids, skip_special_tokens=True))


def stream(
    pair: Pair,
    prompt: str,
    *,
    rule: AcceptanceRule | str = "lossless",
    budget: Budget | float | None = None,
    verification: str = "token",
    num_speculative_tokens: DraftLength | int | str = 6,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    stop: Sequence[str] = (),
    seed: int | None = None,
    observe: Callable[[Verifier], Verifier] | None = None,
) -> Response:
    r"""Return a response to iterate over step by step; its arguments and errors are those of `generate`.

    ``observe`` wraps what decides on the steps, for instance in something that looks on.

    Example:
        >>> from cactus_decoding import load_pair
        >>> response = stream(load_pair(), "Question: Tom has 4 pens and gets 2 more. How many pens?\nAnswer:", seed=0)
        >>> sum(len(step.token_ids) for step in response) == len(response.token_ids)
        True
    """
    rule, budget = as_rule(rule), as_budget(budget)
    sampling, untempered = SamplingParams(temperature, top_k, top_p, min_p), SamplingParams()
    length = as_draft_length(num_speculative_tokens)
    check_integer("max_new_tokens", max_new_tokens, 1)
    if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
        raise ValueError(f"stop must be a sequence of strings that are not empty, but is {stop!r}")
    if not isinstance(prompt, str):
        raise TypeError(f"prompt must be a string, but is {prompt!r}")
    prompt_ids = pair.tokenizer(prompt).input_ids
    if not prompt_ids:
        raise ValueError("prompt must have at least one token, but has none")
    check_fits("target", pair.target.max_length, len(prompt_ids), length.most)
    if length.most:
        check_fits("draft", pair.draft_window, len(prompt_ids), length.most)
    max_length = min(len(prompt_ids) + max_new_tokens, pair.target.max_length or len(prompt_ids) + max_new_tokens)
    stopper = Stopper(pair.stop_token_ids, stop, pair.tokenizer, len(prompt_ids))
    generator = torch.Generator(pair.target.device)
    if seed is None:
        generator.seed()
    else:
        check_integer("seed", seed, 0, 2**63 - 1)
        generator.manual_seed(seed)
    verifier = make_verifier(
        rule,
        lambda logits, _: sampling(logits),
        lambda logits, _: untempered(logits),
        greedy=temperature == 0,
        sampling=sampling,
        budget=budget,
        verification=verification,
        fixed_blocks=isinstance(pair.drafter, ModelDrafter) and type(length) is FixedLength,
    )
    steps = decode(
        pair.target,
        pair.drafter,
        prompt_ids,
        verifier if observe is None else observe(verifier),
        lambda logits, _: sampling(logits),
        num_speculative_tokens=length,
        max_length=max_length,
        should_stop=stopper,
        generator=generator,
    )
    return Response(pair, steps, stopper, budget)


def generate(
    pair: Pair,
    prompt: str,
    *,
    rule: AcceptanceRule | str = "lossless",
    budget: Budget | float | None = None,
    verification: str = "token",
    num_speculative_tokens: DraftLength | int | str = 6,
    max_new_tokens: int = 256,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    stop: Sequence[str] = (),
    seed: int | None = None,
) -> Response:
    r"""Generate a whole response by drafting and verifying.

    Args:
        pair: models from `load_pair`.
        prompt: the text to continue.
        rule: an acceptance rule or its spelling.
        budget: how far the response's distribution may move, a `Budget` or its nats; with None nobody measures.
        verification: ``token`` for one proposal after another, ``block`` for all of a step jointly, which accepts more
            and is open to rules whose relaxed target does not depend on the drafted token.
        num_speculative_tokens: proposals per step, 0 or more (0 is plain sampling from the target), or a draft length
            that chooses their number, such as `AdaptiveLength`, or its spelling.
        max_new_tokens: upper limit of the response's length, 1 or more; the context window is another.
        temperature: 0 or more; 0 takes the most likely token.
        top_k: how many of the most likely tokens are kept; 0 keeps all.
        top_p: the probability mass that is kept, in (0, 1].
        min_p: least probability that is kept, relative to the most likely token's, in [0, 1].
        stop: strings that end the response.
        seed: the same seed gives the same response on the same machine; None draws one.

    Raises:
        TypeError: for an argument of the wrong type.
        ValueError: for one out of range, an empty prompt, or a prompt that leaves no room in a context window.

    Sources: Leviathan et al. (arXiv 2211.17192); Hao and Mou (arXiv 2604.04987).

    Example:
        >>> from cactus_decoding import load_pair
        >>> prompt = "Question: Tom has 4 pens. He buys 2 more pens. How many pens does he have now?\nAnswer:"
        >>> generate(load_pair(), prompt, rule="cactus:delta=0.5", seed=0).finish_reason
        'stop'
    """
    response = stream(
        pair,
        prompt,
        rule=rule,
        budget=budget,
        verification=verification,
        num_speculative_tokens=num_speculative_tokens,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        stop=stop,
        seed=seed,
    )
    for _ in response:
        pass
    return response
