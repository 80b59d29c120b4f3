"""The V2 runner's seam, with its sampler replaced by one that keeps the logits it was given."""

import math
from types import SimpleNamespace

import pytest
import torch
from support.engine_rules import GREEDY_SPELLINGS, SPELLINGS, relaxed_token_logit
from support.rules_under_test import every_rule
from support.tables import all_of

from cactus_decoding import Request, parse_rule
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.relaxed_logits import relax_rows, relax_tokens
from cactus_decoding.core.rules.base import LiftRule
from cactus_decoding.engines.vllm import v2
from cactus_decoding.engines.vllm.extra_args import ServerConfig
from cactus_decoding.engines.vllm.state import RequestRules
from cactus_decoding.engines.vllm.v2 import NO_RULE, SlotRules

CPU = torch.device("cpu")


def asking(temperature: float = 1.0, **asked: object) -> SimpleNamespace:
    return SimpleNamespace(temperature=temperature, extra_args=asked or None)


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


@every_rule(SPELLINGS)
@all_of("one_hot", [True, False])
def test_the_second_runner_relaxes_the_rows_of_its_requests(spelling: str, one_hot: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    slots, temperature = torch.tensor([4, 4, 4, 1, 1, 2]), torch.tensor([1.0, 0.7, 0.0, 1.0, 1.3])
    local = torch.tensor([0, 1, 2, 0, 1, 0])
    logits = torch.randn(6, 5, generator=generator)
    draft_logits = None if one_hot else torch.randn(5, 2, 5, generator=generator)
    fed = torch.tensor([0, 3, 1, 0, 2, 0])  # row i is about the token fed in at row i + 1
    rules = SlotRules(ServerConfig(), states(5))
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
        if draft_logits is None or isinstance(rule, LiftRule):
            expected = logits[row].clone()
            expected[fed[row + 1]] = relaxed_token_logit(rule, expected, fed[row + 1])
        else:
            probs = (draft_logits[4, row].double() / temperature[4]).softmax(-1)
            expected = relax_rows(rule, logits[row : row + 1], probs.unsqueeze(0), fed[row + 1 : row + 2]).logits[0]
        assert torch.allclose(relaxed[row].softmax(-1), expected.softmax(-1), atol=1e-6)
        moves = not torch.allclose(expected.softmax(-1), logits[row].softmax(-1), atol=1e-6)  # gates may stay shut
        assert not (moves and torch.equal(relaxed[row], logits[row]))


@every_rule(GREEDY_SPELLINGS)
@all_of("one_hot", [True, False])
def test_at_temperature_0_the_tokens_that_a_rule_keeps_are_the_greatest(spelling: str, one_hot: bool) -> None:
    generator, relaxed = torch.Generator().manual_seed(3), 0
    slots, local = torch.tensor([4, 4, 4, 1, 1, 2, 2, 2]), torch.tensor([0, 1, 2, 0, 1, 0, 1, 2])
    temperature = torch.tensor([1.0, 0.7, 0.0, 1.0, 0.0])
    rules = SlotRules(ServerConfig(), states(5))
    assert rules.add_request(4, asking(0.0, acceptance_rule=spelling))
    assert rules.add_request(1, asking(0.7, acceptance_rule="cactus:delta=1"))
    assert not rules.add_request(2, asking(0.0, acceptance_rule="cactus:delta=1"))
    for _ in range(30):
        logits = torch.randn(8, 5, generator=generator)
        draft_logits = None if one_hot else torch.randn(5, 2, 4, generator=generator)
        fed = torch.randint(4, (8,), generator=generator)  # row i is about the token fed in at row i + 1
        given, width = logits.clone(), 5 if draft_logits is None else 4
        seen = sampled_from(rules, logits, draft_logits, fed, slots, local, temperature)
        assert torch.equal(logits, given)
        assert torch.equal(seen[5:], logits[5:])  # at temperature 0 other rules do nothing
        assert not torch.equal(seen[3], logits[3])
        assert torch.equal(seen[2], logits[2])  # nobody drafted there
        for row in range(2):
            looked_at, token = given[row, :width], fed[row + 1 : row + 2]
            rule = parse_rule(spelling).bind_position(2 - row, looked_at.max().item())
            kept = rule.accepts(looked_at.softmax(-1), token).item()
            greatest = seen[row, :width].argmax()
            assert greatest == (token if kept else looked_at.argmax())
            relaxed += int(greatest != looked_at.argmax())
    assert (relaxed > 0) == (spelling not in ("relaxed_greedy:margin=0", "big_little:rollback=0", "mars:ratio=1"))


def test_a_draft_with_a_shorter_vocabulary_leaves_the_rest_as_it_is() -> None:
    rules = SlotRules(ServerConfig(), states(1))
    rules.add_request(0, asking(acceptance_rule="ensemble:weight=1"))
    logits, draft_logits = torch.zeros(2, 5), torch.tensor([[[2.0, 1.0, 0.0]]])
    where = torch.tensor([0, 1]), torch.zeros(2, dtype=torch.int64), torch.tensor([0, 1])
    relaxed = sampled_from(rules, logits, draft_logits, *where, torch.ones(1))
    assert torch.allclose(relaxed[0, :3].softmax(-1), draft_logits[0, 0].softmax(-1))
    assert torch.equal(relaxed[0, 3:], logits[0, 3:])


def test_slots_are_reused_and_a_step_without_a_rule_is_the_stock_one() -> None:
    rules = SlotRules(ServerConfig(), states(3))
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


WORDS = Vocabulary(("<a>", "</a>", " 3", "x", "4"))
ASKED = {"acceptance_rule": "cactus:delta=5"}


def changed_rows(rules: SlotRules, kept: SimpleNamespace, slots: list[int], tokens: list[int]) -> list[bool]:
    """Return which rows of two drafted tokens a request are relaxed, where the target writes a digit with 0.4."""
    logits = torch.tensor([0.2, 0.2, 0.3, 0.2, 0.1]).log().expand(3 * len(slots), 5).clone()
    fed = torch.tensor([[0, one, other] for one, other in zip(tokens[::2], tokens[1::2], strict=True)]).flatten()
    local = torch.arange(3).repeat(len(slots))
    of_row = torch.tensor(slots).repeat_interleave(3)
    pos = kept.total_len.gpu[of_row] - 1 + local
    relaxed = sampled_from(rules, logits, None, fed, of_row, local, torch.ones(8), pos)
    changed = (relaxed != logits).any(1).view(-1, 3)
    assert not changed[:, 2].any()  # nobody drafted there
    return changed[:, :2].flatten().tolist()


def test_slots_protect_what_their_requests_ask_for() -> None:
    texts = {slot: [3, 3, 3] for slot in range(8)} | {6: [3, 0, 3]}
    kept = states(8, dict.fromkeys(range(8), 2), texts)
    rules = SlotRules(ServerConfig(), kept, vocabulary=WORDS)
    marks = {"relax_within": ["<a>", "</a>"]}
    expected = [
        ({}, [True, True]),
        ({"protect": "digits"}, [False, False]),
        ({"protect": "digits", "protect_threshold": 0.41}, [True, True]),
        ({"protect": "digits", "protect_threshold": 0.39}, [False, False]),
        ({"lossless_tokens": 2}, [False, True]),  # one is there
        (marks, [False, True]),  # the first drafted token opens
        (marks, [True, False]),  # the first drafted token closes
        ({"protect": "json", "protect_threshold": 0.9}, [True, True]),  # commas and digits
    ]
    for slot, (policy, _) in enumerate(expected):
        assert rules.add_request(slot, asking(**ASKED, **policy))
    slots = [3, 0, 6, 1, 5, 2, 4, 7]
    tokens = [2, 3, 2, 3, 1, 3, 2, 3, 0, 3, 2, 3, 2, 3, 2, 3]
    assert changed_rows(rules, kept, slots, tokens) == [one for slot in slots for one in expected[slot][1]]


def test_phases_begin_anew_with_a_slot_and_go_on_with_its_text() -> None:
    kept = states(8, {0: 1}, {0: [0]})
    rules = SlotRules(ServerConfig(), kept, vocabulary=WORDS)
    marked = asking(**ASKED, relax_within=["<a>", "</a>"])
    rules.add_request(0, marked)
    assert changed_rows(rules, kept, [0], [3, 3]) == [True, True]
    kept.all_token_ids.gpu[0, 1:3], kept.total_len.gpu[0] = torch.tensor([3, 1]), 3
    assert changed_rows(rules, kept, [0], [0, 3]) == [False, True]
    kept.all_token_ids.gpu[0, 3:5], kept.total_len.gpu[0] = torch.tensor([0, 3]), 5
    assert changed_rows(rules, kept, [0], [3, 3]) == [True, True]
    kept.prefill_len.np[0] = 5  # it was taken out, and is back with all its text
    rules.add_request(0, marked)
    assert changed_rows(rules, kept, [0], [1, 3]) == [True, False]
    kept.all_token_ids.gpu[0, :2], kept.total_len.gpu[0] = torch.tensor([3, 3]), 2  # another request
    rules.add_request(0, marked)
    assert changed_rows(rules, kept, [0], [3, 3]) == [False, False]
    rules.add_request(0, asking(**ASKED))
    assert changed_rows(rules, kept, [0], [3, 3]) == [True, True]
    rules.add_request(0, asking(**ASKED, lossless_tokens=10**30))
    assert changed_rows(rules, kept, [0], [3, 3]) == [False, False]


def test_slots_count_what_their_requests_report() -> None:
    rules = SlotRules(ServerConfig(), states(4))
    asked = {"acceptance_rule": "cactus:delta=1"}
    rules.add_request(2, asking(**asked, acceptance_report=True))
    rules.add_request(1, asking(**asked))
    logits = torch.tensor([0.2, 0.2, 0.3, 0.2, 0.1]).log().expand(4, 5).clone()
    slots, local = torch.tensor([2, 2, 1, 1]), torch.tensor([0, 1, 0, 1])
    sampled_from(rules, logits, None, torch.tensor([0, 3, 0, 3]), slots, local, torch.ones(4))
    (counted,) = rules.counted().values()
    assert list(rules.counted()) == [2]
    expected = relax_tokens(parse_rule("cactus:delta=1"), logits[0, 3], logits[0].logsumexp(-1)).conditional.item()
    assert counted == [pytest.approx(expected), 1, 0, 0, 0, 0]  # looked at and, with one token sampled, rejected
    rules.add_request(2, asking())
    assert not rules.counted()
    assert not rules.reporting.any()


def test_requests_get_their_rule_or_the_default() -> None:
    rules = RequestRules(ServerConfig(default=Request("cactus:delta=1", 2.0)), torch.device("cpu"), 1)
    one = rules.admit(asking(), begun=False)
    assert (str(one.rule), one.budget, one.meter_slot) == ("cactus:delta=1.0", 2.0, 0)
    other = rules.admit(asking(acceptance_rule="lenience:lenience=0.5"), begun=False)
    assert (str(other.rule), other.budget, other.meter_slot) == ("lenience:lenience=0.5", 2.0, 1)
    assert rules.admit(asking(acceptance_rule="lossless"), begun=False) is None
    rules = RequestRules(ServerConfig(default=Request("cactus:delta=1")), torch.device("cpu"), 1)
    unmetered = rules.admit(asking(), begun=True)
    assert (unmetered.budget, unmetered.meter_slot) == (math.inf, None)


def test_what_was_spent_outlasts_a_pause_and_slots_in_the_batch_are_kept() -> None:
    rules = RequestRules(ServerConfig(), torch.device("cpu"), 1)
    params = [asking(acceptance_rule="cactus:delta=1", budget=1.0) for _ in range(20)]
    rules.requests[0] = rules.admit(params[0], begun=False)
    rules.meter.spent[0] = 0.5
    for one in params[1:]:  # more than the meter remembers
        assert rules.admit(one, begun=False).meter_slot != 0
    del rules.requests[0]
    assert rules.admit(params[0], begun=True).meter_slot == 0
    assert rules.meter.spent[0] == 0.5
    for one in params[1:9]:
        rules.admit(one, begun=False)
    back = rules.admit(params[0], begun=True)  # forgotten: nobody knows what it has spent
    assert rules.meter.spent[back.meter_slot] == math.inf


def test_patterns_are_looked_up_once_and_thresholds_are_each_request_s_own(caplog: pytest.LogCaptureFixture) -> None:
    words = Vocabulary((" cat", " 3", "{", "4"))
    rules = RequestRules(ServerConfig(), torch.device("cpu"), 1, vocabulary=words)
    asked = {"acceptance_rule": "cactus:delta=1"}
    one = rules.admit(asking(**asked, protect="digits", lossless_tokens=3), begun=False)
    assert (one.pattern, one.threshold, one.phases) == ("digits", 0.01, Phases(3))
    assert rules.protected_ids["digits"].tolist() == [1, 3]
    held = rules.protected_ids["digits"]
    for number in range(100):
        other = rules.admit(asking(**asked, protect="digits", protect_threshold=number / 100), begun=False)
        assert other.threshold == number / 100
    assert rules.protected_ids["digits"] is held
    free = rules.admit(asking(**asked), begun=False)
    assert (free.pattern, free.threshold, free.phases) == (None, math.inf, None)
    assert not caplog.messages
    assert rules.admit(asking(**asked, protect="negation"), begun=False) is None  # an exception would end the server
    assert "matches none of the" in caplog.text
    unknown = RequestRules(ServerConfig(), torch.device("cpu"), 1)
    assert unknown.admit(asking(**asked, protect="digits"), begun=False) is None
    assert unknown.admit(asking(**asked, lossless_tokens=3), begun=False).phases == Phases(3)
