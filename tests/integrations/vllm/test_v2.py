"""The V2 runner's seam, with its sampler replaced by one that keeps the logits it was given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.engine_rules import SPELLINGS

from cactus_decoding import parse_rule
from cactus_decoding.integrations.common.relaxed_logits import relax_rows, relax_tokens
from cactus_decoding.integrations.vllm import v2
from cactus_decoding.integrations.vllm.v2 import NO_RULE, SlotRules

CPU = torch.device("cpu")


def states(slots: int, prompt_lengths: dict[int, int] | None = None, texts: dict[int, list[int]] | None = None):
    """Return what the runner keeps of its slots: the lengths of their prompts, and their tokens so far."""
    prompts, tokens = torch.zeros(slots, dtype=torch.int32), torch.zeros(slots, 32, dtype=torch.int32)
    lengths = torch.zeros(slots, dtype=torch.int32)
    for slot, length in (prompt_lengths or {}).items():
        prompts[slot] = length
    for slot, text in (texts or {}).items():
        tokens[slot, : len(text)], lengths[slot] = torch.tensor(text), len(text)
    return SimpleNamespace(
        device=CPU,
        max_num_reqs=slots,
        prompt_len=SimpleNamespace(np=prompts.numpy()),
        prefill_len=SimpleNamespace(np=prompts.numpy().copy()),
        total_len=SimpleNamespace(gpu=lengths),
        all_token_ids=SimpleNamespace(gpu=tokens),
    )


def sampled_from(rules: SlotRules, logits, draft_logits, fed, slots, local, temperature, pos=None) -> torch.Tensor:
    """Return the logits that the runner's sampler gets to see."""
    seen = []

    def stock(target_logits: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(target_logits.clone())
        return torch.zeros(len(requests), 3), torch.ones(len(requests))

    requests = torch.tensor(list(dict.fromkeys(slots.tolist())))
    rules.apply(logits, SimpleNamespace(idx_mapping_np=requests.numpy()))
    nothing, pos = torch.zeros(0), local if pos is None else pos
    v2.with_relaxation(stock)(
        logits, draft_logits, fed, nothing, pos, requests.int(), slots.int(), local.int(), temperature, nothing, 2
    )
    return seen[0]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
def test_the_second_runner_relaxes_the_rows_of_its_requests(spelling: str, one_hot: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    slots, temperature = torch.tensor([4, 4, 4, 1, 1, 2]), torch.tensor([1.0, 0.7, 0.0, 1.0, 1.3])
    local = torch.tensor([0, 1, 2, 0, 1, 0])
    logits = torch.randn(6, 5, generator=generator)
    draft_logits = None if one_hot else torch.randn(5, 2, 5, generator=generator)
    fed = torch.tensor([0, 3, 1, 0, 2, 0])  # row i is about the token fed in at row i + 1
    rules = SlotRules(None, states(5))
    sampling = SimpleNamespace(temperature=1.0, extra_args={"acceptance_rule": spelling})
    asked = rules.add_request(4, sampling)
    assert asked == (spelling != "lossless")
    assert not rules.add_request(2, SimpleNamespace(temperature=0.0, extra_args=sampling.extra_args))
    given = logits.clone()
    relaxed = sampled_from(rules, logits, draft_logits, fed, slots, local, temperature)
    assert torch.equal(logits, given)
    assert torch.equal(relaxed[2:], logits[2:])
    rule = parse_rule(spelling)
    for row in range(2 if asked else 0):
        if draft_logits is None or rule.lifts_one_token:
            expected = logits[row].clone()
            token_logit, total = expected[fed[row + 1]], logits[row].logsumexp(-1)
            expected[fed[row + 1]] = relax_tokens(rule, token_logit, total).logits
        else:
            probs = (draft_logits[4, row].double() / temperature[4]).softmax(-1)
            expected = relax_rows(rule, logits[row : row + 1], probs.unsqueeze(0), fed[row + 1 : row + 2]).logits[0]
        assert torch.allclose(relaxed[row].softmax(-1), expected.softmax(-1), atol=1e-6)
        assert not torch.equal(relaxed[row], logits[row])


def test_a_draft_with_a_shorter_vocabulary_leaves_the_rest_as_it_is() -> None:
    rules = SlotRules(None, states(1))
    rules.add_request(0, SimpleNamespace(temperature=1.0, extra_args={"acceptance_rule": "ensemble:weight=1"}))
    logits, draft_logits = torch.zeros(2, 5), torch.tensor([[[2.0, 1.0, 0.0]]])
    where = torch.tensor([0, 1]), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1])
    relaxed = sampled_from(rules, logits, draft_logits, *where, torch.ones(1))
    assert torch.allclose(relaxed[0, :3].softmax(-1), draft_logits[0, 0].softmax(-1))
    assert torch.equal(relaxed[0, 3:], logits[0, 3:])


def test_slots_are_reused_and_a_step_without_a_rule_is_the_stock_one() -> None:
    rules = SlotRules(None, states(3))
    asked = {"acceptance_rule": "cactus:delta=1", "budget": 0.5}
    first, other = (SimpleNamespace(temperature=1.0, extra_args=args) for args in (asked, None))
    assert rules.add_request(1, first)
    assert (rules.codes[1].item(), rules.budgets[1].item()) == (0, 0.5)
    rules.meter.spent[rules.meter_slots[1]] = 0.25
    assert rules.add_request(2, first)  # it was taken out and is back in another slot
    assert rules.meter.spent[rules.meter_slots[2]] == 0.25
    assert not rules.add_request(1, other)
    assert (rules.codes[1].item(), rules.budgets[1].item()) == (NO_RULE, torch.inf)
    logits = torch.randn(2, 3)
    slots = torch.tensor([1, 1])
    same = sampled_from(rules, logits, None, torch.tensor([0, 1]), slots, torch.tensor([0, 1]), torch.ones(3))
    assert torch.equal(same, logits)
    assert not rules.present
    assert v2.take() is None
