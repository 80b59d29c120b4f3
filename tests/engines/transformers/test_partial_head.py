"""Drafts that propose from a part of the vocabulary: their rows, their folders, and what verification emits."""

import json

import pytest
import torch
from support.loop_runs import PROMPT, run, tokens
from support.tiny_models import tiny_llama

from cactus_decoding import ModelDrafter, SamplingParams
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.loader import load_model
from cactus_decoding.engines.transformers.partial_head import PartialHead, propose_from

PART = [0, 2, 3, 6]
TEXT = [1, 7, 4, 2, 5]
OUTSIDE = [1, 4, 5, 7]


def partial_llama():
    model = tiny_llama(1)
    propose_from(model, PART)
    return model


def test_a_partial_draft_drafts_for_its_target():
    target = CachedModel(tiny_llama(0))
    plain = tiny_llama(0).generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=40, pad_token_id=0)
    sampling = SamplingParams(temperature=0)
    steps = run(target, ModelDrafter(partial_llama(), 8), "lossless", 4, length=43, sampling=sampling)
    assert tokens(steps) == plain[0, 3:].tolist()
    assert {token for step in steps for token in step.proposal.token_ids} <= set(PART)


def test_what_is_drafted_has_the_distribution_of_the_part():
    drafter = ModelDrafter(partial_llama(), 8)
    proposal = drafter.propose(TEXT, 2, lambda logits, _: logits.softmax(-1), torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = tiny_llama(1)(torch.tensor([[*TEXT, *proposal.token_ids]])).logits[0, len(TEXT) - 1 : -1]
    expected = torch.zeros_like(logits)
    expected[:, PART] = logits[:, PART].softmax(-1)
    torch.testing.assert_close(proposal.probs, expected)
    assert (logits.softmax(-1) - expected).abs().max() > 0.05


def test_a_model_proposes_from_a_part():
    whole, part = tiny_llama(1), tiny_llama(1)
    propose_from(part, PART)
    ids = torch.tensor([TEXT])
    for change in (0.0, 0.5):  # the copy of the rows follows the weights
        with torch.no_grad():
            for each in (whole, part):
                each.lm_head.weight += change
            rows, theirs = (each(ids).logits for each in (part, whole))
        torch.testing.assert_close(rows[..., PART], theirs[..., PART])
        assert rows[..., OUTSIDE].eq(-torch.inf).all()
    part(ids).logits[..., PART].sum().backward()
    learned = part.lm_head.weight.grad.abs().sum(-1) > 0
    assert learned.tolist() == [i in PART for i in range(8)]
    for wrong in ([], [8], [-1]):
        with pytest.raises(ValueError, match="draft_vocabulary must list tokens from 0 to 7"):
            propose_from(tiny_llama(1), wrong)


def test_a_folder_says_what_its_draft_proposes_from(tmp_path):
    partial_llama().save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["draft_vocabulary"] == PART
    cpu = torch.device("cpu")
    assert type(load_model("draft", tmp_path / "model", torch.float32, cpu).lm_head) is PartialHead
    assert type(load_model("target", tmp_path / "model", torch.float32, cpu).lm_head) is torch.nn.Linear
