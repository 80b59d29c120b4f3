"""Drafters of every kind over tiny models, and what each of them owes the loop: the contract of `Drafter`.

A check raises `AssertionError` where a drafter breaks it. `WRONG` holds drafters that break one each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import AssistedCandidateGenerator, PromptLookupCandidateGenerator

from cactus_decoding import (
    CandidateGeneratorDrafter,
    Drafter,
    ModelDrafter,
    NgramDrafter,
    Proposal,
    SamplingParams,
    SuffixDrafter,
)
from cactus_decoding.core.drafting.registry import as_draft_length, as_tree
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.early_exit import EarlyExit
from cactus_decoding.engines.transformers.forward import GeneralForward
from support.chi_square import rejects
from support.loop_runs import PROMPT, check_proposal, decided, run, tokens
from support.pass_times import PASS_TIMES
from support.tiny_architectures import tiny_gpt2, tiny_mistral, word_tokenizer
from support.tiny_models import tiny_llama

LETTERS = "a b c d e f g h"
DRAFT_WORDS = "c x a h y g b f d e"
"""Of a draft with a tokenizer of its own: other numbers, and two words more."""
TOKENIZERS = word_tokenizer(LETTERS), word_tokenizer(DRAFT_WORDS)
TEXTS = ([1, 2, 3], [4, 2], [1, 2], [1, 2, 3, 1, 2, 3, 1], [5, 1, 5, 1, 5])
"""What is looked up is found in some."""


@dataclass(frozen=True)
class Kind:
    """A kind of drafter.

    Attributes:
        make: from a target and a draft model to the drafter.
        length: of its proposals.
        reads: from the same two to the model whose rows it reports; None where it reports none.
        window: whether it follows the draft model's context window.
        twins: whether it can be doubled.
        goes_on_as_begun: whether it makes no difference where in a text a drafter begins. It does where transformers
            adapts a threshold from step to step, and where special tokens of a text are left out that is read anew.
    """

    make: Callable[[CachedModel, PreTrainedModel], Drafter]
    length: str = "4"
    reads: Callable[[CachedModel, PreTrainedModel], PreTrainedModel] | None = None
    window: bool = False
    twins: bool = True
    goes_on_as_begun: bool = True


def renumbered(model: PreTrainedModel, order: list[int | None]) -> PreTrainedModel:
    """The same model for another numbering: token i is token ``order[i]`` of the original, or one of its own."""
    other = tiny_llama(7, len(order))
    weights = other.state_dict()
    known = [i for i, token in enumerate(order) if token is not None]
    for name, weight in model.state_dict().items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            weights[name][known] = weight[[order[i] for i in known]]
        else:
            weights[name] = weight
    other.load_state_dict(weights)
    return other


def letters_renumbered(model: PreTrainedModel) -> PreTrainedModel:
    return renumbered(model, [LETTERS.split().index(w) if w in LETTERS else None for w in DRAFT_WORDS.split()])


def the_draft(target: CachedModel, draft: PreTrainedModel) -> PreTrainedModel:
    return draft


def first_layer(target: CachedModel, draft: PreTrainedModel) -> PreTrainedModel:
    model = copy.deepcopy(target.model)
    model.config.num_hidden_layers = 1
    return model


def crossing(retokenize: bool) -> Callable[[CachedModel, PreTrainedModel], Drafter]:
    def make(target: CachedModel, draft: PreTrainedModel) -> Drafter:
        return with_other_tokens(letters_renumbered(draft), *TOKENIZERS, retokenize=retokenize)

    return make


def with_other_tokens(draft: PreTrainedModel, ours: Any, theirs: Any, **settings: Any) -> CandidateGeneratorDrafter:
    return CandidateGeneratorDrafter(assistant_model=draft, tokenizer=ours, assistant_tokenizer=theirs, **settings)


def of_the_draft(**given: Any) -> Callable[[CachedModel, PreTrainedModel], Drafter]:
    return lambda target, draft: CandidateGeneratorDrafter(assistant_model=draft, **given)


def model(target: CachedModel, draft: PreTrainedModel) -> Drafter:
    return ModelDrafter(draft, target.vocabulary_size)


KINDS = {
    "model": Kind(model, reads=the_draft, window=True),
    "sliding window": Kind(lambda target, draft: ModelDrafter(tiny_mistral(1, window=4)), "3"),
    "confidence": Kind(model, "confidence:threshold=0.5,max_draft_tokens=4", the_draft, window=True),
    "auto": Kind(model, f"auto:max_draft_tokens=4,profile={PASS_TIMES}", the_draft),
    "auto suffix": Kind(lambda target, draft: SuffixDrafter(), f"auto:profile={PASS_TIMES}"),
    "auto ngram": Kind(lambda target, draft: NgramDrafter(), f"auto:profile={PASS_TIMES}"),
    "tree": Kind(model, as_tree("static=3.2.1"), the_draft, window=True),
    "tree without draws": Kind(model, as_tree("static=2.2.2,drawn=0"), the_draft),
    "tree with two draws": Kind(model, as_tree("static=2.2,drawn=2"), the_draft),
    "growing tree": Kind(model, as_tree("best_first,nodes=9,lookup=5"), the_draft),
    "looked-up tree": Kind(model, as_tree("static=2.1,lookup=4"), the_draft),
    "early exit": Kind(lambda target, draft: EarlyExit(1).drafter(target.model), reads=first_layer),
    "ngram": Kind(lambda target, draft: NgramDrafter()),
    "ngram tree": Kind(lambda target, draft: NgramDrafter(), as_tree("best_first,nodes=8")),
    "suffix": Kind(lambda target, draft: SuffixDrafter()),
    "suffix tree": Kind(lambda target, draft: SuffixDrafter(min_token_prob=0), as_tree("best_first,nodes=8")),
    "assisted": Kind(of_the_draft(), reads=the_draft, window=True, twins=False),
    "threshold": Kind(
        of_the_draft(assistant_confidence_threshold=0.6), reads=the_draft, twins=False, goes_on_as_begun=False
    ),
    # the two words that only the draft has are never drafted: `letters_renumbered` gives it the rows of the draft
    "translated": Kind(crossing(False), reads=the_draft, twins=False, goes_on_as_begun=False),
    "retokenized": Kind(crossing(True), twins=False),
    "prompt lookup": Kind(
        lambda target, draft: CandidateGeneratorDrafter(
            PromptLookupCandidateGenerator(num_output_tokens=10, max_length=64)
        ),
        twins=False,
    ),
}
CUT = SamplingParams(0.7, top_k=5, top_p=0.9)


class Bench:
    """A target, a draft, and fresh drafters of a kind over them."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.target, self.draft = kind, CachedModel(tiny_llama(0)), tiny_llama(1)

    def drafter(self) -> Drafter:
        return self.kind.make(self.target, self.draft)

    def begin(self, drafter: Drafter) -> Drafter:
        drafter.begin_response(self.target, as_draft_length(self.kind.length))
        return drafter

    def run(self, drafter: Drafter, **settings: Any) -> list:
        return run(self.target, drafter, **{"k": self.kind.length} | settings)


