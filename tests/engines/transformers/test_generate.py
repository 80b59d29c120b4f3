"""`speculative_generate` inside `generate`: what stock `generate` promises. Options one by one are in test_options."""

from functools import partial

import pytest
import torch
from support.chi_square import rejects
from support.tables import all_of
from support.tiny_architectures import tiny_gemma3, tiny_gpt2, tiny_mistral, tiny_qwen2
from support.tiny_models import tiny_llama
from support.versions import since
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from cactus_decoding import Metrics, NgramDrafter, SamplingParams, SuffixDrafter, load_pair, speculative_generate
from cactus_decoding.engines.transformers.compatibility import named_arguments_of_generate
from cactus_decoding.engines.transformers.generate import generate_speculatively

PROMPT = torch.tensor([[1, 2, 3]])
LONG_PROMPT = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 3]])
TREE = "static=3.2.1"


def speculate(model, prompt=PROMPT, **given):
    return model.generate(prompt, **{"custom_generate": speculative_generate} | given)


# --- greedy equality -------------------------------------------------------------------------------------------------

ARCHITECTURES = [tiny_llama, tiny_gpt2, tiny_mistral, tiny_gemma3, tiny_qwen2]
DRAFTERS = {
    "model": lambda model, draft: {"assistant_model": draft},
    "itself": lambda model, draft: {"assistant_model": model},
    "ngram": lambda model, draft: {"drafter": NgramDrafter()},
    "suffix": lambda model, draft: {"drafter": SuffixDrafter()},
    "lookup": lambda model, draft: {"prompt_lookup_num_tokens": 4},
    "candidate generator": lambda model, draft: {
        "drafter": PromptLookupCandidateGenerator(max_length=64, eos_token_id=torch.tensor([-1]))  # 5.0 wants an end
    },
    "early exit": lambda model, draft: {"assistant_early_exit": 1},
    "another architecture": lambda model, draft: {"assistant_model": tiny_gpt2(3)},
    "a shorter window": lambda model, draft: {"assistant_model": tiny_gpt2(5, positions=16)},
    "none": lambda model, draft: {"num_speculative_tokens": 0},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_equals_stock_generate(architecture):
    """To the end of the context window, past a window that slides over 8 of the prompt's 12 tokens."""
    model, other = architecture(0), architecture(1)
    plain = model.generate(LONG_PROMPT, do_sample=False, max_length=64)
    exits = architecture is not tiny_gpt2  # which has no list of layers
    for kind in DRAFTERS if exits else DRAFTERS.keys() - {"early exit"}:
        for rule in ("lossless", "cactus:delta=1.0"):
            arguments = DRAFTERS[kind](model, other)
            ours = speculate(model, LONG_PROMPT, do_sample=False, max_length=64, rule=rule, **arguments)
            assert torch.equal(ours, plain), (kind, rule)


@pytest.mark.parametrize("architecture", [tiny_llama, tiny_gpt2, tiny_qwen2])
def test_greedy_trees_equal_stock_generate(architecture):
    """To the end of the context window; with padding on the left, too."""
    model, other = architecture(0), architecture(1)
    plain = model.generate(LONG_PROMPT, do_sample=False, max_length=64)
    padded, mask = torch.tensor([[5, 5, 1, 2, 3]]), torch.tensor([[0, 0, 1, 1, 1]])
    for verification in ("token", "joint"):
        given = {"do_sample": False, "assistant_model": other, "tree": TREE, "verification": verification}
        assert torch.equal(speculate(model, LONG_PROMPT, max_length=64, **given), plain), verification
        ours = speculate(model, padded, attention_mask=mask, max_new_tokens=20, **given)
        assert torch.equal(ours[:, 2:], speculate(model, max_new_tokens=20, **given)), verification


def test_every_shape_and_source_of_trees_is_greedy(target, draft):
    plain = target.generate(LONG_PROMPT, do_sample=False, max_length=64)
    for shape in (TREE, "best_first,nodes=9,lookup=3"):
        looked_up = {"drafter": NgramDrafter()}, {"prompt_lookup_num_tokens": 4}
        for source in (*looked_up, {"assistant_model": draft}, {"assistant_early_exit": 1}):
            ours = speculate(target, LONG_PROMPT, do_sample=False, max_length=64, tree=shape, **source)
            assert torch.equal(ours, plain), (shape, source)


# --- sampling --------------------------------------------------------------------------------------------------------


def distribution_is_emitted(model, arguments, sampling, processors=(), draws=500) -> bool:
    """Compare the first two new tokens with their distribution by the target's logits; false alarm as in `rejects`."""

    def row(ids):
        with torch.no_grad():
            scores = model(ids).logits[:, -1].float()
        for processor in processors:
            scores = processor(ids, scores)
        return sampling(scores[0])

    law = row(PROMPT).unsqueeze(1) * torch.stack([row(torch.cat([PROMPT, torch.tensor([[t]])], 1)) for t in range(8)])
    torch.manual_seed(0)
    seen = []
    for _ in range(draws):
        first, second = speculate(model, do_sample=True, max_new_tokens=4, **arguments)[0, 3:5].tolist()
        seen.append(8 * first + second)
    return not rejects(torch.tensor(seen), law.flatten())


@pytest.mark.slow
def test_lossless_emits_the_target_s_distribution_of_two_tokens(target, draft):
    repetition = logits_process.RepetitionPenaltyLogitsProcessor(2.0)
    for arguments, sampling, processors in (
        ({"top_k": 0}, SamplingParams(), []),
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.9}, SamplingParams(0.7, 5, 0.9), []),
        ({"top_k": 0, "repetition_penalty": 2.0, "min_p": 0.05}, SamplingParams(min_p=0.05), [repetition]),
    ):
        given = {"assistant_model": draft} | arguments
        assert distribution_is_emitted(target, given, sampling, processors), arguments
    assert not distribution_is_emitted(target, given, SamplingParams()), "the wrong variant: without the penalty"


