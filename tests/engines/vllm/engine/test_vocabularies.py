"""A draft whose vocabulary is nearly the target's: vLLM refuses it, or, if asked to, drafts within common tokens."""

from __future__ import annotations

import pytest
import torch
from engine_run import run_jobs
from second_tokens import OPENING, follow, prompt_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import zoo

pytestmark = pytest.mark.engine

TARGET, RULE, COPIES = str(zoo.path("target")), "cactus:delta=1", 400


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    """The bundled draft with a further token and padding, which it finds likelier than any other."""
    folder = tmp_path_factory.mktemp("draft")
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("draft"))
    model = AutoModelForCausalLM.from_pretrained(zoo.path("draft"), dtype=torch.float32)
    known = len(tokenizer)
    tokenizer.add_tokens(["<further>"])
    model.resize_token_embeddings(known + 8)
    with torch.no_grad():
        prompt = torch.tensor([tokenizer(OPENING).input_ids])
        state = model(prompt, output_hidden_states=True).hidden_states[-1][0, -1]
        model.get_output_embeddings().weight[known:] = 100 * state / state.norm()
        assert model(prompt).logits[0, -1].argmax() >= known
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_stock_vllm_refuses_another_size(draft):
    with pytest.raises(AssertionError, match="Target and draft model should have the same vocabulary size"):
        run_jobs([], model=TARGET, speculative_config={"model": str(draft), "num_speculative_tokens": 3})


def test_a_draft_of_another_size_proposes_common_tokens_under_a_rule(draft):
    sampling = {"temperature": 1.0, "max_tokens": 2, "ignore_eos": True, "extra_args": {"acceptance_rule": RULE}}
    job = {"prompts": [prompt_of(OPENING)], "copies": COPIES, "sampling": sampling}
    speculation = {"model": str(draft), "num_speculative_tokens": 3, "use_heterogeneous_vocab": True}
    (result,) = run_jobs([job], model=TARGET, speculative_config=speculation)
    assert result["counters"]["accepted_tokens"] > COPIES // 4
    assert follow(result["token_ids"], RULE)  # wrongly not with probability 1e-6