def propose(
    drafter: Drafter, text: list[int], limit: int = 3, seed: int = 0, sampling: SamplingParams = CUT
) -> Proposal:
    proposal = drafter.propose(text, limit, lambda logits, _: sampling(logits), torch.Generator().manual_seed(seed))
    check_proposal(proposal, limit, 8)
    return proposal


def same(proposal: Proposal, other: Proposal) -> None:
    assert (proposal.token_ids, proposal.parents, proposal.drawn) == (other.token_ids, other.parents, other.drawn)
    assert (proposal.probs is None) == (other.probs is None)
    if proposal.probs is not None:
        torch.testing.assert_close(proposal.probs, other.probs, rtol=0, atol=1e-5)


def check_greedy(bench: Bench) -> None:
    """At temperature 0 a response is the target's own, and what the response before left behind changes nothing."""
    drafter, greedy = bench.drafter(), SamplingParams(temperature=0)
    plain = bench.target.model.generate(torch.tensor([PROMPT]), do_sample=False, max_length=43)[0, 3:].tolist()
    for rule in ("lossless", "cactus:delta=1.0"):
        steps = bench.run(drafter, sampling=greedy, rule=rule, length=43)
        assert tokens(steps) == plain
        assert sum(step.num_drafted for step in steps) > 0


