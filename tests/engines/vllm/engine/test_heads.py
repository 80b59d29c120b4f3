"""An EAGLE-3 head in speculators' format drafts for a real engine, and requests follow their rules' laws.

Each chi-square test rejects a right engine with probability 1e-6, of which there are as many as rules; what a request
emits also refutes the laws of the other rules. vLLM's seed is fixed.
"""

from __future__ import annotations

import pytest
from engine_run import run_jobs
from second_tokens import OPENING, follow, prompt_of, rows_after
from support.eagle_heads import write_head
from transformers import AutoConfig

from cactus_decoding import zoo

pytestmark = pytest.mark.engine

RULES = (None, "lossless", "cactus:delta=1", "clamped:width=1")
COPIES = 800


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[list[int]]]:
    """Return what the head proposes after the likeliest first token, and the tokens of each rule's requests in turn."""
    name = str(zoo.path("target"))
    proposes = int(rows_after(OPENING)[1].argsort(descending=True)[1])
    config = AutoConfig.from_pretrained(name)
    head = write_head(tmp_path_factory.mktemp("head") / "eagle3", config, name, proposes, 3)
    asked = [{} if rule is None else {"acceptance_rule": rule} for _ in range(COPIES) for rule in RULES]
    sampling = [{"temperature": 1.0, "max_tokens": 2, "ignore_eos": True, "extra_args": each or None} for each in asked]
    speculation = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    jobs = [{"prompts": [prompt_of(OPENING)], "copies": len(sampling), "sampling": sampling}]
    (result,) = run_jobs(jobs, model=name, speculative_config=speculation)
    return proposes, result["token_ids"]


@pytest.mark.parametrize("kind", range(len(RULES)), ids=str)
def test_requests_follow_the_law_of_their_rule(kind: int, emitted) -> None:
    proposes, token_ids = emitted
    for judge in RULES[1:]:
        own = follow(token_ids[kind :: len(RULES)], judge, proposed=proposes)
        assert own == (judge == (RULES[kind] or "lossless"))
