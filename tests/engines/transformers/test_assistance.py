"""What transformers' assisted generation is told: honoured, or refused by name."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.tables import all_of
from support.tiny_architectures import letter_tokenizer, tiny_dflash, tiny_gpt2
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


def drafted_in_one_step(model, **given) -> int:
    """How many tokens are proposed where there is room for any number."""
    metrics = Metrics()
    limits: list[int] = []

    class Asked(Drafter):
        def propose(self, token_ids, limit, to_probs, generator):
            limits.append(limit)
            return Proposal([], None)

    if "assistant_model" not in given and "prompt_lookup_num_tokens" not in given:
        given["drafter"] = Asked()
        speculate(model, max_new_tokens=50, **given)
        return limits[0]
    speculate(model, max_new_tokens=50, metrics=metrics, **given)
    return metrics.drafted if metrics.steps == 1 else metrics.drafted // metrics.steps


# --- the number of proposals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
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
    ],
)
def test_the_number_of_proposals(target, given, expected):
    assert drafted_in_one_step(target, **given) == expected


def test_the_number_may_be_bound_or_stand_in_the_target_s_generation_config(target):
    bound = partial(speculative_generate, num_assistant_tokens=4)
    assert drafted_in_one_step(target, custom_generate=bound) == 4
    model = tiny_llama(0)
    model.generation_config.num_assistant_tokens = 5
    assert drafted_in_one_step(model) == 5
    assert drafted_in_one_step(model, num_assistant_tokens=3) == 3


def test_the_draft_s_own_generation_config_is_read_as_in_transformers(target, draft):
    """It carries the library's defaults in some versions; those are nobody's wish."""
    metrics = Metrics()
    draft.generation_config.num_assistant_tokens = 3
    speculate(target, assistant_model=draft, max_new_tokens=30, metrics=metrics)
    assert metrics.drafted <= 3 * metrics.steps
    defaults = {
        "num_assistant_tokens": 20,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.4,
        "assistant_lookbehind": 10,
        "target_lookbehind": 10,
    }
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


def test_a_threshold_goes_with_a_number(target, draft):
    assert one_step(target, draft, assistant_confidence_threshold=0.001, num_speculative_tokens=4) == 4
    with pytest.raises(ValueError, match="assistant_confidence_threshold and a draft length exclude each other"):
        one_step(target, draft, assistant_confidence_threshold=0.5, num_speculative_tokens="auto")


@pytest.mark.parametrize("sampled", [False, True])
def test_a_threshold_of_zero_never_stops(target, draft, sampled):
    given = {"assistant_confidence_threshold": 0.0, "num_assistant_tokens": 4, "do_sample": sampled}
    assert one_step(target, draft, **given) == 4


def test_a_threshold_proposes_fewer_tokens_and_the_same_answer(target, draft):
    plain = target.generate(PROMPT, do_sample=False, max_new_tokens=40)
    assert torch.equal(
        speculate(target, assistant_model=draft, max_new_tokens=40, assistant_confidence_threshold=0.9), plain
    )
    counts = []
    for threshold in (0.0, 0.9):
        metrics = Metrics()
        given = {"assistant_confidence_threshold": threshold, "do_sample": True, "top_k": 0, "seed": 0}
        speculate(target, assistant_model=draft, max_new_tokens=40, metrics=metrics, **given)
        counts.append(metrics.drafted / metrics.steps)
    assert counts[1] < counts[0]


# --- a draft with other tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [False, True])
def test_both_tokenizers_make_a_draft_with_other_tokens(target, sampled):
    mine, other = letter_tokenizer("abcdefgh"), letter_tokenizer("xhgfedcbayz")
    bound = partial(speculative_generate, tokenizer=mine, assistant_tokenizer=other)
    metrics = Metrics()
    given = {"assistant_model": tiny_llama(1, 11), "max_new_tokens": 12, "metrics": metrics}
    ours = speculate(target, custom_generate=bound, do_sample=sampled, seed=0 if sampled else None, **given)
    assert metrics.drafted > 0
    if not sampled:
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


# --- refusals --------------------------------------------------------------------------------------------------------

MODEL, WIDE = {"assistant_model": tiny_llama(1)}, {"assistant_model": tiny_llama(1, 11)}
LOOKUP = {"prompt_lookup_num_tokens": 3}
LETTERS = letter_tokenizer("abcdefgh")
REFUSED = {
    "two numbers": (MODEL | {"num_assistant_tokens": 3, "num_speculative_tokens": 3}, "exclude each other"),
    "a number and a lookup": (LOOKUP | {"num_assistant_tokens": 3}, "exclude each other"),
    "a schedule and a length": (
        MODEL | {"num_assistant_tokens_schedule": "heuristic", "num_speculative_tokens": "auto"},
        "num_speculative_tokens and num_assistant_tokens_schedule exclude each other",
    ),
    "confidence of a drafter": (
        {"drafter": NgramDrafter(), "assistant_confidence_threshold": 0.5},
        "goes with an assistant_model",
    ),
    "confidence of an exit": (
        {"assistant_early_exit": 1, "assistant_confidence_threshold": 0.5},
        "goes with an assistant_model",
    ),
    "block verification": (
        MODEL | {"assistant_confidence_threshold": 0.5, "verification": "block", "rule": "clamped:width=1.0"},
        "block verification of a relaxed rule needs a draft model and a fixed number",
    ),
    "a lookup and a model": (MODEL | LOOKUP, "prompt_lookup_num_tokens and assistant_model exclude each other"),
    "a lookup and a drafter": ({"drafter": NgramDrafter()} | LOOKUP, "exclude each other"),
    "a lookup and an exit": (LOOKUP | {"assistant_early_exit": 1}, "exclude each other"),
    "one tokenizer": (
        WIDE | {"custom_generate": partial(speculative_generate, assistant_tokenizer=LETTERS)},
        "assistant_tokenizer goes with assistant_model and tokenizer",
    ),
    "tokenizers without a model": (
        {
            "drafter": NgramDrafter(),
            "custom_generate": partial(speculative_generate, assistant_tokenizer=LETTERS, tokenizer=LETTERS),
        },
        "assistant_tokenizer goes with assistant_model and tokenizer",
    ),
    "tokenizers that generate keeps": (
        WIDE | {"tokenizer": LETTERS, "assistant_tokenizer": LETTERS},
        r"bind both tokenizers, which `generate` keeps from a callable",
    ),
}


@since("5.19.0")
def test_confidence_does_not_go_with_blocks(target):
    given = {"assistant_model": tiny_dflash(0), "speculation_type": "dflash", "assistant_confidence_threshold": 0.5}
    with pytest.raises(ValueError, match="does not go with a MuseGlimmerAssistantModel"):
        speculate(target, max_new_tokens=5, **given)


@all_of("case", REFUSED)
def test_refusals(target, case):
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        speculate(target, max_new_tokens=5, **given)


@pytest.mark.parametrize("given", [{"drafter": tiny_gpt2(0)}, {"assistant_model": ModelDrafter(tiny_gpt2(0))}])
def test_a_wrong_draft_is_named_and_not_printed(target, given):
    with pytest.raises(TypeError) as raised:
        speculate(target, max_new_tokens=5, **given)
    assert len(str(raised.value)) < 250
    assert "\n" not in str(raised.value)


def test_a_pair_with_a_model_for_a_drafter_is_named_and_not_printed(target):
    with pytest.raises(TypeError, match=r"drafter must be a subclass of .*, but is a LlamaForCausalLM$"):
        generate(Pair(CachedModel(target), tiny_llama(1), LETTERS), "abc")


def test_a_lookup_of_the_target_s_generation_config_gives_way(target):
    model, metrics = tiny_llama(0), Metrics()
    model.generation_config.prompt_lookup_num_tokens = 3
    speculate(model, assistant_model=target, max_new_tokens=20, metrics=metrics)
    assert metrics.accepted == metrics.drafted > 0
