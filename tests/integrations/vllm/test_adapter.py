"""The parts of the vLLM adapter that need no vLLM: requests, logits, budgets, counting, and the server's command."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from support.exact_enumeration import paired_rows

from cactus_decoding import audit, parse_rule
from cactus_decoding.cli import main
from cactus_decoding.integrations.vllm import counters
from cactus_decoding.integrations.vllm.counters import COUNTERS, MOST_RULES, OTHER, Counters
from cactus_decoding.integrations.vllm.plugin import check_version
from cactus_decoding.integrations.vllm.relaxed_logits import changes_one_logit, relax_rows, relax_tokens
from cactus_decoding.integrations.vllm.relaxed_step import change, spending_of
from cactus_decoding.integrations.vllm.request import EXPRESSIBLE, Relaxation, relaxation
from cactus_decoding.integrations.vllm.server import server_command, speculative_config
from cactus_decoding.integrations.vllm.server_config import ServerConfig
from cactus_decoding.integrations.vllm.slot_step import SlotStep, rows_of_step
from cactus_decoding.integrations.vllm.slots import SlotRules

PAIRS = paired_rows()

SPELLINGS = (
    "lossless",
    "cactus:delta=0.05",
    "cactus:delta=1",
    "cactus:delta=0.5,solver=exact",
    "cactus:delta=0.3,solver=exact,divergence=jensen_shannon",
    "cactus:delta=2,max_ratio=1.5",
    "ensemble:weight=0.4",
    "ensemble:weight=1",
    "lenience:lenience=0.5",
    "lenience:lenience=0.01",
    "clamped:width=0.8",
    "clamped:max_kl=0.05",
)
ROWS = [(t.double(), d.double() / d.double().sum()) for ts, ds in PAIRS for t, d in zip(ts[:4], ds[:4], strict=True)]
every_rule = pytest.mark.parametrize("spelling", SPELLINGS)


def vllm_s_sampler(row: torch.Tensor, draft: torch.Tensor, drafted: int) -> torch.Tensor:
    """Return the law of the token that vLLM's rejection sampler emits for a drafted one, from its two formulas."""
    h = row.double().softmax(-1)
    kept = (h[drafted] / draft[drafted]).clamp(max=1.0)
    residual = (h - draft).clamp(min=0)
    law = torch.zeros_like(h)
    law[drafted] = kept
    total = residual.sum()
    return law + (1 - kept) * residual / total if total > 0 else law  # nothing left up to rounding


@every_rule
def test_the_logits_make_vllm_s_sampler_follow_the_rule(spelling: str) -> None:
    rule = parse_rule(spelling)
    for target, draft in ROWS:
        logits, emitted = target.log(), torch.zeros_like(target)
        for drafted in range(len(target)):
            if draft[drafted] == 0:
                continue
            row = logits.clone()
            if changes_one_logit(rule, draft):
                row[drafted] = relax_tokens(rule, logits[drafted], logits.logsumexp(-1)).logits
            else:
                token = torch.tensor([drafted])
                row = relax_rows(rule, logits.unsqueeze(0), draft.unsqueeze(0), token).logits[0]
            emitted += draft[drafted] * vllm_s_sampler(row, draft, drafted)
        assert torch.allclose(emitted, audit(rule, target, draft).output_probs, rtol=0, atol=1e-12)


@every_rule
def test_the_logits_for_a_deterministic_draft(spelling: str) -> None:
    rule = parse_rule(spelling)
    for target, _ in ROWS:
        for drafted in range(len(target)):
            row = target.log()
            row[drafted] = relax_tokens(rule, row[drafted], row.logsumexp(-1)).logits
            expected = audit(rule, target, draft_token_ids=torch.tensor(drafted)).output_probs
            point = torch.zeros_like(target)
            point[drafted] = 1.0
            assert torch.allclose(vllm_s_sampler(row, point, drafted), expected, rtol=0, atol=1e-12)


def test_a_wrong_logit_is_noticed() -> None:
    target, draft = ROWS[0]
    drafted = int(draft.argmax())
    row = target.log()
    row[drafted] = relax_tokens(parse_rule("cactus:delta=1.05"), row[drafted], row.logsumexp(-1)).logits
    point = torch.nn.functional.one_hot(torch.tensor(drafted), len(target)).double()
    expected = audit("cactus:delta=1", target, draft_token_ids=torch.tensor(drafted)).output_probs
    assert not torch.allclose(vllm_s_sampler(row, point, drafted), expected, rtol=0, atol=1e-4)


