"""Answers under a grammar, whose drafts are drawn without it: second tokens have the target's law among those allowed.

The chi-square test rejects a right engine with probability 1e-6.
"""

from pathlib import Path

import pytest
import torch
from engine_run import run_jobs
from only_repair import environment
from second_tokens import OPENING, prompt_of, rows_after
from support.chi_square import rejects
from transformers import AutoTokenizer

from cactus_decoding import zoo

pytestmark = pytest.mark.engine

ALLOWED = ("the", "Ben", "from")
"""Of what may follow the comma, the words whose probabilities stock vLLM misses most, by a total variation of 0.22."""
REQUESTS = 1_500


def seconds(**engine: object) -> torch.Tensor:
    """Return the second tokens of answers that a grammar restricts to the allowed words."""
    choice = {"choice": [f", {word}" for word in ALLOWED]}
    sampling = {"temperature": 1.0, "max_tokens": 2, "structured_outputs": choice}
    draft = {"model": str(zoo.path("draft")), "num_speculative_tokens": 1, "draft_sample_method": "probabilistic"}
    job = {"prompts": [prompt_of(OPENING)], "copies": REQUESTS, "sampling": sampling}
    (result,) = run_jobs([job], speculative_config=draft, **engine)
    comma, _, _ = rows_after(OPENING)
    return torch.tensor([tokens[1] for tokens in result["token_ids"] if tokens[0] == comma and len(tokens) > 1])


def follow(tokens: torch.Tensor) -> bool:
    """Whether tokens have the target's probabilities, restricted to what is allowed."""
    _, target, _ = rows_after(OPENING)
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    allowed = [tokenizer(f" {word}").input_ids[-1] for word in ALLOWED]
    law = torch.zeros_like(target)
    law[allowed] = target[allowed]
    whole = tokens[torch.isin(tokens, torch.tensor(allowed))]  # others begin a word, and are hardly ever drawn
    assert len(whole) > 0.99 * REQUESTS
    return not rejects(whole, law / law.sum())


def test_a_proposal_that_the_grammar_forbids_is_rejected() -> None:
    assert follow(seconds())


def test_stock_vllm_leaves_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    assert not follow(seconds())
