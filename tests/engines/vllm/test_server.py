"""The server's command line, and what `cactus serve` refuses before it starts one."""

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from support.patience import PATIENCE
from support.tables import all_of

from cactus_decoding.cli import main
from cactus_decoding.core.counters import REPORTED, report_of
from cactus_decoding.engines.vllm import server
from cactus_decoding.engines.vllm.extra_args import ServerConfig, request_of
from cactus_decoding.engines.vllm.reports import ATTRIBUTE, with_counts
from cactus_decoding.engines.vllm.schedule import vllm_schedule
from cactus_decoding.engines.vllm.server import memory_arguments, run_server, server_command, speculative_config
from cactus_decoding.engines.vllm.v2 import SlotRules


def test_the_server_s_command() -> None:
    speculation = speculative_config(None, 3, "probabilistic")
    default = request_of({"acceptance_rule": "cactus:delta=1", "budget": 2})
    command = server_command(None, speculation, default, 0.1, ["--port", "9"])
    options = dict(zip(command[3::2], command[4::2], strict=True))
    assert options["--model"].endswith("target")
    assert json.loads(options["--speculative-config"]) == speculation
    ours = {"acceptance_rule": "cactus:delta=1.0", "budget": 2.0, "audit_fraction": 0.1}
    assert json.loads(options["--additional-config"]) == ours
    assert options["--port"] == "9"
    by_size = speculative_config("ngram", ((1, 3), (5, 0)), "greedy")
    assert by_size == vllm_schedule(((1, 3), (5, 0))) | {"method": "ngram", "prompt_lookup_max": 4}
    command = server_command(None, speculation, default, 0.0, [], client_rules=False)
    assert json.loads(command[-1]) == {"acceptance_rule": "cactus:delta=1.0", "budget": 2.0, "client_rules": False}
    policy = {"protect": r"^ ?\d", "lossless_tokens": 4, "relax_within": ["<a>", "</a>"]}
    default = request_of({"acceptance_rule": "cactus:delta=1"} | policy, any_pattern=True)
    ours = {"acceptance_rule": "cactus:delta=1.0", "protect_threshold": 0.01} | policy
    assert json.loads(server_command(None, {}, default, 0.0, [])[-1]) == ours


@all_of("given", [["--additional-config", "{}"], ["--additional-config={}"]])
def test_a_configuration_that_would_drop_the_rule_is_refused(given: list[str]) -> None:
    default = request_of({"acceptance_rule": "cactus:delta=1"})
    with pytest.raises(ValueError, match="--additional-config would drop acceptance_rule"):
        server_command(None, {}, default, 0.0, given)
    assert server_command(None, {}, None, 0.0, given)[-len(given) :] == given
    with pytest.raises(ValueError, match="--additional-config would drop client_rules"):
        server_command(None, {}, None, 0.0, given, client_rules=False)