@every_rule
@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
def test_a_position_costs_what_the_audit_says(spelling: str, one_hot: bool) -> None:
    rule = parse_rule(spelling)
    for target, draft in ROWS:
        inside = [token for token in range(len(target)) if draft[token] > 0]
        rows = torch.arange(len(inside))
        logits = target.double().log().expand(len(inside), -1)
        probs, drafted = draft.double().expand(len(inside), -1), torch.tensor(inside)
        given = None if one_hot else probs
        nats = spending_of(change(rule, rows, logits, given, drafted), logits, given, True, None).emitted
        if one_hot:
            expected = audit(rule, logits.softmax(-1), draft_token_ids=drafted).kl
        else:
            expected = audit(rule, logits.softmax(-1), probs / probs.sum(-1, keepdim=True)).kl
        assert torch.allclose(nats, expected.clamp(min=0), rtol=0, atol=1e-9)


def test_certain_and_impossible_tokens_keep_their_logits() -> None:
    rule = parse_rule("cactus:delta=5")
    certain = torch.tensor([3.0, -torch.inf])
    assert relax_tokens(rule, certain, certain.logsumexp(-1)).logits.tolist() == certain.tolist()
    row = torch.tensor([4.0, 0.0])
    row[0] = relax_tokens(rule, row[0], row.logsumexp(-1)).logits  # g is 1
    assert row.softmax(-1).tolist() == [1.0, pytest.approx(0.0, abs=1e-15)]


def test_what_a_request_may_ask_for() -> None:
    default = Relaxation(parse_rule("cactus:delta=1"), 2.0)
    assert relaxation(None) is None
    assert relaxation({"other": 1}, default) is default
    assert relaxation({"acceptance_rule": "lossless"}, default).lossless
    assert relaxation({"budget": 0.5}, default) == Relaxation(default.rule, 0.5)
    assert relaxation({"acceptance_rule": "clamped:width=1"}, default) == Relaxation(parse_rule("clamped:width=1"), 2.0)
    assert {parse_rule(text).name for text in SPELLINGS} == set(EXPRESSIBLE)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"acceptance_rule": 3}, "must be a string"),
        ({"acceptance_rule": ["cactus:delta=1"]}, "must be a string"),
        ({"acceptance_rule": "cactus"}, "lacks delta"),
        ({"acceptance_rule": "top_k:k=3"}, "'top_k:k=3' does not work in vLLM"),
        ({"acceptance_rule": "typical"}, "'typical' does not work in vLLM"),
        ({"acceptance_rule": "cactus:delta=1", "budget": -1}, "budget must be in"),
        ({"acceptance_rule": "cactus:delta=1", "budget": "1"}, "budget must be a number"),
        ({"acceptance_rule": "cactus:delta=1", "budget": True}, "budget must be a number"),
        ({"acceptance_rule": "cactus:delta=1", "budget": float("nan")}, "budget must be in"),
        ({"budget": 1}, "without acceptance_rule"),
    ],
)
def test_what_it_may_not(asked: dict, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        relaxation(asked)


def config(**changes: object) -> SimpleNamespace:
    speculative = SimpleNamespace(rejection_sample_method="standard")
    return SimpleNamespace(**({"speculative_config": speculative, "additional_config": {}} | changes))


def test_what_a_server_can_follow() -> None:
    asked = Relaxation(parse_rule("cactus:delta=1"))
    ServerConfig.of(config()).check(asked)
    for changes, said in (
        ({"speculative_config": None}, "without --speculative-config"),
        ({"speculative_config": SimpleNamespace(rejection_sample_method="block")}, "'block'"),
        ({"watermark_config": object()}, "watermarks"),
    ):
        with pytest.raises(ValueError, match=said):
            ServerConfig.of(config(**changes)).check(asked)
    with pytest.raises(TypeError, match="acceptance_metrics must be true or false"):
        ServerConfig.of(config(additional_config={"acceptance_metrics": "yes"}))


@pytest.mark.parametrize("version", ["0.31.0", "0.34.0rc1", "1.0", "dev"])
def test_an_unknown_version_is_refused(version: str) -> None:
    with pytest.raises(RuntimeError, match=f"{version} is installed"):
        check_version(version)


def test_the_server_s_command() -> None:
    speculation = speculative_config(None, 3, "probabilistic")
    default = relaxation({"acceptance_rule": "cactus:delta=1", "budget": 2})
    command = server_command(None, speculation, default, 0.1, ["--port", "9"])
    options = dict(zip(command[3::2], command[4::2], strict=True))
    assert options["--model"].endswith("target")
    assert json.loads(options["--speculative-config"]) == speculation
    ours = {"acceptance_rule": "cactus:delta=1.0", "budget": 2.0, "audit_fraction": 0.1}
    assert json.loads(options["--additional-config"]) == ours
    assert options["--port"] == "9"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "typical"], "does not work in vLLM"),
        (["--rule", "cactus:delta=x"], "delta must be a number"),
        (["--budget", "1"], "without acceptance_rule"),
        (["--draft-sampling", "x"], "draft_sampling must be one of"),
        (["some-model"], "give TARGET and --draft"),
        (["--num-speculative-tokens", "0"], "'--num-speculative-tokens': 0 is not in the range x>=1"),
    ],
)
def test_mistakes_end_before_a_server_starts(arguments: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["serve", *arguments]) == 2
    assert said in capsys.readouterr().err


