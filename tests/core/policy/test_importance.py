"""Learned importance: its file, what is refused, and the law of what it limits and scales, exactly."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.decisions import Plan, emitted_by, plan
from support.exact_enumeration import enumerate_tokens, make_rows
from support.importances import digits_file, random_importance
from support.rules_under_test import SPELLINGS, every_rule

from cactus_decoding import Lossless, Pair, Request, audit, parse_rule, stream
from cactus_decoding.core.policy.importance import FORMAT, ImportanceLimit, read_importance
from cactus_decoding.core.policy.relaxation import FittedPolicy, RelaxationPolicy, relaxation_policy, scaled
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules import RULES
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.types import AcceptanceRule, Visit

EXACT = 1e-12
WORDS = Vocabulary(("1", "a", "b", "2", "c"))
ROWS = 40
TARGET, DRAFT = make_rows(5, ROWS, 11)
IMPORTANCE = random_importance(WORDS)
SAMPLED = [text for text in SPELLINGS if not isinstance(parse_rule(text), GreedyRule)]
SCALABLE = [text for text in SAMPLED if parse_rule(text).scalable]
TOKENS = [0] * ROWS


def fitted(**limit) -> FittedPolicy:
    return RelaxationPolicy(limit=ImportanceLimit(IMPORTANCE, **limit)).fit_vocabulary(WORDS)


def target_row(visit: Visit, settings: dict) -> torch.Tensor:
    return visit.rows.untempered_of(visit.node) if settings.get("temperature") == 0 else visit.target_probs


def expected_importance() -> torch.Tensor:
    """By the formula, a row at a time, in float64."""
    a, b = IMPORTANCE.target_weights.double(), IMPORTANCE.draft_weights.double()
    return torch.stack(
        [1 / (1 + torch.exp(-((q * a).sum() + (p * b).sum()))) for q, p in zip(TARGET, DRAFT, strict=True)]
    )


def planned(rule: AcceptanceRule, policy: FittedPolicy, *, metered: bool, tokens: list[int] = TOKENS) -> Plan:
    limit = float("inf") if metered else None
    return plan(rule, TARGET, DRAFT, torch.tensor(tokens), limit=limit, fitted=policy)


# --- the law ---


def test_it_is_the_sigmoid_of_both_rows():
    assert torch.allclose(IMPORTANCE(TARGET, DRAFT, TOKENS), expected_importance(), atol=EXACT)
    assert 8 < (expected_importance() <= 0.2).sum() < ROWS - 8


def test_a_deterministic_draft_counts_as_a_row_on_its_proposal():
    tokens = torch.arange(ROWS) % 5
    rows = torch.nn.functional.one_hot(tokens, 5).double()
    assert torch.equal(IMPORTANCE(TARGET, None, tokens.tolist()), IMPORTANCE(TARGET, rows, tokens.tolist()))


@every_rule(SCALABLE)
@pytest.mark.parametrize("metered", [False, True])
@pytest.mark.parametrize("max_importance", [1.0, 0.6])
def test_the_law_is_that_of_the_rule_with_each_positions_own_knob(
    spelling: str, metered: bool, max_importance: float
) -> None:
    rule, importance = parse_rule(spelling), expected_importance()
    made = planned(rule, fitted(max_importance=max_importance, scale=True), metered=metered)
    own = []
    for i in range(ROWS):
        mine = scaled(rule, 1 - importance[i].item()) if importance[i] <= max_importance else Lossless()
        own.append(enumerate_tokens(mine, TARGET[i : i + 1], DRAFT[i : i + 1])[0])
    assert (emitted_by(made.rule, TARGET, DRAFT) - torch.cat(own)).abs().max() < EXACT
    if metered:
        kl = torch.cat([audit(_knob_at(rule, i), TARGET[i : i + 1], DRAFT[i : i + 1]).kl for i in range(ROWS)])
        where = importance <= max_importance
        assert torch.allclose(torch.tensor(made.costs).double()[where], kl[where].clamp(min=0), atol=1e-9)


def _knob_at(rule: AcceptanceRule, i: int) -> AcceptanceRule:
    return scaled(rule, 1 - expected_importance()[i].item())


@pytest.mark.parametrize("name", [name for name, each in RULES.items() if each.scalable])
def test_a_scalable_knob_is_lossless_at_0_and_monotone(name: str) -> None:
    lossless = TARGET if name != "relaxed_greedy" else torch.nn.functional.one_hot(TARGET.argmax(-1), 5).double()
    for spelling in [text for text in SCALABLE if text.partition(":")[0] == name]:
        rule = parse_rule(spelling)
        law, _ = enumerate_tokens(scaled(rule, 0.0), TARGET, DRAFT)
        assert (law - lossless).abs().max() < EXACT
        accepted = [enumerate_tokens(scaled(rule, x), TARGET, DRAFT)[1].sum(-1) for x in (0.0, 0.3, 0.7, 1.0)]
        assert all((after >= before - EXACT).all() for before, after in pairwise(accepted))


# --- files ---


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "importance.safetensors"
    IMPORTANCE.save(path)
    read = read_importance(path)
    assert read == IMPORTANCE
    assert hash(read) == hash(IMPORTANCE)
    assert (read.about, read.vocabulary, read.path) == (IMPORTANCE.about, WORDS.fingerprint, str(path))
    assert pickle.loads(pickle.dumps(read)) == read
    other = random_importance(WORDS, seed=1)
    assert other != read
    other.save(path)
    assert read_importance(path) == other  # not what was read before


DAMAGE = {
    "text": (lambda path: path.write_text("no tensors"), "this is not a file"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "this is not a file"),
    "others": (lambda path: save_file({"a": torch.ones(2)}, path), "this is not a file"),
    "no draft": (lambda path: _rewrite(path, drop="draft_weights"), "lacks draft_weights"),
    "no intercept": (lambda path: _rewrite(path, drop="intercept"), "lacks intercept"),
    "schema": (lambda path: _rewrite(path, header={"schema": 2}), "schema is 2"),
    "header": (lambda path: _rewrite(path, header={"schema": 1}), "header lacks"),
    "lengths": (lambda path: _rewrite(path, draft_weights=torch.ones(3)), "same length"),
    "nan": (lambda path: _rewrite(path, target_weights=torch.full((5,), torch.nan)), "finite"),
    "sums to no number": (lambda path: _rewrite(path, target_weights=torch.full((5,), 3e38)), "up to ±1e\\+30"),
    "infinite": (lambda path: _rewrite(path, intercept=torch.tensor([torch.inf])), "intercept"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused_in_a_line(tmp_path: Path, kind: str) -> None:
    damage, said = DAMAGE[kind]
    path = tmp_path / "importance.safetensors"
    IMPORTANCE.save(path)
    damage(path)
    with pytest.raises(ValueError, match=said) as raised:
        read_importance(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def _rewrite(path: Path, drop: str = "", header: object = None, **tensors: torch.Tensor) -> None:
    kept = {
        "target_weights": IMPORTANCE.target_weights,
        "draft_weights": IMPORTANCE.draft_weights,
        "intercept": torch.zeros(1, dtype=torch.float64),
    } | tensors
    kept.pop(drop, None)
    header = {"schema": 1, "vocabulary": WORDS.fingerprint, "about": {}} if header is None else header
    save_file(kept, path, {FORMAT.key: json.dumps(header)})


def test_the_importance_of_another_vocabulary_is_refused_and_both_are_named() -> None:
    other = Vocabulary(("1", "a", "b", "2", "d"))
    with pytest.raises(ValueError, match="a test's") as raised:
        IMPORTANCE.fit(other)
    assert WORDS.fingerprint[:12] in str(raised.value)
    assert other.fingerprint[:12] in str(raised.value)


def test_rows_that_stand_for_no_token_weigh_nothing() -> None:
    longer = Vocabulary((*WORDS.texts, "", ""))
    importance = IMPORTANCE.fit(longer)
    padded = torch.nn.functional.pad(TARGET, (0, 2)), torch.nn.functional.pad(DRAFT, (0, 2))
    assert torch.allclose(importance(*padded, TOKENS), IMPORTANCE(TARGET, DRAFT, TOKENS), atol=EXACT)
    assert IMPORTANCE.fit(WORDS) is IMPORTANCE


def test_the_fingerprint_is_of_the_texts_in_order() -> None:
    prints = {Vocabulary(texts).fingerprint for texts in [("ab", "c"), ("a", "bc"), ("c", "ab"), ("", "ab", "c")]}
    assert len(prints) == 4


# --- requests ---


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"importance": 3}, TypeError, "a file's path or an Importance"),
        ({"importance": ""}, ValueError, "is empty"),
        ({"max_importance": 0.2}, ValueError, "importance is None"),
        ({"importance_scale": True}, ValueError, "importance is None"),
        ({"importance": ImportanceLimit("a"), "max_importance": 0.2}, ValueError, "max_importance is 0.2"),
    ],
)
def test_bad_input_is_refused(given: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        relaxation_policy(**given)


def test_the_defaults_of_the_limit() -> None:
    assert relaxation_policy(importance="a").limit == ImportanceLimit("a", 0.2)
    assert relaxation_policy(importance=Path("a"), importance_scale=True).limit == ImportanceLimit("a", 1.0, True)
    assert str(relaxation_policy("digits", importance="a")) == "protecting digits, importance ≤ 0.2"
    assert str(relaxation_policy(importance="a", importance_scale=True)) == "scaled by importance"


@pytest.mark.parametrize("rule", ["lenience:lenience=0.5", "typical", "top_k:k=3"])
def test_a_rule_without_a_knob_to_scale_is_refused_by_name(rule: str) -> None:
    with pytest.raises(ValueError, match=rule.partition(":")[0]) as raised:
        Request.from_dict({"rule": rule, "importance": "a", "importance_scale": True})
    assert "cactus, clamped, ensemble, relaxed_greedy" in str(raised.value)
    Request.from_dict({"rule": rule, "importance": "a"})


def test_a_request_needs_the_importance_in_a_file_to_become_plain(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in no file"):
        Request.from_dict({"importance": IMPORTANCE}).as_dict()
    path = tmp_path / "importance.safetensors"
    IMPORTANCE.save(path)
    assert Request.from_dict({"importance": read_importance(path)}).as_dict()["importance"] == str(path)


# --- in responses ---

PROMPT = "Question: Tom has 4 pens. He buys 2 more pens. How many pens does he have now?\nAnswer:"
SETTINGS = [
    {"rule": "cactus:delta=1"},
    {"rule": "clamped:width=3", "budget": 0.2},
    {"rule": "clamped:width=3", "verification": "block"},
    {"rule": "ensemble:weight=0.5", "verification": "block", "budget": 0.2},
    {"rule": "relaxed_greedy:margin=3", "temperature": 0},
    {"rule": "clamped:width=2", "budget_nats": 1, "expected_tokens": 40},
]


def words_of(pair: Pair) -> Vocabulary:
    return Vocabulary.of(pair.tokenizer, pair.target.model.config.vocab_size)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_no_important_position_is_relaxed(pair: Pair, settings: dict) -> None:
    importance = random_importance(words_of(pair), seed=2, spread=2.0, intercept=-1.0)
    limited = free = 0
    for seed in range(4):
        for outcome in stream(pair, PROMPT, importance=importance, max_importance=0.3, seed=seed, **settings):
            for visit in outcome.visits:
                judged_on = target_row(visit, settings)
                draft = None if visit.draft_probs is None else visit.draft_probs[None]
                value = importance(judged_on[None], draft, [visit.token_id]).item()
                assert abs(value - 0.3) > 1e-6
                assert visit.protected == (value > 0.3)
                limited, free = limited + visit.protected, free + (not visit.protected)
                assert not (visit.protected and (visit.fell_back or visit.nats))
    assert limited > 10
    assert free > 10


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_each_position_is_judged_with_its_own_knob(pair: Pair, settings: dict) -> None:
    importance = random_importance(words_of(pair), seed=2, spread=2.0, intercept=-1.0)
    rule, knobs = parse_rule(settings["rule"]), set()
    for outcome in stream(pair, PROMPT, importance=importance, importance_scale=True, seed=1, **settings):
        for visit in outcome.visits:
            judged_on = target_row(visit, settings)
            draft = None if visit.draft_probs is None else visit.draft_probs[None]
            factor = 1 - importance(judged_on[None], draft, [visit.token_id]).item()
            if not visit.fell_back and "expected_tokens" not in settings:
                [name] = [name for name in rule.scalable if getattr(rule, name) is not None]
                assert getattr(visit.rule, name) == pytest.approx(factor * getattr(rule, name), rel=1e-4)
            knobs.add(str(visit.rule))
            assert 0 <= visit.verdict.relaxed_prob.item() <= 1 + EXACT
    assert len(knobs) > 3


def test_a_scale_of_lossless_is_lossless(pair: Pair) -> None:
    importance = random_importance(words_of(pair))
    plain = stream(pair, PROMPT, seed=4)
    tokens = [token for outcome in plain for token in outcome.token_ids]
    limited = stream(pair, PROMPT, importance=importance, importance_scale=True, seed=4)
    assert [token for outcome in limited for token in outcome.token_ids] == tokens


def test_a_file_protects_as_well_as_a_pattern(pair: Pair, tmp_path: Path) -> None:
    path = digits_file(tmp_path, words_of(pair))
    for seed in range(4):
        by_file = stream(pair, PROMPT, rule="cactus:delta=1", importance=path, max_importance=0.5, seed=seed)
        by_pattern = stream(pair, PROMPT, rule="cactus:delta=1", protect="digits", protect_threshold=0.05, seed=seed)
        told = [[visit.protected for outcome in each for visit in outcome.visits] for each in (by_file, by_pattern)]
        assert told[0] == told[1]
        assert by_file.token_ids == by_pattern.token_ids


def test_an_importance_of_other_tokens_is_refused_before_the_first_step(pair: Pair) -> None:
    with pytest.raises(ValueError, match="was trained on the vocabulary of a test's"):
        stream(pair, PROMPT, rule="cactus:delta=1", importance=IMPORTANCE)
    with pytest.raises(FileNotFoundError, match="no such file"):
        stream(pair, PROMPT, rule="cactus:delta=1", importance="missing.safetensors")
