"""A draft whose vocabulary is nearly the target's: vLLM refuses it, or, if asked to, drafts within common tokens."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from engine_run import run_jobs
from support.chi_square import rejects
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import audit, zoo

pytestmark = pytest.mark.engine

TARGET, RULE, COPIES = str(zoo.path("target")), "cactus:delta=1", 400
OPENING = "Question: Ben reads 12 pages a day for 5 days. How many pages does he read?\nAnswer: To begin"


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


def second_token_law(prompt, first):
    """Return the exact law of the second token: the target's, relaxed towards the draft's choice of common tokens."""
    rows = []
    for role in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(zoo.path(role), dtype=torch.float32)
        with torch.no_grad():
            rows.append(model(torch.tensor([[*prompt, first]])).logits[0, -1])
    target, drafted = rows[0].double().softmax(-1), rows[1].argmax()
    probs = audit(RULE, target.unsqueeze(0), draft_token_ids=drafted.unsqueeze(0)).output_probs[0]
    return probs / probs.sum()


def test_stock_vllm_refuses_another_size(draft):
    with pytest.raises(AssertionError, match="Target and draft model should have the same vocabulary size"):
        run_jobs([], model=TARGET, speculative_config={"model": str(draft), "num_speculative_tokens": 3})


def test_a_draft_of_another_size_proposes_common_tokens_under_a_rule(draft):
    prompt = AutoTokenizer.from_pretrained(TARGET)(OPENING).input_ids
    sampling = {"temperature": 1.0, "max_tokens": 2, "ignore_eos": True, "extra_args": {"acceptance_rule": RULE}}
    job = {"prompts": [prompt], "copies": COPIES, "sampling": sampling}
    speculation = {"model": str(draft), "num_speculative_tokens": 3, "use_heterogeneous_vocab": True}
    (result,) = run_jobs([job], model=TARGET, speculative_config=speculation)
    assert result["counters"]["accepted_tokens"] > COPIES // 4
    first, count = Counter(sequence[0] for sequence in result["token_ids"]).most_common(1)[0]
    assert count > COPIES // 2
    seconds = torch.tensor([sequence[1] for sequence in result["token_ids"] if sequence[0] == first])
    assert not rejects(seconds, second_token_law(prompt, first))  # wrongly with probability 1e-6