class Recorder:
    """Stands for a Prometheus counter."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def labels(self, rule: str) -> SimpleNamespace:
        def inc(value: float) -> None:
            self.values[rule] = self.values.get(rule, 0.0) + value

        return SimpleNamespace(inc=inc)


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = [Recorder() for _ in COUNTERS]
    monkeypatch.setattr(counters, "_prometheus_counters", lambda: recorders)
    counting = Counters(True, 0.5, torch.device("cpu"), seconds=1e9)
    rule, target = parse_rule("cactus:delta=1"), torch.tensor([[0.5, 0.5]] * 4).double()
    indices = [counting.audited(4), counting.audited(3)]
    assert [part.tolist() for part in indices] == [[1, 3], [0, 2]]
    many = [counting.audited(4) for _ in range(1000)]
    assert [sum(place in part for part in many) for place in range(4)] == pytest.approx([500] * 4, abs=10)
    rows, drafted = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    spent = spending_of(change(rule, rows, target.log(), None, drafted), target.log(), None, False, indices[0])
    fate = torch.tensor([2, 1, 0, -1])  # two accepted, one rejected, one not looked at
    counting.add([rule], [spent], [fate], [None])
    counting.flush()
    counted = {name: one.values[str(rule)] for name, one in zip(COUNTERS, recorders, strict=True)}
    assert counted["cactus_verified_positions"] == 3
    assert counted["cactus_accepted_tokens"] == 2
    assert counted["cactus_relaxed_tokens"] == pytest.approx(2 * 0.5)  # g is 1, lossless accepts half of the time
    assert counted["cactus_conditional_nats"] == pytest.approx(3 * torch.log(torch.tensor(2.0)).item())
    assert counted["cactus_audited_positions"] == 1
    for number in range(2 * MOST_RULES):
        counting.add([parse_rule(f"cactus:delta={number + 2}")], [spent], [fate], [None])
    counting.flush()
    assert len(recorders[0].values) == MOST_RULES + 1
    assert recorders[0].values[OTHER] > 0


@every_rule
@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
def test_the_second_runner_relaxes_the_rows_of_its_requests(spelling: str, one_hot: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    slots, temperature = torch.tensor([4, 4, 4, 1, 1, 2]), torch.tensor([1.0, 0.7, 0.0, 1.0, 1.3])
    local = torch.tensor([0, 1, 2, 0, 1, 0])
    logits = torch.randn(6, 5, generator=generator)
    draft_logits = None if one_hot else torch.randn(5, 2, 5, generator=generator)
    fed = torch.tensor([0, 3, 1, 0, 2, 0])  # row i is about the token fed in at row i + 1
    rules = SlotRules(None, torch.device("cpu"), 5)
    sampling = SimpleNamespace(temperature=1.0, extra_args={"acceptance_rule": spelling})
    asked = rules.add_request(4, sampling)
    assert asked == (spelling != "lossless")
    assert not rules.add_request(2, SimpleNamespace(temperature=0.0, extra_args=sampling.extra_args))
    rules.apply(logits, SimpleNamespace(idx_mapping_np=torch.tensor([4, 1, 2]).numpy()))
    relaxed = SlotStep(rules, rows_of_step(rules, logits, draft_logits, fed, slots, local, temperature), 2).logits
    assert torch.equal(relaxed[2:], logits[2:])
    rule = parse_rule(spelling)
    for row in range(2 if asked else 0):
        if changes_one_logit(rule, draft_logits):
            expected = logits[row].clone()
            token_logit, total = expected[fed[row + 1]], logits[row].logsumexp(-1)
            expected[fed[row + 1]] = relax_tokens(rule, token_logit, total).logits
        else:
            probs = (draft_logits[4, row].double() / temperature[4]).softmax(-1)
            expected = relax_rows(rule, logits[row : row + 1], probs.unsqueeze(0), fed[row + 1 : row + 2]).logits[0]
        assert torch.allclose(relaxed[row].softmax(-1), expected.softmax(-1), atol=1e-6)
        assert not torch.equal(relaxed[row], logits[row])