class NotTheSecondLast(LogitsProcessor):
    """Forbids the token before the last: wrong history, wrong token. It also writes into its argument."""

    def __call__(self, input_ids, scores):
        assert input_ids.shape[0] == scores.shape[0] == 1
        scores[:, input_ids[0, -2]] = -torch.inf
        return scores


@pytest.mark.parametrize("tree", [None, TREE])
@all_of(
    "arguments",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 9, "eos_token_id": [4, 6]},
        {"prefix_allowed_tokens_fn": lambda batch, ids: [int(ids[-1] + 1) % 8, int(ids[-2] + 1) % 8]},
        {"logits_processor": LogitsProcessorList([NotTheSecondLast()])},
    ],
)
def test_processors_see_each_row_s_own_prefix(target, draft, tree, arguments):
    arguments = {"do_sample": False, "max_new_tokens": 30, "pad_token_id": 0} | arguments
    plain = target.generate(PROMPT, **arguments)
    for assistant in (draft, target):
        metrics = Metrics()
        ours = speculate(target, assistant_model=assistant, tree=tree, metrics=metrics, **arguments)
        assert torch.equal(ours, plain)
    assert metrics.recovered == 0 < metrics.accepted, "the draft's rows were processed otherwise than the target's"


@all_of(
    "randomness",
    [lambda seed: {"generator": torch.Generator().manual_seed(seed)}, lambda seed: torch.manual_seed(seed) and {}],
)
def test_random_numbers_may_come_from_elsewhere_than_a_seed(target, draft, randomness):
    first, again, other = (
        speculate(target, assistant_model=draft, do_sample=True, max_new_tokens=30, **randomness(seed))[0].tolist()
        for seed in (1, 1, 2)
    )
    assert first == again != other


@all_of("broken, do_sample", [(broken, sampled) for broken in ("target", "draft") for sampled in (True, False)])
def test_logits_that_are_no_numbers_are_an_error(broken, do_sample):
    models = {"target": tiny_llama(0), "draft": tiny_llama(1)}
    with torch.no_grad():
        models[broken].lm_head.weight[3, 0] = torch.nan
    with pytest.raises(ValueError, match=f"the {broken}'s logits after 3 tokens give no probabilities"):
        speculate(models["target"], assistant_model=models["draft"], do_sample=do_sample, max_new_tokens=5)


# --- what is called, and what comes back -----------------------------------------------------------------------------


def test_criteria_are_asked_once_after_each_token_in_order(target, draft):
    def watching(seen):
        return [lambda ids, scores, **_: seen.append(ids[0].tolist()) or torch.tensor([ids.shape[1] >= 11])]

    theirs = []
    arguments = {"do_sample": False, "max_new_tokens": 20}
    target.generate(PROMPT, stopping_criteria=watching(theirs), **arguments)
    assert len(theirs) == 8
    for assistant in (target, draft):
        ours = []
        speculate(target, assistant_model=assistant, stopping_criteria=watching(ours), **arguments)
        assert ours == theirs


class Tape:
    def __init__(self) -> None:
        self.pieces, self.ended = [], 0

    def put(self, value):
        self.pieces.append(value)

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("bound", [False, True])
def test_a_streamer_gets_what_it_would_get_in_stock_generate(target, draft, bound):
    ours, theirs = Tape(), Tape()
    arguments = {"do_sample": False, "max_new_tokens": 12}
    target.generate(PROMPT, streamer=theirs, **arguments)
    if bound:  # the streamer given to `generate` gets the prompt, the one that is bound gets the response
        assert torch.equal(theirs.pieces.pop(0), PROMPT)
        custom = partial(speculative_generate, assistant_model=draft, streamer=ours)
        target.generate(PROMPT, custom_generate=custom, **arguments)
    else:
        speculate(target, assistant_model=draft, streamer=ours, **arguments)
    assert ours.ended == theirs.ended == 1
    assert [piece.tolist() for piece in ours.pieces] == [piece.tolist() for piece in theirs.pieces]


