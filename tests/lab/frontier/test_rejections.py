"""Where lossless rejects: each kind's share is that of enumerated proposals and of what is written in their place."""

from __future__ import annotations

from collections import Counter

import pytest
from support.exact_enumeration import fates
from support.recorded_rows import agreeable_rows, float64_rows, one_sparse_step, some_rows

from cactus_decoding import parse_rule
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.frontier.frontier import Frontier
from cactus_decoding.lab.frontier.recorded_rows import RecordedRows
from cactus_decoding.lab.frontier.rejections import KINDS, OTHER, kind_of, rejections

TEXTS = ("1", " a", " b2", "+", "\n", "<eos>", "")
CONTROL = frozenset([5])


def words_of(rows: RecordedRows) -> Vocabulary:
    return Vocabulary(tuple(TEXTS[i % 7] for i in range(rows.target.vocabulary)), CONTROL)


def enumerated(rows: RecordedRows) -> dict[str, tuple[float, float]]:
    """Return the mass of each kind among rejected proposals and among what lossless draws for them."""
    words, drafted, written = words_of(rows), Counter[str](), Counter[str]()
    target, draft = (float64_rows(each)[rows.visited] for each in (rows.target, rows.draft))
    kept, recovery = fates(parse_rule("lossless"), target, draft)
    lost = draft * (1 - kept)  # [rows, drafted]
    for token in range(rows.target.vocabulary):
        drafted[kind_of(words, token)] += float(lost[:, token].sum())
        written[kind_of(words, token)] += float((lost * recovery[:, :, token]).sum())
    return {kind: (drafted[kind], written[kind]) for kind in (*KINDS, OTHER)}


@pytest.mark.parametrize("rows", [some_rows(), one_sparse_step()], ids=["dense", "sparse"])
def test_shares_are_those_of_enumerated_rejections(rows: RecordedRows) -> None:
    found = rejections(rows, words_of(rows), memory=3000)  # so little that there are several chunks
    expected = enumerated(rows)
    in_all = sum(drafted for drafted, _ in expected.values())
    assert found["rejected"][0] == pytest.approx(in_all / rows.positions, abs=1e-12)
    assert found["rejected"][0] == pytest.approx(1 - Frontier(rows).measure("lossless").acceptance.value, abs=1e-12)
    assert {each["kind"] for each in found["kinds"]} == {kind for kind, masses in expected.items() if max(masses) > 0}
    for each in found["kinds"]:
        drafted, written = expected[each["kind"]]
        assert each["drafted"][0] == pytest.approx(drafted / in_all, abs=1e-12)
        assert each["written"][0] == pytest.approx(written / in_all, abs=1e-12)
    assert any(abs(each["drafted"][0] - each["written"][0]) > 0.01 for each in found["kinds"]), "the two are told apart"


def test_intervals_are_over_problems() -> None:
    for rows, told in ((some_rows(), False), (agreeable_rows(), True)):  # three and twelve problems
        for each in rejections(rows, words_of(rows))["kinds"]:
            assert (each["drafted"][1] is not None) == told
            assert not told or each["drafted"][1] <= each["drafted"][0] <= each["drafted"][2]


def test_a_text_is_of_the_first_kind_that_it_shows_and_control_tokens_are_others() -> None:
    texts = {"digits": [" 12", "x1"], "words": ["don't", " naïve", "中"], "punctuation and symbols": [" +", "_", "—"],
             "space and line ends": [" ", "\n\n"], OTHER: ["", "<eos>"]}  # fmt: skip
    for kind, alike in texts.items():
        words = Vocabulary(tuple(alike), frozenset([alike.index("<eos>")] if "<eos>" in alike else []))
        assert [kind_of(words, token) for token in range(len(alike))] == [kind] * len(alike)
