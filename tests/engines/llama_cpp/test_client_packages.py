"""The packages of clients themselves, which ask a real server; the others are asked by benchmarks/clients.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.llama_server import serving

from scripts.bundled_gguf import write_bundled
from scripts.serve_soak import TEMPLATE

ROOT = Path(__file__).resolve().parents[3]
CLIENTS = ["OpenAI", "LangChain", "Pydantic AI", "Open WebUI"]


@pytest.mark.slow
def test_clients_read_in_each_answer_what_they_need(gguf, tmp_path):
    """In a process of their own: they leave connections open."""
    target = write_bundled("target", tmp_path, "q8_0", TEMPLATE)
    given = [f"{target}:context_size=1024", "--draft", str(gguf("worded", "q8_0")), "--threads", "1", "--alias", "ours"]
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with serving(*given, "--parallel", "2", "--num-speculative-tokens", "3", "--port", "0") as running:
        command = [sys.executable, "-m", "benchmarks.clients_asked", f"http://127.0.0.1:{running.port}/v1", *CLIENTS]
        asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    rows = json.loads(asked.stdout)["rows"]
    assert {row["client"] for row in rows} == {*CLIENTS}
    assert [row for row in rows if not row["right"]] == []