@all_of(
    "arguments, said",
    [
        (["--rule", "typical"], "does not work in vLLM"),
        (["--protect", "digits"], "without acceptance_rule"),
        (["--rule", "cactus:delta=1", "--protect", "("], "protect must be one of"),
        (["--draft-sampling", "x"], "draft_sampling must be one of"),
        (["some-model", "--draft", "bundled:draft"], "give TARGET and --draft"),
        (["--num-speculative-tokens", "0"], "num_speculative_tokens must be at least 1"),
        (
            ["--num-speculative-tokens", "confidence"],
            "must be an integer of at least 1, auto, or pairs such as 1:4,3:2,5:0, but is",
        ),
        (["--num-speculative-tokens", "2:4"], "must begin with 1 and rise"),
    ],
)
def test_mistakes_end_before_a_server_starts(capsys, arguments: list[str], said: str) -> None:
    assert main(["serve", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_notes_on_the_server_s_rule(monkeypatch, capsys) -> None:
    def said(rule: str) -> str:
        assert main(["serve", "--rule", rule, "--additional-config={}"]) == 2  # ends before a server starts
        return capsys.readouterr().err

    assert "also lifts tokens" in said("cactus:delta=1")
    assert "also lifts tokens" not in said("clamped:width=1")
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert "ignore the rule" not in said("clamped:width=1")
    for loaded, refused in (("", True), ("others,more", True), ("others,cactus_decoding", False)):
        monkeypatch.setenv("VLLM_PLUGINS", loaded)
        assert ("ignore the rule" in said("clamped:width=1")) == refused


@all_of("ends, code, said", [("0", 1, "nobody asked it to"), ("7", 7, "")])
def test_a_server_that_ends_on_its_own_has_failed(capfd, ends: str, code: int, said: str) -> None:
    assert run_server([sys.executable, "-c", f"raise SystemExit({ends})"]) == code
    assert said in capfd.readouterr().err


WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
signal.pause()
"""


def test_a_server_that_is_told_to_end_has_not() -> None:
    command = [sys.executable, "-c", WAITS]
    run = f"import sys; from {run_server.__module__} import run_server; sys.exit(run_server({command}))"
    with subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 0


DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as an engine does that is starting
if "child" not in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1], "child"])
    print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_server_that_does_not_listen_is_ended_with_all_that_it_started(number: signal.Signals) -> None:
    command = [sys.executable, "-c", DEAF, DEAF]
    heard = f"import signal; signal.signal({int(number)}, signal.SIG_DFL)"  # also where the tests run under nohup
    run = f"import sys; import {server.__name__} as server; server.SECONDS_TO_END = 0.5"
    run += f"; sys.exit(server.run_server({command}))"
    with subprocess.Popen([sys.executable, "-c", f"{heard}; {run}"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=PATIENCE) == 128 + signal.SIGKILL
        assert process.stdout.read() == b""  # until the last of those who have it is gone


def test_the_memory_that_is_free_is_asked_for_where_the_user_does_not_say() -> None:
    assert memory_arguments(["--port", "9"], 0.6) == ["--gpu-memory-utilization", "0.60"]
    assert memory_arguments([], 0.001) == ["--gpu-memory-utilization", "0.01"]
    assert memory_arguments([], 0.92) == []
    small, start = 17.1, 1.8  # GiB: a node, and what vLLM's processes took of it before its worker looked
    share = server.share_left(round(0.976 * small * 2**30), round(small * 2**30))
    assert float(memory_arguments([], share)[1]) < 0.976 - start / small
    for given in (["--gpu-memory-utilization", "0.9"], ["--gpu_memory_utilization=0.9"], ["--kv-cache-memory-bytes=9"]):
        assert memory_arguments(given, 0.6) == []


def runner(slots: int) -> tuple[SimpleNamespace, SlotRules]:
    """Return what a worker of the V2 runner has, with two requests of which one asks for a report."""
    prompts = SimpleNamespace(np=torch.zeros(slots, dtype=torch.int32).numpy())
    states = SimpleNamespace(device=torch.device("cpu"), max_num_reqs=slots, prompt_len=prompts, prefill_len=prompts)
    rules = SlotRules(ServerConfig(), states)
    for slot, more in ((2, {}), (1, {"acceptance_report": 1})):
        asked = {"acceptance_rule": "cactus:delta=1"} | more
        rules.add_request(slot, SimpleNamespace(temperature=1.0, extra_args=asked))
    states.req_id_to_index = {"silent": 2, "asking": 1, "waiting": 3}
    sampler = SimpleNamespace(logits_processors=[object(), rules])
    return SimpleNamespace(req_states=states, sampler=sampler), rules


@pytest.mark.parametrize("held", [None, "model_runner_output", "_model_runner_output"])
def test_a_worker_adds_counts_to_what_it_hands_on(held: str | None) -> None:
    model_runner, rules = runner(4)
    rules.meter.counts[rules.meter_slots[1]] = torch.arange(len(REPORTED)).double()
    inner = SimpleNamespace(req_ids=["waiting", "asking", "silent", "gone"])
    given = inner if held is None else SimpleNamespace(**{held: inner})
    worker = SimpleNamespace(model_runner=model_runner)
    output = with_counts(lambda worker, grammar: given)(worker, None)
    assert output is given
    assert getattr(inner, ATTRIBUTE) == {"asking": [0, 1, 2, 3, 4, 5]}


def test_nothing_is_added_where_nobody_asks_or_nothing_is_handed_on() -> None:
    model_runner, rules = runner(4)
    worker = SimpleNamespace(model_runner=model_runner)
    others = SimpleNamespace(req_ids=["silent"])
    assert not hasattr(with_counts(lambda *_: others)(worker), ATTRIBUTE)
    assert with_counts(lambda *_: None)(worker) is None
    rules.requests.clear()
    asking = SimpleNamespace(req_ids=["asking"])
    assert not hasattr(with_counts(lambda *_: asking)(worker), ATTRIBUTE)


def test_what_nobody_knows_is_none() -> None:
    report = report_of([float("nan")] * len(REPORTED), [3], [2])
    assert {report[name] for name in REPORTED} == {None}
    assert (report["drafted_by_position"], report["accepted_by_position"]) == ([3], [2])
    known = report_of([0.25, 4, 3, 1.5, 2, 1], [3], [2])
    assert {name: known[name] for name in REPORTED} == {
        "nats": 0.25, "verified_positions": 4, "accepted_tokens": 3, "relaxed_tokens": 1.5,
        "fell_back_positions": 2, "protected_positions": 1,
    }  # fmt: skip
