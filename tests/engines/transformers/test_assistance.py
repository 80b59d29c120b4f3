"""What transformers' assisted generation is told: honoured, or refused by name."""

from functools import partial

import pytest
import torch
from support.tables import all_of
from support.tiny_architectures import letter_tokenizer
from support.tiny_models import tiny_llama
from support.versions import since
from transformers import GenerationConfig
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from cactus_decoding import Drafter, Metrics, ModelDrafter, NgramDrafter, Pair, Proposal, generate, speculative_generate
from cactus_decoding.core.models import tokenizers as vocabularies
from cactus_decoding.engines.transformers import assistance
from cactus_decoding.engines.transformers.assistance import Assistance, ScheduledLength
from cactus_decoding.engines.transformers.cached_model import CachedModel

PROMPT = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 3]])


@pytest.fixture
def draft():
    """One whose settings a test may change."""
    return tiny_llama(1)


def speculate(model, **given):
    return model.generate(PROMPT, **{"custom_generate": speculative_generate, "do_sample": False} | given)


# --- the number of proposals -----------------------------------------------------------------------------------------


class Asked(Drafter):
    """Proposes nothing, and keeps how many tokens it was asked for at first."""

    limit = None

    def propose(self, token_ids, limit, to_probs, generator):
        self.limit = self.limit or limit
        return Proposal([], None)


def asked_for(model, **given) -> int:
    """How many tokens are proposed where there is room for any number."""
    drafter = Asked()
    speculate(model, max_new_tokens=50, drafter=drafter, **given)
    return drafter.limit


