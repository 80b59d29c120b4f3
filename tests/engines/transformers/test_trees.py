"""`speculative_generate` with trees inside `generate`: stock's greedy answers, the target's law, what is refused."""

from __future__ import annotations

import pytest
import torch
from support.tiny_architectures import tiny_gpt2, tiny_qwen2
from support.tiny_models import tiny_llama
from support.versions import since
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from cactus_decoding import Metrics, NgramDrafter, speculative_generate
from cactus_decoding.engines.transformers.generate import generate_speculatively

TREE = "static=3.2.1"
PROMPT = torch.tensor([[1, 2, 3]])
LONG_PROMPT = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 3]])


def speculate(model, prompt=PROMPT, **given):
    usual = {"custom_generate": speculative_generate, "tree": TREE}
    return model.generate(prompt, **usual | given)


@pytest.mark.parametrize("verification", ["token", "joint", "recursive", "traversal"])
@pytest.mark.parametrize("architecture", [tiny_llama, tiny_gpt2, tiny_qwen2])
def test_greedy_equals_stock_generate(architecture, verification: str) -> None:
    """To the end of the context window; with padding on the left, too."""
    model, other = architecture(0), architecture(1)
    plain = model.generate(LONG_PROMPT, do_sample=False, max_length=64)
    arguments = {"do_sample": False, "assistant_model": other, "verification": verification}
    assert torch.equal(speculate(model, LONG_PROMPT, max_length=64, **arguments), plain)
    padded, mask = torch.tensor([[5, 5, 1, 2, 3]]), torch.tensor([[0, 0, 1, 1, 1]])
    ours = speculate(model, padded, attention_mask=mask, max_new_tokens=20, **arguments)
    assert torch.equal(ours[:, 2:], speculate(model, max_new_tokens=20, **arguments))


@pytest.mark.parametrize("shape", [TREE, "best_first,nodes=9,lookup=3", "adaptive"])
@pytest.mark.parametrize("source", ["drafter", "prompt_lookup_num_tokens", "assistant_model"])
def test_every_shape_and_source_of_trees_is_greedy(target, draft, shape: str, source: str) -> None:
    given = {"drafter": NgramDrafter(), "prompt_lookup_num_tokens": 4, "assistant_model": draft}[source]
    plain = target.generate(LONG_PROMPT, do_sample=False, max_length=64)
    ours = speculate(target, LONG_PROMPT, do_sample=False, max_length=64, tree=shape, **{source: given})
    assert torch.equal(ours, plain)


class NotTheSecondLast(LogitsProcessor):
    """Forbids the token before the last: wrong history, wrong token. It also writes into its argument."""

    def __call__(self, input_ids, scores):
        scores[:, input_ids[0, -2]] = -torch.inf
        return scores


@pytest.mark.parametrize(
    "arguments",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 9, "eos_token_id": [4, 6]},
        {"prefix_allowed_tokens_fn": lambda batch, ids: [int(ids[-1] + 1) % 8, int(ids[-2] + 1) % 8]},
        {"logits_processor": LogitsProcessorList([NotTheSecondLast()])},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_processors_see_each_node_s_own_path(target, draft, arguments) -> None:
    arguments = {"do_sample": False, "max_new_tokens": 30, "pad_token_id": 0} | arguments
    plain = target.generate(PROMPT, **arguments)
    for assistant in (draft, target):
        metrics = Metrics()
        assert torch.equal(speculate(target, assistant_model=assistant, metrics=metrics, **arguments), plain)
    assert metrics.recovered == 0, "the draft's rows were processed otherwise than the target's"


def test_stop_strings_end_a_response_within_a_path() -> None:
    from cactus_decoding import load_pair

    pair = load_pair()
    inputs = pair.tokenizer("Question:", return_tensors="pt", return_token_type_ids=False)
    tokens = generate_speculatively(
        pair.target.model, **inputs, assistant_model=pair.drafter.model, tokenizer=pair.tokenizer, stop_strings=["."],
        max_new_tokens=100, do_sample=True, seed=0, tree="static=2.2.2",
    )  # fmt: skip
    text = pair.tokenizer.decode(tokens[0, inputs.input_ids.shape[1] :])
    assert text.count(".") == 1
    assert text.endswith(".")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"drafter": PromptLookupCandidateGenerator(max_length=64)},
            "a CandidateGeneratorDrafter proposes chains only, but tree is ",
        ),
        pytest.param(
            {"assistant_early_exit": 1}, "proposes chains only, but tree is ", marks=since("5.19.0"), id="an early exit"
        ),
        ({"assistant_model": tiny_llama(1), "verification": "block"}, "use verification='joint', which is the same"),
        ({"assistant_model": tiny_llama(1), "num_assistant_tokens": 4}, "exclude each other"),
        (
            {"assistant_model": tiny_llama(1), "assistant_confidence_threshold": 0.5},
            "assistant_confidence_threshold and a draft length exclude each other",
        ),
        ({"assistant_model": tiny_llama(1), "tree": "static=4.x"}, "static must be numbers"),
        (
            {"assistant_model": tiny_llama(1), "tree": None, "num_speculative_tokens": 4, "verification": "joint"},
            "verification='joint' is for trees",
        ),
    ],
)
def test_what_cannot_propose_trees_is_refused_before_any_work(target, given, message: str) -> None:
    def fail(*_):
        pytest.fail("the target ran before the error was found")

    handle = target.register_forward_pre_hook(fail)
    try:
        with pytest.raises(ValueError, match=message):
            speculate(target, max_new_tokens=5, do_sample=False, **given)
    finally:
        handle.remove()
