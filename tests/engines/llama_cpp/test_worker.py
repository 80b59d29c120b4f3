"""A process that is asked line by line, and never answers what somebody else has asked."""

from types import SimpleNamespace

import pytest
from cactus_decoding.engines.llama_cpp.worker import WorkerProcess
from support.faults import InjectedError, fail

from cactus_decoding.engines.llama_cpp import worker

ECHO = """
import sys
for line in sys.stdin:
    print("no JSON" if "nonsense" in line else line.strip() or "{}", flush=True)
"""


@pytest.fixture
def echo(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    made = WorkerProcess(script, b"{}", "echoes")
    yield made
    made.close()


def test_nobody_gets_the_reply_to_what_was_interrupted(echo, monkeypatch):
    assert echo.ask({"number": 1}, 30) == {"number": 1}
    with monkeypatch.context() as patch:
        patch.setattr(worker, "select", SimpleNamespace(select=fail))
        with pytest.raises(InjectedError):
            echo.ask({"number": 2}, 30)
    assert echo.ask({"number": 3}, 30) == {"number": 3}


def test_a_reply_that_is_no_json_ends_the_process_and_the_next_one_starts(echo):
    with pytest.raises(RuntimeError, match="the process that echoes replies by no JSON"):
        echo.text({"number": "nonsense"}, 30, "number")
    assert echo.text({"number": 4}, 30, "number") == "4"