@all_of(
    "given, expected",
    [
        ({}, 6),
        ({"num_assistant_tokens": 3}, 3),
        ({"num_assistant_tokens": 20}, 20),  # said in the call, it is no default
        ({"generation_config": GenerationConfig(num_assistant_tokens=3)}, 3),
        ({"generation_config": GenerationConfig(num_assistant_tokens=20)}, 6),  # what `generate` puts into all of them
        ({"num_speculative_tokens": 4}, 4),
        ({"num_assistant_tokens_schedule": "constant"}, 6),
        ({"num_assistant_tokens_schedule": "heuristic_transient"}, 20),
        ({"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "heuristic"}, 5),
        ({"custom_generate": partial(speculative_generate, num_assistant_tokens=4)}, 4),
    ],
)
def test_the_number_of_proposals(target, given, expected):
    assert asked_for(target, **given) == expected


def test_the_number_may_stand_in_the_target_s_generation_config():
    model = tiny_llama(0)
    model.generation_config.num_assistant_tokens = 5
    assert (asked_for(model), asked_for(model, num_assistant_tokens=3)) == (5, 3)


def test_the_draft_s_own_generation_config_is_read_as_in_transformers(target, draft):
    """It carries the library's defaults in some versions; those are nobody's wish."""
    metrics = Metrics()
    draft.generation_config.num_assistant_tokens = 3
    speculate(target, assistant_model=draft, max_new_tokens=30, metrics=metrics)
    assert metrics.drafted <= 3 * metrics.steps
    defaults = {"num_assistant_tokens": 20, "num_assistant_tokens_schedule": "constant", "target_lookbehind": 10}
    defaults |= {"assistant_confidence_threshold": 0.4, "assistant_lookbehind": 10}
    draft.generation_config = GenerationConfig(**defaults)
    plain, filled = Metrics(), Metrics()
    speculate(target, assistant_model=tiny_llama(1), max_new_tokens=30, metrics=plain)
    speculate(target, assistant_model=draft, max_new_tokens=30, metrics=filled)
    assert (plain.steps, plain.drafted) == (filled.steps, filled.drafted)


def test_the_heuristic_takes_the_numbers_that_transformers_takes(target):
    for accepted, drafted in [(6, 6), (0, 8), (3, 7), (5, 8)]:
        ours = ScheduledLength(8, 100)
        theirs = AssistedCandidateGenerator(PROMPT, target, GenerationConfig(max_length=99, min_length=0), {})
        theirs.assistant_generation_config.num_assistant_tokens_schedule = "heuristic"
        theirs.assistant_generation_config.assistant_confidence_threshold = 0.0
        theirs.num_assistant_tokens = 8
        ours.end_draft(drafted)
        ours.end_step(accepted)
        theirs.update_candidate_strategy(PROMPT, torch.zeros(1, drafted + 1, 8), accepted)
        assert ours.begin_step() == theirs.num_assistant_tokens
    assert ScheduledLength(8, 3).begin_step() == 3
    ours = ScheduledLength(1, 100)
    ours.end_draft(1)
    ours.end_step(0)
    assert ours.begin_step() == 1


def test_a_step_without_proposals_says_nothing_of_their_number():
    ours = ScheduledLength(4, 100)
    for drafted, kept, following in ((0, 0, 4), (4, 4, 6), (0, 0, 6), (6, 5, 5)):
        ours.end_draft(drafted)
        ours.end_step(kept)
        assert ours.begin_step() == following


@pytest.mark.parametrize("schedule", ["heuristic", "heuristic_transient"])
def test_only_the_lasting_heuristic_lasts(target, schedule):
    """As in transformers, the next response begins with the number that the draft's generation config then holds."""
    same = tiny_llama(0)
    plain = target.generate(PROMPT, do_sample=False, max_new_tokens=40)
    given = {"assistant_model": same, "num_assistant_tokens_schedule": schedule, "max_new_tokens": 40}
    metrics = Metrics()
    assert torch.equal(speculate(target, num_assistant_tokens=2, metrics=metrics, **given), plain)
    assert metrics.accepted == metrics.drafted
    assert metrics.steps == 6, "2, 4, 6, 8, 10 and the rest"
    lasting = same.generation_config.num_assistant_tokens
    assert lasting == (14 if schedule == "heuristic" else None)
    assert torch.equal(speculate(target, **given), plain)


@since("5.19.0")
def test_prompt_lookup(target):
    plain = target.generate(PROMPT, do_sample=False, max_new_tokens=30, prompt_lookup_num_tokens=3)
    for given in ({"prompt_lookup_num_tokens": 3}, {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 4}):
        assert torch.equal(speculate(target, max_new_tokens=30, **given), plain)
        drafter = Assistance(target, GenerationConfig(), given).choose_drafter()
        assert drafter == NgramDrafter(max_ngram_size=given.get("max_matching_ngram_size", 2))


def test_a_lookup_of_the_target_s_generation_config_gives_way(target):
    model, metrics = tiny_llama(0), Metrics()
    model.generation_config.prompt_lookup_num_tokens = 3
    speculate(model, assistant_model=target, max_new_tokens=20, metrics=metrics)
    assert metrics.accepted == metrics.drafted > 0


# --- the draft's confidence ------------------------------------------------------------------------------------------


def one_step(target, draft, **given) -> int:
    metrics = Metrics()
    at_once = {"stopping_criteria": [lambda ids, scores: torch.tensor([True])]}
    speculate(target, assistant_model=draft, max_new_tokens=48, metrics=metrics, **at_once, **given)
    assert metrics.steps == 1
    return metrics.drafted


@since("5.19.0")
@pytest.mark.parametrize("schedule", ["constant", "heuristic_transient"])
def test_a_confidence_threshold_stops_where_that_of_transformers_stops(target, draft, schedule):
    counts = set()
    for threshold in (0.05, 0.3, 0.5, 0.7, 0.99):
        settings = {"assistant_confidence_threshold": threshold, "num_assistant_tokens": 10}
        settings["num_assistant_tokens_schedule"] = schedule
        ours = one_step(target, draft, **settings)
        draft.generation_config.update(**settings)
        config = GenerationConfig(max_length=60, min_length=0, do_sample=False, pad_token_id=0)
        theirs = AssistedCandidateGenerator(PROMPT, draft, config, {"attention_mask": torch.ones_like(PROMPT)})
        assert ours == theirs.get_candidates(PROMPT)[0].shape[1] - PROMPT.shape[1]
        assert one_step(target, draft) == ours, "the draft's own generation config says the same"
        draft.generation_config = GenerationConfig()
        counts.add(ours)
    assert len(counts) > 2


def test_a_threshold_of_zero_never_stops_and_goes_with_a_number(target, draft):
    for sampled in (False, True):
        given = {"assistant_confidence_threshold": 0.0, "num_assistant_tokens": 4, "do_sample": sampled}
        assert one_step(target, draft, **given) == 4
    assert one_step(target, draft, assistant_confidence_threshold=0.001, num_speculative_tokens=4) == 4
    given = {"assistant_confidence_threshold": 0.99, "num_assistant_tokens": 10, "do_sample": True, "seed": 0}
    assert 0 < one_step(target, draft, **given) < 10, "also where tokens are drawn"


# --- a draft with other tokens ---------------------------------------------------------------------------------------


def test_both_tokenizers_make_a_draft_with_other_tokens(target):
    mine, other = letter_tokenizer("abcdefgh"), letter_tokenizer("xhgfedcbayz")
    bound = partial(speculative_generate, tokenizer=mine, assistant_tokenizer=other)
    metrics = Metrics()
    ours = speculate(
        target, custom_generate=bound, assistant_model=tiny_llama(1, 11), max_new_tokens=12, metrics=metrics
    )
    assert metrics.drafted > 0
    assert torch.equal(ours, target.generate(PROMPT, do_sample=False, max_new_tokens=12))


def test_both_tokenizers_show_that_a_draft_has_nearly_the_target_s_tokens(target, monkeypatch):
    mine, other = letter_tokenizer("abcdefgh"), letter_tokenizer("abcdefgx")
    monkeypatch.setattr(vocabularies, "MAX_DIFFERING", 0.2)  # one of eight is more than one of twenty
    bound = partial(speculative_generate, tokenizer=mine, assistant_tokenizer=other)
    drafted = []

    class Watched(ModelDrafter):
        def propose(self, *given):
            proposal = super().propose(*given)
            drafted.extend(proposal.token_ids)
            return proposal

    monkeypatch.setattr(assistance, "ModelDrafter", Watched)
    given = {"assistant_model": tiny_llama(1), "max_new_tokens": 40}
    ours = speculate(target, custom_generate=bound, do_sample=False, **given)
    assert torch.equal(ours, target.generate(PROMPT, do_sample=False, max_new_tokens=40))
    assert drafted
    assert 7 not in drafted


def test_a_pair_with_a_model_for_a_drafter_is_named_and_not_printed(target):
    with pytest.raises(TypeError, match=r"drafter must be a subclass of .*, but is a LlamaForCausalLM$"):
        generate(Pair(CachedModel(target), tiny_llama(1), letter_tokenizer("abcdefgh")), "abc")
