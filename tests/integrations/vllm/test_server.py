"""The server's command line, and what `cactus serve` refuses before it starts one."""

from __future__ import annotations

import json

import pytest

from cactus_decoding.cli import main
from cactus_decoding.integrations.vllm.request import request_of
from cactus_decoding.integrations.vllm.server import server_command, speculative_config


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


def test_what_a_server_protects() -> None:
    policy = {"protect": r"^ ?\d", "lossless_tokens": 4, "relax_within": ["<a>", "</a>"]}
    default = request_of({"acceptance_rule": "cactus:delta=1"} | policy, any_pattern=True)
    command = server_command(None, {}, default, 0.0, [])
    ours = {"acceptance_rule": "cactus:delta=1.0", "protect_threshold": 0.01} | policy
    assert json.loads(command[command.index("--additional-config") + 1]) == ours


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rule", "typical"], "does not work in vLLM"),
        (["--rule", "cactus:delta=x"], "delta must be a number"),
        (["--budget", "1"], "without acceptance_rule"),
        (["--protect", "digits"], "without acceptance_rule"),
        (["--rule", "cactus:delta=1", "--protect", "("], "protect must be one of"),
        (["--rule", "cactus:delta=1", "--protect-threshold", "0.1"], "that of a pattern in protect"),
        (["--rule", "cactus:delta=1", "--relax-within", "a", "a"], "two different texts"),
        (["--draft-sampling", "x"], "draft_sampling must be one of"),
        (["some-model"], "give TARGET and --draft"),
        (["--num-speculative-tokens", "0"], "num_speculative_tokens must be at least 1"),
    ],
)
def test_mistakes_end_before_a_server_starts(arguments: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["serve", *arguments]) == 2
    assert said in capsys.readouterr().err
