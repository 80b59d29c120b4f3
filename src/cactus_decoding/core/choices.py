"""One of several answers, drawn by the exact probability of each whole answer."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.constraints.schema import checked_schema
from cactus_decoding.core.drafting.trees.shape import LookupTree
from cactus_decoding.core.models.base import BaseCachedModel, append_proposal
from cactus_decoding.core.models.tokenizers import Tokenizer
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.sampling.params import RowSampling
from cactus_decoding.core.sampling.rows import draw_one
from cactus_decoding.core.types import Choice, Decision, Outcome, Proposal, StepRows, Visit

MAX_OPTIONS, MAX_CHOICE_TOKENS = 256, 512
MAX_CHARACTERS = 2**14  # of one response: how many choices, and the tokens and characters of all of them together
_NODES_AT_ONCE = 64  # tokens whose rows are in memory at a time


def check_choices(choices: object, name: str = "choices") -> tuple[str, ...]:
    if not isinstance(choices, list | tuple) or not all(isinstance(each, str) for each in choices):
        raise TypeError(f"{name} must be a list of texts, but is {short_repr(choices)}")
    if not 1 <= len(choices) <= MAX_OPTIONS or "" in choices:
        raise ValueError(f"{name} must be 1 to {MAX_OPTIONS} texts that are not empty, but is {short_repr(choices)}")
    if not all(map(_is_text, choices)):
        raise ValueError(f"{name} has half of a surrogate pair, which is no character")
    if (size := sum(map(len, choices))) > MAX_CHARACTERS:
        raise ValueError(f"{name} may have {MAX_CHARACTERS:,} characters together, but has {size:,}")
    if len(set(choices)) < len(choices):
        twice = next(each for i, each in enumerate(choices) if each in choices[:i])
        raise ValueError(f"{name} must be different texts, but has {twice!r} twice")
    return tuple(choices)


def enum_choices(response_format: Any) -> tuple[str, ...] | None:
    """Return the answers that a ``response_format`` lists as an ``enum`` or a ``const``, as JSON; None for others."""
    if not isinstance(response_format, Mapping) or response_format.get("type") != "json_schema":
        return None
    described = response_format.get("json_schema")
    return schema_choices(described.get("schema"), "response_format") if isinstance(described, Mapping) else None


def schema_choices(schema: Any, name: str) -> tuple[str, ...] | None:
    """Return the answers that a JSON schema lists, as JSON; None where it does more than that."""
    if not isinstance(schema, dict) or not ("enum" in schema or "const" in schema):
        return None
    checked = checked_schema(f"the JSON schema of {name}", schema)
    if len(checked) != 1:
        return None
    values = checked["enum"] if "enum" in checked else [checked["const"]]
    if not isinstance(values, list):
        return None
    texts = tuple(dict.fromkeys(json.dumps(each, ensure_ascii=False) for each in values))
    return texts if 1 <= len(texts) <= MAX_OPTIONS and all(map(_is_text, texts)) else None


def _is_text(text: str) -> bool:
    """Whether a text can be written: half of a surrogate pair cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


