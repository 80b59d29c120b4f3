"""Programs that do what they should not: each ends as a wrong answer, and nothing of it stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from cactus_decoding.lab.evaluation.sandbox import KINDS, ProgramLimits, missing_isolation, run_program

SHORT = ProgramLimits(seconds=5.0, cpu_seconds=1)
C = "import ctypes, os, time\nlibc = ctypes.CDLL(None)\n"
FORK = C + "for _ in range(100):\n    if libc.fork() == 0:\n        os.setsid()\n        time.sleep(600)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the folders of programs are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    return tmp_path


def left_behind(folder: Path) -> list[str]:
    """Return the files in a folder, and the processes that stand in it."""
    processes = []
    for each in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = str(each.readlink())
        except OSError:  # it has ended, or is not ours to see
            continue
        if where.startswith(str(folder)):
            processes.append(where)
    return [*map(str, folder.iterdir()), *processes]


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import os\nwhile True: os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "x = bytearray(8 << 30)",
        "x = []\nwhile True: x.append(' ' * 10**7)",
        "open('here.txt', 'w').write('x')",
        "import pathlib; pathlib.Path('OUTSIDE').write_text('x')",
        "import os; os.mkdir('here')",
        "import socket; socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise KeyboardInterrupt",
        "def broken(:",
        "assert False",
        "x = '\\ud800",
        # the word by which a program's own end is told
        "import os\nfor file in range(3, 32):\n    try: os.write(file, b'passed')\n    except OSError: 0",
    ],
)
def test_what_a_program_should_not_do_is_a_wrong_answer_and_leaves_nothing(folder, program):
    outside = folder.parent / f"{folder.name}-outside.txt"
    assert not run_program(program.replace("OUTSIDE", str(outside)), SHORT).passed
    assert left_behind(folder) == []
    assert not outside.exists()


def test_what_passes_leaves_nothing_either(folder):
    for program in (
        "import collections, math, re, typing\nprint('x' * 10**6)\nassert math.isclose(0.1 + 0.2, 0.3)",
        "import threading\nthread = threading.Thread(target=print)\nthread.start()\nthread.join()",
    ):
        assert run_program(program).passed
    assert left_behind(folder) == []


def test_the_clock_ends_what_waits_and_decides_nothing_else():
    limits = ProgramLimits(cpu_seconds=1)
    assert run_program("import time; time.sleep(1.5)", limits).passed
    assert limits.seconds >= 20 * ProgramLimits().cpu_seconds, "with ten programs on a core too"


def test_past_python_s_own_means_namespaces_hold_where_the_system_permits_them(folder):
    isolated = set(KINDS) - set(filter(None, missing_isolation().split(", ")))
    outside = folder.parent / f"{folder.name}-outside.txt"
    write = f"assert libc.open({str(outside).encode()!r}, os.O_CREAT | os.O_WRONLY, 0o644) < 0"
    ended = run_program(C + write).passed
    assert ended == ("files" in isolated)
    assert outside.exists() != ended
    alone = "assert [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:] == ['lo']"
    if "network" in isolated:
        assert run_program(alone).passed
    if "processes" in isolated:
        assert not run_program(FORK + "time.sleep(600)", SHORT).passed
        assert not run_program(FORK + "assert False", SHORT).passed
        assert left_behind(folder) == []