def check_seeds(bench: Bench) -> None:
    """A seed fixes a response, whatever was drafted before; torch's own generator is neither asked nor moved."""
    drafter, state = bench.drafter(), torch.get_rng_state()
    first = decided(bench.run(drafter, seed=3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12345)
    assert decided(bench.run(drafter, seed=4)) != first
    assert decided(bench.run(drafter, seed=3)) == first
    if bench.kind.twins:
        assert decided(bench.run(drafter.twin(), seed=3)) == first
    else:
        with pytest.raises(TypeError, match="cannot be shared by two responses at once"):
            drafter.twin()


def check_limits(bench: Bench) -> None:
    """No more levels than asked for, responses of their full length, and nothing behind what ends them."""
    drafter = bench.begin(bench.drafter())
    for text in TEXTS:
        for limit in (1, 2, 3):
            propose(drafter, text, limit)
    for length in (4, 5, 11):
        steps = bench.run(drafter, length=length)
        assert len(tokens(steps)) == length - len(PROMPT)
        assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + ["length"]
    whole = tokens(bench.run(drafter))
    stop = whole[3]
    steps = bench.run(drafter, stop=lambda ids: ids[-1] == stop)
    assert tokens(steps) == whole[: whole.index(stop) + 1]
    assert steps[-1].finish_reason == "stop"


def texts_of_a_response(bench: Bench, proposal: Proposal, text: list[int], seed: int) -> list[int]:
    """Return how a text goes on: along a path of a proposal, and then by a token of its own."""
    last = len(proposal.token_ids) - 1 - seed % 2
    return [*text, *proposal.tokens_to(last)[: 1 + seed % 3], (3 * seed) % 8] if last >= 0 else [*text, 5]


def check_state(bench: Bench) -> None:
    """A drafter that has followed texts proposes what a fresh one does: its cache is that of a fresh pass."""
    used, text = bench.begin(bench.drafter()), list(PROMPT)
    for seed in range(4):
        proposal = propose(used, text, seed=seed)
        if bench.kind.goes_on_as_begun:
            same(proposal, propose(bench.begin(bench.drafter()), text, seed=seed))
        text = texts_of_a_response(bench, proposal, text, seed)
    for other in (*TEXTS, [*text, 0, 0, 0]):  # a text that begins anew, and one that goes on otherwise
        same(propose(used, other), propose(bench.begin(bench.drafter()), other))


def check_rows(bench: Bench) -> None:
    """The rows that it reports are those of its model behind each path, after the request's sampling."""
    if bench.kind.reads is None:
        return
    reads = bench.kind.reads(bench.target, bench.draft)
    for sampling in (SamplingParams(), CUT, SamplingParams(temperature=0)):
        drafter = bench.begin(bench.drafter())
        for text in TEXTS:
            proposal = propose(drafter, text, sampling=sampling)
            assert proposal.probs is not None
            for row, parent in zip(proposal.probs, proposal.children, strict=True):
                with torch.no_grad():
                    logits = reads(torch.tensor([[*text, *proposal.tokens_to(parent)]])).logits[0, -1].float()
                fixed = not any(proposal.drawn[child] for child in proposal.children[parent])
                # where only looked-up tokens follow, the model was not asked: a row that is sure of the first stands
                certain = fixed and row.max() == 1
                assert certain or torch.allclose(row.float(), sampling(logits).float(), rtol=0, atol=1e-5)


def first_draws(bench: Bench, count: int) -> tuple[Tensor, Tensor] | None:
    """Return the first drawn tokens of many proposals, and the law that they are reported with."""
    drafter, drawn, law = bench.begin(bench.drafter()), [], None
    for seed in range(count):
        proposal = propose(drafter, PROMPT, 1, seed, SamplingParams())
        children = proposal.children.get(-1, [])
        nodes = [node for node in children if proposal.drawn[node]]
        if not nodes:
            return None
        law = proposal.probs[0].to(torch.float64, copy=True)
        law[[proposal.token_ids[node] for node in children if not proposal.drawn[node]]] = 0.0
        drawn.append(proposal.token_ids[nodes[0]])
    return torch.tensor(drawn), law / law.sum()


def check_law(bench: Bench) -> None:
    """What it calls drawn has the law that it reports: false alarms with probability 1e-6 for each drafter."""
    if (found := first_draws(bench, 200)) is not None:
        assert not rejects(*found)


class StruckError(Exception):
    """Stands for whatever may go wrong in a forward pass."""


@contextmanager
def striking(call: int, *, after: bool) -> Iterator[list[int]]:
    """Have the given forward pass of a process fail, before or after it wrote into its cache; yield what was called."""
    calls = [0]

    def struck(forward: Callable) -> Callable:
        def wrapped(*given, **named):
            calls[0] += 1
            if calls[0] == call and not after:
                raise StruckError
            result = forward(*given, **named)
            if calls[0] == call:
                raise StruckError
            return result

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GeneralForward, "append", struck(GeneralForward.append))
        patch.setattr(AssistedCandidateGenerator, "get_candidates", struck(AssistedCandidateGenerator.get_candidates))
        yield calls


