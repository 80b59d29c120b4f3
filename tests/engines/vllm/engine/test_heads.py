"""An EAGLE-3 head in speculators' format drafts for a real engine, and requests follow their rules' laws.

Each chi-square test rejects a right engine with probability 1e-6, of which there are as many as rules; what a request
emits also refutes the laws of the other rules. vLLM's seed is fixed.
"""

from __future__ import annotations

import pytest
import torch
from engine_run import run_jobs
from support.chi_square import rejects
from support.eagle_heads import write_head
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import audit, zoo

pytestmark = pytest.mark.engine

PROMPT = "Question: Ben reads 12 pages a day for 5 days. How many pages does he read?\nAnswer: To begin"
RULES = (None, "lossless", "cactus:delta=1", "clamped:width=1")
COPIES = 800


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.Tensor, int, dict[str | None, torch.Tensor]]:
    """Return the target's row behind the likeliest first token, what the head proposes, and the second tokens."""
    name = str(zoo.path("target"))
    prompt = AutoTokenizer.from_pretrained(name)(PROMPT).input_ids
    target = AutoModelForCausalLM.from_pretrained(name).float()
    with torch.no_grad():
        first = int(target(torch.tensor([prompt])).logits[0, -1].argmax())
        row = target(torch.tensor([[*prompt, first]])).logits[0, -1].double().softmax(-1)
    proposes = int(row.argsort(descending=True)[1])
    head = write_head(tmp_path_factory.mktemp("head") / "eagle3", target.config, name, proposes, 3)
    asked = [{} if rule is None else {"acceptance_rule": rule} for _ in range(COPIES) for rule in RULES]
    sampling = [{"temperature": 1.0, "max_tokens": 2, "ignore_eos": True, "extra_args": each or None} for each in asked]
    speculation = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    jobs = [{"prompts": [prompt], "copies": len(sampling), "sampling": sampling}]
    (result,) = run_jobs(jobs, model=name, speculative_config=speculation)
    found = {}
    for kind, rule in enumerate(RULES):
        tokens = torch.tensor(result["token_ids"][kind :: len(RULES)])
        found[rule] = tokens[tokens[:, 0] == first, 1]
        assert len(found[rule]) > 0.9 * COPIES
    return row, proposes, found


@pytest.mark.parametrize("rule", RULES)
def test_requests_follow_the_law_of_their_rule(rule: str | None, emitted) -> None:
    row, proposes, found = emitted
    for judge in RULES[1:]:
        law = audit(judge, row.unsqueeze(0), draft_token_ids=torch.tensor([proposes])).output_probs[0]
        assert rejects(found[rule], law / law.sum()) == (judge != (rule or "lossless"))
