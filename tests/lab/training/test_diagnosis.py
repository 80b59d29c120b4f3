"""A diagnosis: rows are the models' own, chances the audit's, and it tells other words from weak arithmetic."""

from __future__ import annotations

import ast
import inspect
import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
from support.tables import all_of
from support.tiny_pair import tiny_pair

from cactus_decoding import Pair, Request, audit, load_pair
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.engines.transformers.early_exit import EarlyExit
from cactus_decoding.lab import training
from cactus_decoding.lab.training.acceptance.material import draft_model
from cactus_decoding.lab.training.adaptation import DraftAdaptation
from cactus_decoding.lab.training.diagnosis import Diagnosis, advice, diagnose
from cactus_decoding.lab.training.probe import MOST_TOKENS, Outcomes, Probe, Recorded, check_request, record
from cactus_decoding.zoo.word_problems import word_problems

HALF = 2e-3
"""What float16 leaves of a logarithm near 0."""
RELAXED = Request.from_dict({"rule": "clamped:width=3", "protect": "digits"})
PROMPTS = [each.prompt for each in islice(word_problems("train"), 100)]


@pytest.fixture(scope="module")
def few():
    pair = load_pair()
    return pair, record(pair, PROMPTS[:3], Request(seed=0))


def test_rows_are_those_of_the_models_and_every_emitted_token_has_one(few) -> None:
    pair, rows = few
    assert rows.problem.unique().tolist() == [0, 1, 2]
    first = rows.problem == 0
    prompt_ids = pair.tokenizer(PROMPTS[0]).input_ids
    text = [*prompt_ids, *rows.token_ids[first].tolist()]
    for model, packed in ((pair.target.model, rows.target), (pair.drafter.model, rows.draft)):
        with torch.no_grad():
            logits = model(torch.tensor([text])).logits[0, len(prompt_ids) - 1 : -1]
        theirs = logits.softmax(-1)
        assert (packed[first].float().exp() - theirs).abs().max() < HALF
        shifted = model(torch.tensor([text])).logits[0, len(prompt_ids) :].softmax(-1)  # the wrong variant
        assert (packed[first].float().exp() - shifted).abs().max() > 0.5


def test_hidden_states_are_what_the_head_reads_and_a_probe_of_a_small_vocabulary_looks_at_every_token(few) -> None:
    pair, rows = few
    logits = pair.drafter.model.get_output_embeddings()(rows.hidden)
    assert (logits.softmax(-1) - rows.draft.float().exp()).abs().max() < HALF
    tokens, target, _ = Outcomes.of(rows, torch.tensor([5, 2]))
    assert len(tokens) == rows.target.shape[1]
    assert torch.equal(target, rows.target[[5, 2]])


def test_chances_are_the_audits_and_a_protected_position_is_lossless(few) -> None:
    pair, rows = few
    found = diagnose(rows, pair, Request(), RELAXED, draft_cost=0.1, probe=Probe(steps=1))
    target, draft = (each.float().exp().double() for each in (rows.target, rows.draft))
    target, draft = target / target.sum(-1, keepdim=True), draft / draft.sum(-1, keepdim=True)
    lossless, relaxed, *_ = (audit(rule, target, draft).acceptance for rule in ("lossless", "clamped:width=3"))
    named = {each.name: each for each in found.promises}
    assert named["lossless"].acceptance == pytest.approx(float(lossless.mean()), abs=HALF)
    everywhere = diagnose(rows, pair, Request(), Request(rule="clamped:width=3"), draft_cost=0.1, probe=Probe(steps=1))
    assert everywhere.promises[2].acceptance == pytest.approx(float(relaxed.mean()), abs=HALF)
    assert named["lossless"].acceptance < named["relaxed"].acceptance < everywhere.promises[2].acceptance
    digits = next(each for each in found.classes if each.name == "digits")
    assert digits.relaxed == pytest.approx(0, abs=1e-9)
    assert named["lossless"].time.value == 1.0
    assert named["perfect draft"].time.value < named["lossless"].time.value
    assert sum(each.rejected for each in found.classes) == pytest.approx(1)