def check_failures(bench: Bench) -> None:
    """A failure in any forward pass, before or after it has written, leaves nothing behind for the next response."""
    drafter, short = bench.drafter(), {"length": 7}
    expected = decided(bench.run(drafter, seed=5, **short))
    for after in (False, True):
        call = 0
        while True:
            call += 1
            bench.run(drafter, seed=call, **short)  # so that there is something to remember
            try:
                with striking(call, after=after):
                    bench.run(drafter, seed=call + 50, **short)
            except StruckError:
                assert decided(bench.run(drafter, seed=5, **short)) == expected, f"struck pass {call}"
            else:
                break
        assert call >= 3


def check_window(bench: Bench) -> None:
    """At the end of its context window it stops proposing; learned positions raise for one token too many."""
    if not bench.kind.window:
        return
    bench.draft = tiny_gpt2(1, positions=12)
    steps = bench.run(bench.drafter(), length=30)
    assert len(tokens(steps)) == 27
    assert steps[0].num_drafted > 0
    assert steps[-2].num_drafted == 0


def check_widths(bench: Bench) -> None:
    """Rows of a draft whose vocabulary is padded otherwise are fitted to the target's."""
    if not bench.kind.window:
        return
    for width in (6, 11):
        bench.draft = tiny_llama(2, width)
        assert max(tokens(bench.run(bench.drafter(), length=20))) < 8


CHECKS = (
    check_greedy,
    check_seeds,
    check_limits,
    check_state,
    check_rows,
    check_law,
    check_failures,
    check_window,
    check_widths,
)


# Drafters that break it


class Flatter(ModelDrafter):
    """Reports a flatter row than the one it draws from."""

    def propose(self, *given: Any) -> Proposal:
        proposal = super().propose(*given)
        flat = proposal.probs.sqrt()
        return Proposal(proposal.token_ids, flat / flat.sum(-1, keepdim=True))


class Likeliest(ModelDrafter):
    """Calls its likeliest tokens draws."""

    def propose(self, token_ids: list[int], limit: int, to_probs: Any, generator: Any) -> Proposal:
        proposal = super().propose(token_ids, min(limit, 1), to_probs, generator)
        return Proposal(proposal.probs.argmax(-1).tolist(), proposal.probs)


class Unbounded(ModelDrafter):
    """Proposes one more than it was asked for."""

    def propose(self, token_ids: list[int], limit: int, to_probs: Any, generator: Any) -> Proposal:
        return super().propose(token_ids, limit + 1, to_probs, generator)


class Careless(ModelDrafter):
    """Draws from torch's own generator."""

    def propose(self, token_ids: list[int], limit: int, to_probs: Any, generator: Any) -> Proposal:
        return super().propose(token_ids, limit, to_probs, None)


class Stale(ModelDrafter):
    """Takes any text that is longer than the last one for its continuation."""

    def _follow(self, token_ids: list[int]) -> int:
        cache = self._model
        if len(token_ids) > cache.length:
            cache._token_ids = token_ids[: cache.length]
        return super()._follow(token_ids)


class Remembering(ModelDrafter):
    """Believes after a failure that its cache holds what it was to hold, and does not forget when it is told to."""

    def reset(self) -> None:
        return None

    def propose(self, token_ids: list[int], *given: Any) -> Proposal:
        held = self._model.length
        try:
            return super().propose(token_ids, *given)
        except StruckError:
            self._model.append([7] * max(held, 2), rows=1)
            self._model._token_ids = list(token_ids[: self._model.length])
            raise


WRONG = {
    "flatter": (Flatter, check_rows),
    "likeliest": (Likeliest, check_law),
    "unbounded": (Unbounded, check_limits),
    "careless": (Careless, check_seeds),
    "stale": (Stale, check_state),
    "remembering": (Remembering, check_failures),
}


def wrong_kind(drafter: type[ModelDrafter]) -> Kind:
    return Kind(lambda target, draft: drafter(draft, target.vocabulary_size), reads=the_draft)
