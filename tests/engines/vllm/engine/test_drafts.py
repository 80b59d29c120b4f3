"""Drafts of other kinds on a real engine: an EAGLE-3 head in speculators' format, and one of nearly the same tokens.

Each chi-square test rejects a right engine with probability 1e-6, of which there are as many as rules; what a request
emits also refutes the laws of the other rules. vLLM's seed is fixed.
"""

import pytest
import torch
from engine_run import run_jobs
from second_tokens import OPENING, follow, prompt_of, rows_after
from support.eagle_heads import write_head
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import zoo

pytestmark = pytest.mark.engine

RULES = (None, "lossless", "cactus:delta=1", "clamped:width=1")
TARGET = str(zoo.path("target"))


def sampled(rule: str | None) -> dict:
    asked = None if rule is None else {"acceptance_rule": rule}
    return {"temperature": 1.0, "max_tokens": 2, "ignore_eos": True, "extra_args": asked}


def test_requests_with_a_head_follow_the_law_of_their_rule(tmp_path) -> None:
    proposes = int(rows_after(OPENING)[1].argsort(descending=True)[1])
    head = write_head(tmp_path / "eagle3", AutoConfig.from_pretrained(TARGET), TARGET, proposes, 3)
    sampling = [sampled(rule) for _ in range(800) for rule in RULES]
    speculation = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    jobs = [{"prompts": [prompt_of(OPENING)], "copies": len(sampling), "sampling": sampling}]
    (result,) = run_jobs(jobs, speculative_config=speculation)
    for kind, rule in enumerate(RULES):
        for judge in RULES[1:]:
            own = follow(result["token_ids"][kind :: len(RULES)], judge, proposed=proposes)
            assert own == (judge == (rule or "lossless")), (rule, judge)


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
    return {"model": str(folder), "num_speculative_tokens": 3}


def test_stock_vllm_refuses_a_draft_of_another_size(draft) -> None:
    with pytest.raises(AssertionError, match="Target and draft model should have the same vocabulary size"):
        run_jobs([], speculative_config=draft)


def test_a_draft_of_another_size_proposes_common_tokens_if_asked_to(draft) -> None:
    job = {"prompts": [prompt_of(OPENING)], "copies": 400, "sampling": sampled("cactus:delta=1")}
    (result,) = run_jobs([job], speculative_config=draft | {"use_heterogeneous_vocab": True})
    assert result["counters"]["accepted_tokens"] > 100
    assert follow(result["token_ids"], "cactus:delta=1")
    assert not follow(result["token_ids"], "lossless")
