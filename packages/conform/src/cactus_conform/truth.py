"""What tokens should be drawn from: the target's probabilities after every prefix, and coupled engines' noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cactus_conform.engine import DRAFTS, END, VOCABULARY, Sampling
from cactus_conform.models import TinyModel
from cactus_conform.processing import Rows, counts_before, distribution, penalised, softmax

_BATCH, _KEPT = 512, 60_000  # sequences that are read at once, and those that stay cached


class Wanted(NamedTuple):
    name: str
    prefix: tuple[int, ...]  # prompt and output so far
    start: int  # the prompt's length
    sampling: Sampling
    counted: int | None = None  # how many tokens of the prefix penalties know of; None: all
    temperature_last: bool | None = None  # apply cuts first; None: as the engine does
    min_p_of_all: bool = False  # compare min-p with probabilities, not with their ratios to the largest


@dataclass(frozen=True)
class Scored:
    """Positions of outputs, each with the token that was emitted there, and probabilities that may explain it.

    Probabilities are ``[positions, vocabulary]``, the others ``[positions]``.
    """

    tokens: NDArray[np.int64]
    places: NDArray[np.int64]  # in the output, from 0 on
    last: NDArray[np.bool_]  # whether the output ends there for its length
    sampling: Sampling
    target: Rows  # what the token is to be drawn from
    draft: Rows  # the draft's, by the same sampling; the target's, where the draft is unknown
    raw_target: Rows  # at temperature 1, without cuts and penalties
    raw_draft: Rows
    before: Rows  # the target's at the position before
    forgetful: Rows  # with penalties that miss the token before
    swapped: Rows  # with temperature and cuts in the other order
    untempered: Rows  # cut as asked, at temperature 1
    untempered_draft: Rows
    one_more: Rows  # of the likeliest top_k + 1 tokens
    min_p_of_all: Rows  # with min-p compared with probabilities
    clear: NDArray[np.bool_]  # whether no cut depends on rounding


class Truth:
    """The distributions of an engine's tokens; `Engine` explains the arguments.

    With ``ends_alike``, the probabilities of all tokens that end an output are added up at `END`.
    """

    def __init__(
        self, *, temperature_last: bool = False, penalises_prompt: bool = True, ends_alike: bool = False
    ) -> None:
        self._last, self._penalises_prompt, self._ends_alike = temperature_last, penalises_prompt, ends_alike
        self._models: dict[str, TinyModel] = {}
        self._logits: dict[tuple[str, tuple[int, ...]], Rows] = {}
        self._rows: dict[Wanted, Rows] = {}

    def logits(self, name: str, sequences: Sequence[tuple[int, ...]]) -> list[Rows]:
        """Return a model's logits after every token of sequences, each computed once."""
        if len(self._logits) > _KEPT:
            self._logits.clear()
        missing = list({each for each in sequences if (name, each) not in self._logits})
        if name not in self._models:
            self._models[name] = TinyModel(name)
        for start in range(0, len(missing), _BATCH):
            some = missing[start : start + _BATCH]
            for sequence, rows in zip(some, self._models[name].logits(some), strict=True):
                self._logits[name, sequence] = rows
        return [self._logits[name, each] for each in sequences]

    def score(self, prompt: tuple[int, ...], outputs: Sequence[tuple[int, ...]], sampling: Sampling) -> Scored:
        outputs = [each for each in outputs if each]
        sequences = [(*prompt, *each) for each in outputs]
        draft = sampling.draft if sampling.draft in DRAFTS else None
        target_rows = self.logits("target", sequences)
        draft_rows = self.logits(draft, sequences) if draft else target_rows
        start, parts = len(prompt), []
        for sequence, of_target, of_draft in zip(sequences, target_rows, draft_rows, strict=True):
            raw, raw_draft = (rows[start - 1 : len(sequence) - 1] for rows in (of_target, of_draft))
            counts = counts_before(list(sequence), start, VOCABULARY)[:-1]
            late = np.concatenate([counts[:1], counts[:-1]])
            prompt_counts = np.broadcast_to(counts[0], counts.shape)
            own, own_draft, forgetful = (
                penalised(rows, seen, prompt_counts, sampling, penalises_prompt=self._penalises_prompt)
                for rows, seen in ((raw, counts), (raw_draft, counts), (raw, late))
            )
            previous = of_target[max(start - 2, 0) : len(sequence) - 2]
            parts.append((raw, own, raw_draft, own_draft, forgetful, previous))
        columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
        raw, own, raw_draft, own_draft, forgetful, previous = columns
        lengths = [len(each) for each in outputs]
        places = np.concatenate([np.arange(length) for length in lengths])
        full = np.repeat([length >= sampling.max_tokens for length in lengths], lengths)
        found = distribution(own, sampling, temperature_last=self._last)
        seen = partial(self._seen, sampling)

        def drawn(logits: Rows, *, last: bool = self._last, min_p_of_all: bool = False, **changed: Any) -> Rows:
            by = replace(sampling, **changed)
            return seen(distribution(logits, by, temperature_last=last, min_p_of_all=min_p_of_all).probs)

        return Scored(
            tokens=np.array([token for each in outputs for token in each], np.int64),
            places=places,
            sampling=sampling,
            last=full & (places == np.repeat(lengths, lengths) - 1),
            target=seen(found.probs),
            draft=drawn(own_draft),
            raw_target=seen(softmax(raw)),
            raw_draft=seen(softmax(raw_draft)),
            before=drawn(previous),
            forgetful=drawn(forgetful),
            swapped=drawn(own, last=not self._last),
            untempered=drawn(own, temperature=1.0),
            untempered_draft=drawn(own_draft, temperature=1.0),
            one_more=drawn(own, top_k=sampling.top_k and sampling.top_k + 1),
            min_p_of_all=drawn(own, min_p_of_all=True),
            clear=found.clear,
        )

    def _seen(self, sampling: Sampling, rows: Rows) -> Rows:
        """Return probabilities as an engine shows them: with ``ends_alike``, all ends in one column."""
        if not self._ends_alike:
            return rows
        ends, merged = [*sampling.ends], rows.copy()
        merged[..., ends] = 0
        merged[..., END] = rows[..., ends].sum(-1)
        return merged

    def next_rows(self, wanted: Sequence[Wanted]) -> list[Rows]:
        """Return distributions after prefixes, ``[vocabulary]`` each."""
        if len(self._rows) > _KEPT:
            self._rows.clear()
        missing = list({each for each in wanted if each not in self._rows})
        for name in {each.name for each in missing}:
            some = [each for each in missing if each.name == name]
            for each, rows in zip(some, self.logits(name, [each.prefix for each in some]), strict=True):
                counts, prompt = (
                    np.bincount(part, minlength=VOCABULARY)[None].astype(float)
                    for part in (each.prefix[: each.counted], each.prefix[: each.start])
                )
                own = penalised(rows[-1:], counts, prompt, each.sampling, penalises_prompt=self._penalises_prompt)
                last = self._last if each.temperature_last is None else each.temperature_last
                self._rows[each] = distribution(
                    own, each.sampling, temperature_last=last, min_p_of_all=each.min_p_of_all
                ).probs[0]
        return [self._rows[each] for each in wanted]

    def enumerate(self, prompt: tuple[int, ...], sampling: Sampling, tokens: int = 3) -> dict[tuple[int, ...], float]:
        """Return every output of so many tokens, or shorter if it ended, with its probability."""
        found: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(tokens):
            grown: dict[tuple[int, ...], float] = {}
            rows = self.next_rows([Wanted("target", (*prompt, *each), len(prompt), sampling) for each in found])
            for (output, probability), row in zip(found.items(), rows, strict=True):
                if output and output[-1] in sampling.ends:
                    grown[output] = probability
                    continue
                row = self._seen(sampling, row)
                grown |= {(*output, x): probability * float(row[x]) for x in np.nonzero(row)[0].tolist()}
            found = grown
        return found