def test_metrics_are_added_to_the_caller_s(target, draft):
    metrics = Metrics(steps=100)
    response = speculate(target, assistant_model=draft, do_sample=True, max_new_tokens=15, seed=0, metrics=metrics)
    assert metrics.generated == response.shape[1] - 3 == 15
    assert metrics.steps == 100 + metrics.recovered + metrics.bonus
    assert metrics.seconds > 0


def test_what_is_bound_goes_before_what_generate_was_given(target, draft):
    metrics = Metrics()
    bound = partial(speculative_generate, assistant_model=target, metrics=metrics)
    target.generate(PROMPT, custom_generate=bound, assistant_model=draft, max_new_tokens=20)
    assert metrics.accepted == metrics.drafted > 0


def test_without_generate_nothing_is_found(target, draft):
    assert named_arguments_of_generate(target) == {}
    found = []

    def custom(model, input_ids, **kwargs):
        found.extend([named_arguments_of_generate(model), named_arguments_of_generate(draft)])
        return input_ids

    target.generate(PROMPT, custom_generate=custom, assistant_model=draft, max_new_tokens=5)
    assert found == [{"max_new_tokens": 5, "assistant_model": draft, "streamer": None, "synced_gpus": None}, {}]


def test_it_may_be_called_directly(target, draft):
    plain = target.generate(PROMPT, do_sample=False, max_new_tokens=20)
    settings = {"assistant_model": draft, "do_sample": False, "max_new_tokens": 20}
    assert torch.equal(speculative_generate(target, PROMPT, **settings), plain)
    assert torch.equal(speculative_generate(target, input_ids=PROMPT, **settings), plain)
    mask = {"attention_mask": torch.ones_like(PROMPT)}
    assert torch.equal(speculative_generate(target, PROMPT, **mask, **settings), plain)
    given = {"rule": "cactus:delta=1.0", "do_sample": True, "seed": 3, "max_new_tokens": 20, "assistant_model": draft}
    assert torch.equal(speculative_generate(target, PROMPT, **given), speculate(target, **given))


# --- the bundled pair ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    return load_pair()


def test_stop_strings_end_a_response_within_a_path(pair):
    inputs = pair.tokenizer("Question:", return_tensors="pt", return_token_type_ids=False)
    given = {"assistant_model": pair.drafter.model, "tokenizer": pair.tokenizer, "stop_strings": ["."]}
    given |= {"max_new_tokens": 100, "do_sample": True, "seed": 0, "tree": "static=2.2.2"}
    tokens = generate_speculatively(pair.target.model, **inputs, **given)
    text = pair.tokenizer.decode(tokens[0, inputs.input_ids.shape[1] :])
    assert (text.count("."), text[-1]) == (1, ".")


def answer(pair, tokenizer=None, **settings):
    prompt = "Question: Tom has 4 pens. He buys 2 more pens. How many pens does he have now?\nAnswer:"
    inputs = pair.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    ours = partial(speculative_generate, tokenizer=tokenizer)  # `generate` keeps a tokenizer to itself
    given = {"do_sample": True, "top_k": 0, "max_new_tokens": 60, "seed": 3, "assistant_model": pair.drafter.model}
    output = pair.target.model.generate(**inputs, custom_generate=ours, **(given | settings))
    return output[0, inputs.input_ids.shape[1] :].tolist()


def test_marks_by_token_ids_need_no_tokenizer_and_patterns_do(pair):
    ids = [pair.tokenizer(mark, add_special_tokens=False).input_ids for mark in ("\n", " =")]
    metrics = Metrics()
    given = answer(pair, rule="cactus:delta=1", metrics=metrics, relax_within=ids)
    assert given == answer(pair, tokenizer=pair.tokenizer, rule="cactus:delta=1", relax_within=["\n", " ="])
    assert metrics.protected > 0
    with pytest.raises(TypeError, match="tokenizer"):
        answer(pair, protect="digits")
    with pytest.raises(ValueError, match="none of the"):
        answer(pair, protect="zebra", tokenizer=pair.tokenizer)


# --- weights spread over processes, where `generate` sets ``synced_gpus``: the loop cannot keep step there ------------


def spread(**given):
    """Answer with a model that is marked as `fully_shard` of transformers marks it."""
    model = tiny_llama(0)
    model._is_fsdp_managed_module = True
    return speculate(model, drafter=NgramDrafter(), max_new_tokens=5, **given)


@pytest.fixture
def two_processes():
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    distributed.destroy_process_group()


def test_a_model_that_is_spread_over_processes_is_refused_unless_told_that_they_need_no_step(two_processes):
    with pytest.raises(ValueError, match=r"synced_gpus, which `generate` sets .*FSDP, ZeRO-3"):
        spread()
    assert spread(synced_gpus=False).shape == (1, 8)


@since("5.19.0")  # earlier ones fail in `generate` itself where there is one process
def test_other_models_and_single_processes_are_not_refused(two_processes):
    assert speculate(tiny_llama(0), drafter=NgramDrafter(), max_new_tokens=5).shape == (1, 8)
    distributed.destroy_process_group()
    assert spread().shape == (1, 8)
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
