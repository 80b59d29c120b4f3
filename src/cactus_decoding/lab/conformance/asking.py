"""What an engine is asked, and what it answers: tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LETTERS = "abcdefghi"
END = 0
"""The token that ends every output; the others are letters."""
VOCABULARY = len(LETTERS) + 1
DRAFTS = ("good", "bad", "adversarial", "deterministic")
LOOK_UP = "ngram"


@dataclass(frozen=True)
class Sampling:
    """How tokens are to be drawn, by the names of transformers and vLLM, and how they are to be proposed.

    Attributes:
        temperature: 0 takes the most likely token.
        top_k: how many of the most likely tokens are kept; 0 keeps all.
        top_p: the probability mass that is kept.
        min_p: least probability kept, relative to the likeliest token's.
        repetition_penalty: divides positive logits of tokens that output or prompt have, and multiplies others.
        presence_penalty: is taken from logits of tokens that the output has.
        frequency_penalty: the same, times how often it has them.
        logit_bias: what is added to logits of which tokens.
        letters: a grammar: the output consists of these; empty for none.
        stop_token_ids: end the output beside the end of sequence, and are part of it.
        max_tokens: upper limit of the output's length.
        draft: the model that proposes, by its folder's name; ``ngram`` looks proposals up in the text.
        num_speculative_tokens: proposals per step.
        cancels: answer only after a request on the same models was begun and given up.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    letters: str = ""
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int = 6
    draft: str = "good"
    num_speculative_tokens: int = 3
    cancels: bool = False

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end an output."""
        return frozenset({END, *self.stop_token_ids})

    @property
    def needs(self) -> frozenset[str]:
        """What an engine must be able to do for this, beside temperatures."""
        default = Sampling()
        return frozenset(name for name in OPTIONAL if getattr(self, name) != getattr(default, name))

    def named(self, *names: str) -> dict[str, Any]:
        """Return temperature and cuts, or other attributes, by their names."""
        return {name: getattr(self, name) for name in names or ("temperature", *CUTS)}


CUTS = ("top_k", "top_p", "min_p")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
OPTIONAL = (*CUTS, *PENALTIES, "logit_bias", "letters", "stop_token_ids", "cancels")
"""What not every engine has: attributes of `Sampling`."""


@dataclass(frozen=True)
class Query:
    """One request: a prompt's tokens, how to go on, and a seed."""

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        token_ids: the output, the token that ended it included.
        logprobs: of each of them, where the engine reports them.
        accepted: proposals in it that were kept, where the engine counts them; servers count some behind its end too.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    accepted: int | None = None


class Engine:
    """What is tested.

    Attributes:
        name: of the engine, with its version.
        supports: which of `OPTIONAL` it honours, and of ``batch`` (queries are answered together), ``repeats`` (a seed
            gives the same output again), ``logprobs``.
        drafts: models that it can propose with, by name.
        temperature_last: whether rows are cut before the temperature is applied, as llama.cpp does.
        penalises_prompt: whether the repetition penalty counts the prompt, which it does not in llama.cpp.
        ends_alike: whether an answer has the end of sequence for every token that ends it, as servers do not tell them.
    """

    name: str
    supports: frozenset[str]
    drafts: Sequence[str] = DRAFTS
    temperature_last = False
    penalises_prompt = True
    ends_alike = False

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        """Answer queries, which have one draft, in order and, where the engine can, as one batch."""
        return [self.one(query) for query in queries]

    def one(self, query: Query) -> Answer:
        """Answer a query."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up what was started."""


class EngineError(OSError):
    """An engine that is down, slow, or answers what is no answer: nothing can be said of its law."""


CLEARANCE = 2e-3
"""How far a row stands from the edge of every cut: nearer, rounding may decide, and the position is left out."""
