"""Measuring what pays, in a real engine with a server's own options, and a server that follows the numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_run import ENGINE_ENVIRONMENT, SECONDS

from cactus_decoding.engines.vllm import schedule
from cactus_decoding.engines.vllm.server import SERVER_MODULE, server_command, speculative_config

pytestmark = pytest.mark.engine


def test_every_number_is_measured_at_every_size_by_a_server_s_own_options(tmp_path: Path) -> None:
    speculation = speculative_config(None, 2, "greedy")
    further = ["--dtype=float32", "--enforce-eager", "--max-model-len=256", "--gpu-memory-utilization=0.2", "--port=1"]
    command = server_command(None, speculation, None, 0.0, [*further, "--api-key", "key"])
    options = command[command.index(SERVER_MODULE) + 1 :]
    output = tmp_path / "rates.json"
    result = subprocess.run(
        [sys.executable, "-m", schedule.__name__, str(output), *options],
        env=os.environ | ENGINE_ENVIRONMENT,
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-5000:]
    assert json.loads(output.read_text()).keys() == {str(size) for size in schedule.SIZES}
    rates = schedule.read_rates(output)
    assert {size: [*by] for size, by in rates.items()} == {size: [0, 1, 2] for size in schedule.SIZES}
    assert all(rate > 0 for by in rates.values() for rate in by.values())
    assert schedule.parse_schedule(schedule.spelled(schedule.choose(rates)))
