"""Which requests are followed, and that their budgets outlast a pause."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from cactus_decoding import Request
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.vllm.extra_args import ServerConfig
from cactus_decoding.engines.vllm.state import RequestRules


def asking(**asked: object) -> SimpleNamespace:
    return SimpleNamespace(temperature=1.0, extra_args=asked)


def test_requests_get_their_rule_or_the_default() -> None:
    rules = RequestRules(ServerConfig(default=Request("cactus:delta=1", 2.0)), torch.device("cpu"), 1)
    one = rules.admit(asking(), begun=False)
    assert (str(one.rule), one.budget, one.meter_slot) == ("cactus:delta=1.0", 2.0, 0)
    other = rules.admit(asking(acceptance_rule="lenience:lenience=0.5"), begun=False)
    assert (str(other.rule), other.budget, other.meter_slot) == ("lenience:lenience=0.5", 2.0, 1)
    assert rules.admit(asking(acceptance_rule="lossless"), begun=False) is None
    unmetered = RequestRules(ServerConfig(default=Request("cactus:delta=1")), torch.device("cpu"), 1).admit(
        asking(), begun=True
    )
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
