"""transformers' models with a recurrent state: two tokens follow the law of the rule, by enumeration.

Each test compares 300 draws of each rule, and fails by chance with probability 2e-6 at most; its generators are fixed,
so: always or never. The wrong variant, the other rule's law, is told apart with probability 1 - 1e-9.
"""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2
from support.architectures import tiny_architecture
from support.gguf_files import law_of_two, two_tokens
from support.loop_runs import FALSE_ALARM, PROMPT, begin, chi_square
from support.versions import since
from transformers import PreTrainedModel

from cactus_decoding import ModelDrafter
from cactus_decoding.core.models.recurrent import RecurrentForward
from cactus_decoding.engines.transformers.cached_model import CachedModel

VOCABULARY, DRAWS = 8, 300


def hybrid(name: str, seed: int) -> PreTrainedModel:
    model = tiny_architecture(name, vocab_size=VOCABULARY)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * seed * torch.randn_like(parameter))
        model.get_output_embeddings().weight.mul_(4)
    return model


@pytest.mark.slow
@since("5.19.0")
@pytest.mark.parametrize("name", ["falcon_h1", "bamba", "qwen3_5_text"])
def test_two_tokens_follow_the_law_of_the_rule(name):
    target, draft = hybrid(name, 0), hybrid(name, 1)
    rules = ("lossless", "cactus:delta=1.0")
    laws = {rule: law_of_two(rule, target, draft, PROMPT) for rule in rules}
    for rule in rules:
        steps = (CachedModel(target), ModelDrafter(draft), rule, 3)
        counts = two_tokens(lambda seed, steps=steps: begin(*steps, seed, length=9), DRAWS, VOCABULARY)
        assert isinstance(steps[0]._forward, RecurrentForward)
        fits = []
        for other, law in laws.items():
            statistic, freedom = chi_square(counts, law)
            fits += [other] * bool(statistic < chi2.isf(FALSE_ALARM, freedom))
        assert fits == [rule]