class ChoiceTokens(NamedTuple):
    """What a response that is one of several answers may write."""

    texts: tuple[str, ...]
    token_ids: list[list[int]]  # of each, without the end
    ends: list[int]

    @classmethod
    def of(cls, texts: tuple[str, ...], tokenizer: Tokenizer, ends: list[int]) -> ChoiceTokens:
        """Return the tokenizer's own tokens of each answer."""
        if not ends:
            raise ValueError("choices need a model with an end token, but the target names none")
        token_ids = [list(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]
        for text, ids in zip(texts, token_ids, strict=True):
            written = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if written != text:
                raise ValueError(
                    f"the model cannot write the choice {short_repr(text)}: its tokens are {short_repr(written)}"
                )
        if (count := sum(map(len, token_ids))) > MAX_CHOICE_TOKENS:
            raise ValueError(f"choices may have {MAX_CHOICE_TOKENS} tokens together, but have {count}")
        return cls(texts, token_ids, ends)

    @property
    def longest(self) -> int:
        return max(map(len, self.token_ids))


def choose(
    target: BaseCachedModel,
    prompt_ids: list[int],
    tokens: ChoiceTokens,
    sampling: RowSampling,
    order: RowSampling,
    generator: torch.Generator,
    limit: int,
) -> Generator[Outcome]:
    r"""Yield the only step of a response that is one of several answers.

    With :math:`t_1 \ldots t_n` the tokens of answer c, and E the end tokens,

    .. math:: P(c) \propto \prod_i q(t_i \mid t_{<i}) \sum_{e \in E} q(e \mid t_1 \ldots t_n),

    where q is the target at temperature 1, after logits processors and before cuts. The answers are then treated as
    the tokens of one position with the logits log P(c): temperature, top-k, top-p and min-p apply to them.

    Args:
        sampling: makes q of logits, by its method ``untempered``.
        order: makes probabilities of log-probabilities; temperature and cuts without processors.
    """
    clock = time.perf_counter
    began = clock()
    try:
        with torch.inference_mode():
            target.forget_if_changed()
            target.recall(prompt_ids)
            target.read_on(prompt_ids)
            logprobs, known = list[float](), dict[int, Tensor]()
            for first, rows in _read(target, prompt_ids, tokens.token_ids):
                if sum(map(len, known.values())) > _NODES_AT_ONCE:
                    known = {}
                known |= dict(enumerate(rows, first))
                for number, logits in enumerate(rows, first):
                    logprobs.append(_logprob(logits, prompt_ids, tokens.token_ids[number], tokens.ends, sampling))
            read = clock()
            scores = torch.tensor([logprobs], dtype=torch.float64)
            if not bool(torch.isfinite(scores.amax())):
                raise ValueError("the target gives none of the choices a probability")
            chosen = draw_one(order(scores, [])[0], torch.rand((), dtype=torch.float64, generator=generator))
            ids = tokens.token_ids[chosen]
            if chosen not in known:
                target.rollback(len(prompt_ids) - 1)
                known[chosen] = append_proposal(target, prompt_ids, Proposal(ids, None))
            outcome = _outcome(known[chosen], prompt_ids, ids, tokens.ends, sampling)
    except Exception:
        target.reset()
        raise
    shares = scores[0].softmax(-1).tolist()
    choices = tuple(map(Choice, tokens.texts, logprobs, shares))
    yield replace(
        outcome,
        num_emitted=min(limit, len(ids) + 1),
        finish_reason="stop",
        target_seconds=read - began,
        verify_seconds=clock() - read,
        choices=choices,
    )


def _read(
    target: BaseCachedModel, prompt_ids: list[int], answers: Sequence[list[int]]
) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield, for groups of answers, the first one's number and the logits after the prompt and each token of each."""
    most, first = target.max_leaves or len(answers), 0
    while first < len(answers):
        end, nodes = first + 1, len(answers[first])
        while end < min(len(answers), first + most) and nodes + len(answers[end]) <= _NODES_AT_ONCE:
            nodes, end = nodes + len(answers[end]), end + 1
        group = answers[first:end]
        tree, paths = _tree_of(group)
        try:
            logits = append_proposal(target, prompt_ids, tree)
        except ValueError:  # such as of a sliding window, or where the context has no room for all of a tree
            if len(group) == 1:
                raise
            most = 1
            continue
        yield first, [logits[[0, *(node + 1 for node in path)]] for path in paths]
        target.rollback(len(prompt_ids) - 1)
        first = end


def _tree_of(answers: Sequence[list[int]]) -> tuple[Proposal, list[list[int]]]:
    tree = LookupTree.of(answers, MAX_CHOICE_TOKENS, lambda depth: MAX_OPTIONS)
    proposal = Proposal(tree.token_ids, None, tree.parents)
    return proposal, [proposal.path_along(answer) for answer in answers]


def _logprob(logits: Tensor, prompt_ids: list[int], answer: list[int], ends: list[int], sampling: RowSampling) -> float:
    """Return the log-probability of an answer and an end after it, from the logits before each of its tokens."""
    exact = logits.double() if sampling.plain is not None else logits  # processors may want their own type
    rows = sampling.untempered(exact, [*prompt_ids, *answer]).double()
    probs = [rows[i, token].item() for i, token in enumerate(answer)]
    probs.append(rows[-1, ends].sum().item())
    if any(math.isnan(p) for p in probs):
        raise ValueError(f"the target's logits after {len(prompt_ids)} tokens give no probabilities (NaN or infinite)")
    return sum(math.log(p) if p > 0 else -math.inf for p in probs)


def _outcome(
    logits: Tensor, prompt_ids: list[int], answer: list[int], ends: list[int], sampling: RowSampling
) -> Outcome:
    count = len(answer)
    proposal = Proposal(answer, None, forced=frozenset(range(count)))
    rows = StepRows(logits, [*prompt_ids, *answer], proposal, sampling.untempered, sampling.untempered)
    end = ends[int(logits[-1, ends].argmax())]
    visits = [Visit(rows, node, Decision(Lossless()), accepted=True) for node in range(count)]
    return Outcome(proposal, [*range(count)], end, visits, rows, count + 1)
