"""Where lossless verification rejects: how often at each kind of token, expected at recorded positions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import one_hot

from cactus_decoding.core.divergences.rows import normalised
from cactus_decoding.core.files.writing import plain_json
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.evaluation.intervals import ratio_of_sums
from cactus_decoding.lab.frontier.frontier import DEFAULT_MEMORY, sums_by
from cactus_decoding.lab.frontier.recorded_rows import RecordedRows

KINDS: Mapping[str, str] = {
    "digits": r"\d",
    "words": r"[^\W\d_]",
    "punctuation and symbols": r"\S",
    "space and line ends": r"\s",
}
"""Kinds of tokens; the first pattern that is found in a token's text decides."""
OTHER = "others, such as the end of a text"
_BYTES_AT_WORK = 40  # an upper estimate of what is held at once for each probability of some rows


def kind_of(vocabulary: Vocabulary, token: int) -> str:
    r"""Return the kind of a token.

    >>> words = Vocabulary((" cats", "x1", " +", "\n", "<eos>"), frozenset([4]))
    >>> [kind_of(words, token) for token in range(4)]
    ['words', 'digits', 'punctuation and symbols', 'space and line ends']
    """
    text = "" if token in vocabulary.control else vocabulary.texts[token]
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, text)), OTHER)


def rejections(rows: RecordedRows, vocabulary: Vocabulary, memory: int = DEFAULT_MEMORY) -> dict[str, Any]:
    r"""Return how often lossless rejects, and the share of each kind of token in that, with intervals over problems.

    At a visited position it rejects a drafted token x with probability :math:`(p(x) - q(x))_+`, and writes x in the
    place of another with :math:`(q(x) - p(x))_+`. Both sum to :math:`1 - \alpha`, so shares of the first say what the
    draft proposed (``drafted``), and those of the second what was written instead (``written``). ``rejected`` is
    :math:`1 - \alpha`. Kinds without a rejection are left out.

    Nothing is sampled. Of rows whose tails were merged, at most `MERGED_TAIL` of a position is counted for another
    kind.
    """
    names = [*KINDS, OTHER]
    tokens = range(rows.target.vocabulary)
    kinds = one_hot(torch.tensor([names.index(kind_of(vocabulary, each)) for each in tokens]), len(names)).double()
    lost = []  # [visited, 2, kinds]: what was drafted, and what was written instead
    size = max(1, memory // (len(tokens) * _BYTES_AT_WORK))
    for start in range(0, len(rows.drafted), size):
        here = slice(start, min(start + size, len(rows.drafted)))
        target, draft = (
            normalised(packed.dense(here.start, here.stop)[rows.visited[here]]) for packed in (rows.target, rows.draft)
        )
        lost.append(torch.stack([(draft - target).clamp(min=0) @ kinds, (target - draft).clamp(min=0) @ kinds], 1))
    problem = rows.problem[rows.step][rows.visited]
    drafted, written = sums_by(torch.cat(lost), problem, rows.problems).unbind(1)
    positions = sums_by(torch.ones(len(problem)), problem, rows.problems)
    in_all = drafted.sum(-1)
    shares = [
        {
            "kind": name,
            "drafted": ratio_of_sums(drafted[:, place], in_all),
            "written": ratio_of_sums(written[:, place], in_all),
        }
        for place, name in enumerate(names)
        if drafted[:, place].sum() + written[:, place].sum() > 0
    ]
    found: dict[str, Any] = plain_json({"rejected": ratio_of_sums(in_all, positions), "kinds": shares})
    return found