def wide(vocabulary: int, positions: int) -> Recorded:
    """Rows of a large vocabulary at few positions, with a draft that gives one token too much everywhere."""
    generator = torch.Generator().manual_seed(0)
    target = (
        torch.randn(vocabulary, generator=generator) * 4 + torch.randn(positions, vocabulary, generator=generator) / 9
    )
    draft = target.clone()
    draft[:, 7] += 22 - target[:, 7]
    rows = (each.log_softmax(-1).half() for each in (target, draft))
    tokens = torch.randint(vocabulary, (positions,), generator=generator)
    hidden = torch.randn(positions, 16, generator=generator)
    return Recorded(*rows, hidden, tokens, torch.arange(positions) // 4, 0.2, 3.0)


def test_a_probe_of_a_large_vocabulary_looks_at_few_outcomes_and_says_how_far_it_is() -> None:
    rows, said = wide(49_152, 24), list[int]()
    tokens, target, draft = Outcomes.of(rows, torch.arange(24))
    assert target.shape == draft.shape == (24, MOST_TOKENS + 1)
    assert 7 in tokens
    assert (target.float().exp().sum(-1) - 1).abs().max() < HALF
    one, other = (rows.target[3].float().exp(), target[3].float().exp())
    assert torch.equal(one[tokens], other[:-1])
    assert 1 - one[tokens].sum() == pytest.approx(float(other[-1]), abs=HALF)
    request = RELAXED.replace(policy=RelaxationPolicy())
    probe = Probe(steps=40, learning_rate=0.2)
    found = diagnose(rows, load_pair(), Request(), request, draft_cost=0.1, probe=probe, report=said.append)
    assert said == [*range(1, 81), 92, 104]
    lossless, trained, *_ = found.promises
    assert trained.acceptance > lossless.acceptance + 0.1


def test_truncation_makes_rows_sparse_and_costs_less() -> None:
    pair = load_pair()
    request = Request.from_dict({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "seed": 0})
    rows = record(pair, PROMPTS[:2], request)
    found = diagnose(rows, pair, request, RELAXED.replace(sampling=request.sampling), probe=Probe(steps=1))
    assert 0.9 < found.promises[0].acceptance < 1


def test_nothing_rejected_is_said() -> None:
    pair = load_pair("bundled", "bundled:draft")
    rows = record(pair, PROMPTS[:2], Request(seed=0))
    found = diagnose(replace(rows, draft=rows.target), pair, Request(), RELAXED, draft_cost=0.1, probe=Probe(steps=1))
    assert found.promises[0].acceptance == pytest.approx(1, abs=1e-9)
    assert not math.isnan(found.promises[0].time.value)


def measured(draft: str, problems: int) -> Diagnosis:
    pair, request = load_pair("bundled", draft), Request(seed=0)
    return diagnose(record(pair, PROMPTS[:problems], request), pair, request, RELAXED, draft_cost=0.2)


@pytest.mark.slow
def test_a_draft_of_other_words_is_told_from_one_that_cannot_calculate() -> None:
    # Seeds are fixed. Over 100 problems the removed share varies by about 0.03 (one standard deviation).
    worded, plain = measured("bundled:worded", 60), measured("bundled:draft", 60)
    removed = []
    for found in (worded, plain):
        lossless, trained, *_ = found.promises
        removed.append((trained.acceptance - lossless.acceptance) / (1 - lossless.acceptance))
        assert lossless.tokens_per_step.value == pytest.approx(found.acceptance_length, rel=0.05)
    assert removed[0] > 0.2 > 0.05 > removed[1]
    assert worded.classes[0].name == "words"
    assert plain.classes[0].name == "digits"
    assert any("train-draft" in line for line in advice(worded))
    assert any("A change of the last layer removes nothing" in line for line in advice(plain))


@all_of("settings, said", [
    ({"temperature": 0.0}, "temperature must be above 0"),
    ({"rule": "cactus:delta=1"}, "lossless responses"),
    ({"verification": "block"}, "verified token by token"),
    ({"num_speculative_tokens": 0}, "num_speculative_tokens must be at least 1"),
])  # fmt: skip
def test_what_cannot_be_diagnosed_is_refused(settings, said) -> None:
    with pytest.raises(ValueError, match=said):
        check_request(Request.from_dict(settings))


def test_a_draft_in_which_the_targets_weights_are_is_refused_wherever_it_would_be_trained() -> None:
    whole = tiny_pair()
    assert draft_model(whole) is whole.drafter.model
    early = Pair(whole.target, EarlyExit(1).drafter(whole.target.model), whole.tokenizer)
    whole.drafter.model.lm_head.weight = whole.target.model.lm_head.weight
    itself = Pair(whole.target, ModelDrafter(whole.target.model), whole.tokenizer)
    for pair in (early, whole, itself):
        for use in (draft_model, DraftAdaptation, lambda pair: record(pair, ["Tom has"], Request(seed=0))):
            with pytest.raises(ValueError, match="has weights of its own, but this one's are the target's"):
                use(pair)
    for use in (DraftAdaptation, lambda pair: record(pair, ["Tom has"], Request(seed=0))):
        with pytest.raises(ValueError, match="a model of transformers, but this one is a NgramDrafter"):
            use(load_pair("bundled", "ngram"))


def test_names_are_imported_from_where_type_checkers_see_them() -> None:
    tree = ast.parse(inspect.getsource(training))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert {name: f"cactus_decoding.lab.training.{home}" for name, home in training._NAMES.items()} == seen
    for name, home in seen.items():
        assert getattr(training, name).__module__ == home
    with pytest.raises(AttributeError, match="has no attribute 'frob'"):
        training.frob  # noqa: B018
