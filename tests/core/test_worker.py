"""A process of its own has the processor time that it is given, and never answers what somebody else has asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.faults import InjectedError, fail

from cactus_decoding.core import worker
from cactus_decoding.core.worker import WorkerProcess

SCRIPT = """
import json, os, signal, sys, time

for line in sys.stdin:
    asked = json.loads(line)
    signal.setitimer(signal.ITIMER_PROF, asked.get("seconds", 0))
    if asked.get("do") == "work":
        while True:
            pass
    if asked.get("do") == "end":
        os._exit(3)
    time.sleep(asked.get("wait", 0))
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps({"text": "done"}), flush=True)
"""


def worker_for(script, source, does):
    script.write_text(source)
    process = WorkerProcess(script, b"{}", does)
    yield process
    process.close()


@pytest.fixture
def process(tmp_path):
    yield from worker_for(tmp_path / "script.py", SCRIPT, "does as it is told")


def test_who_waits_takes_no_processor_time_and_who_works_is_ended(process):
    assert process.text({"wait": 1.0}, 0.5, "text") == "done"
    first = process._process
    with pytest.raises(ValueError, match=r"^it takes longer than 0\.5 seconds to work$"):
        process.text({"do": "work"}, 0.5, "text", " to work")
    assert first.returncode is not None
    assert process.text({}, 0.5, "text") == "done", "the next one is answered by another process"
    assert process._process is not first


def test_who_never_ends_without_working_is_ended_too_and_who_ends_is_not_late(process, monkeypatch):
    process.start()
    with pytest.raises(ValueError, match="needs more memory"):
        process.text({"do": "end"}, 0.5, "text")
    process.start()
    monkeypatch.setattr(worker, "WALL_SECONDS", 0.2)
    with pytest.raises(ValueError, match="takes longer"):
        process.text({"wait": 600}, 0.5, "text")


ECHO = """
import sys
for line in sys.stdin:
    print("no JSON" if "nonsense" in line else line.strip() or "{}", flush=True)
"""


@pytest.fixture
def echo(tmp_path):
    yield from worker_for(tmp_path / "echo.py", ECHO, "echoes")


def test_nobody_gets_the_reply_to_what_was_interrupted(echo, monkeypatch):
    assert echo.ask({"number": 1}, 30)["number"] == 1
    with monkeypatch.context() as patch:
        patch.setattr(worker, "select", SimpleNamespace(select=fail))
        with pytest.raises(InjectedError):
            echo.ask({"number": 2}, 30)
    assert echo.ask({"number": 3}, 30)["number"] == 3


def test_a_reply_that_is_no_json_ends_the_process_and_the_next_one_starts(echo):
    with pytest.raises(RuntimeError, match="the process that echoes replies by no JSON"):
        echo.text({"number": "nonsense"}, 30, "number")
    assert echo.text({"number": 4}, 30, "number") == "4"