_ROUNDS, _WORD = 10, 2**64
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four words of Philox-4x64-10 for a counter of four words and a key of two.

    Source: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (SC 2011).
    """
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = second // _WORD ^ b ^ left, second % _WORD, first // _WORD ^ d ^ right, first % _WORD
        left, right = (left + _WEYL[0]) % _WORD, (right + _WEYL[1]) % _WORD
    return a, b, c, d


def arrival_times(seed: int, place: int, count: int) -> NDArray[np.float64]:
    """Return exponential numbers with rate 1 of the first tokens at a place of a text, ``[count]``.

    Token i has word ``i % 4`` of the block with the counter ``(1 + i // 4, place, 0, 0)`` and the key ``(seed, 0)``; a
    uniform number is made of the word's 53 highest bits.
    """
    words = [word for block in range(-(-count // 4)) for word in philox((1 + block, place, 0, 0), (seed, 0))]
    uniforms = (np.array([word >> 11 for word in words[:count]], np.float64) + 0.5) * 2.0**-53
    times: NDArray[np.float64] = -np.log1p(-uniforms)
    return times


def expected_token(row: Rows, seed: int, place: int) -> tuple[int, NDArray[np.float64]]:
    r"""Return the token that seed and place alone decide, and by how many nats each token's score is below that one's.

    An engine of this kind draws the token :math:`\arg\min_i E_i / q_i` of the target's distribution q, where E are the
    `arrival_times`. Its text is known beforehand, so that one response finds what thousands find by statistics.

    Source: Daliri et al., *Coupling without communication* (arXiv 2408.07978).
    """
    with np.errstate(divide="ignore"):
        scores = np.log(row) - np.log(arrival_times(seed, place, len(row)))
    best = int(scores.argmax())
    return best, scores[best] - scores
