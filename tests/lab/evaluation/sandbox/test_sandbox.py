"""Programs that do what they should not: what the kernel forbids fails, and nothing of a program stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cactus_decoding.lab.evaluation.sandbox import ISOLATED_FROM, ProgramLimits, missing_isolation, run_program

SHORT = ProgramLimits(seconds=5.0, cpu_seconds=1)
SLEEPS = ProgramLimits(seconds=1.0)  # for what ends by its time alone
C = "import ctypes, os, time\nlibc = ctypes.CDLL(None)\n"
OUTLIVE = """
for _ in range(4):
    if libc.fork() == 0:
        os.setsid()
        libc.prctl(1, 0, 0, 0, 0)  # no signal when the parent dies
        if libc.fork() == 0:
            time.sleep(600)
        time.sleep(600)
"""
FORK_EXEC = """
import subprocess, sys, types
subprocess.sys = types.SimpleNamespace(**{**vars(sys), "audit": lambda *_: None})  # `fork_exec` has no event of its own
started = subprocess.Popen(["sleep", "600"], start_new_session=True)
assert started.poll() is None
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the folders of programs are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)
    return tmp_path


def processes_in(folder: Path) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = str(each.readlink())
        except OSError:  # it has ended, or is not ours to see
            continue
        if where.startswith(str(folder)):
            found.append(where)
    return found


def left_behind(folder: Path) -> list[str]:
    """Return the files in a folder, and the processes that stand in it."""
    return [*map(str, folder.iterdir()), *processes_in(folder)]


def isolated() -> set[str]:
    return set(ISOLATED_FROM) - set(filter(None, missing_isolation().split(", ")))


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
        # of these Python does not tell its hooks
        "import os; os.mkfifo('here')",
        "import os; os.mkfifo('OUTSIDE')",
        "import sqlite3; sqlite3.connect('here.db').execute('create table t (x)')",
        "import sqlite3; sqlite3.connect('OUTSIDE').execute('create table t (x)')",
        f"{C}assert libc.open(b'here', os.O_CREAT | os.O_WRONLY, 0o644) >= 0",
        "import socket; socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise KeyboardInterrupt",
        "def broken(:",
        "assert False",
        "x = '\ud800",
        "import os\nfor file in range(3, 32):\n    try: os.write(file, b'passed')\n    except OSError: 0",
    ],
)
def test_what_a_program_should_not_do_is_a_wrong_answer_and_leaves_nothing(folder, program):
    outside = folder.parent / f"{folder.name}-outside.txt"
    if "OUTSIDE" in program and "pathlib" not in program and "files" not in isolated():
        pytest.skip("this system permits no namespace for files")
    limits = SLEEPS if "sleep" in program else SHORT
    assert not run_program(program.replace("OUTSIDE", str(outside)), limits=limits).passed
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
    assert run_program("import time; time.sleep(1.5)", limits=limits).passed
    assert limits.seconds >= 20 * ProgramLimits().cpu_seconds, "with ten programs on a core too"


def test_calls_and_results_keep_their_values_and_kinds():
    values = [
        None, True, 1, 10**4000, -0.0, float("inf"), 1e-320, 3 + 4j, "a\n\ud800", b"\x00\xff", (), (1,), [1, (2, [3])],
        {1, "a", (2,)}, set(), frozenset({1}), {1: "a", (2, 3): [4], None: {}}, range(1, 9, 3),
    ]  # fmt: skip
    same = (
        f"inf = float('inf')\nfor value in {values!r}:\n"
        "    for got in (given(value), given(other=value)):\n"
        "        assert type(got) is type(value) and repr(got) == repr(value), (got, value)\n"
        "assert list(given(iter([1, 2]))) == [1, 2]\n"
        "assert given(10**5000) == 10**5000\n"
    )
    assert run_program("def given(x=None, other=None): return other if x is None else x", same, name="given").passed
    assert not run_program("def given(x=None, other=None): return str(x)", same, name="given").passed
    kinds = {"collections.Counter('aab')": "{'a': 2, 'b': 1}", "map(abs, [-1])": "None", "numpy.int64(3)": "3",
             "numpy.float64(0.5)": "0.5", "numpy.bool_(True)": "True", "sys.maxsize": "sys.maxsize"}  # fmt: skip
    program = "import collections, numpy, sys\ndef given(x): return eval(x)"
    for written, read in kinds.items():
        passed = run_program(program, f"import sys\nassert given({written!r}) == {read}", name="given").passed
        assert passed == (read != "None"), written


def test_tests_see_what_the_prompt_defines_and_what_a_call_raises():
    helpers = "import math\ndef twice(x): return 2 * x\ndef f(x): 'no body yet'"
    tests = "assert twice(f(3)) == math.floor(18.5)\ntry: f(0)\nexcept ZeroDivisionError: pass\nelse: assert False"
    assert run_program("def f(x): return 9 * x // x", tests, name="f", helpers=helpers).passed
    assert not run_program("def f(x): return 9", tests, name="f", helpers=helpers).passed
    assert not run_program("def g(x): return 9 * x // x", tests, name="f", helpers=helpers).passed


EVERYTHING = "class Same:\n    def __eq__(self, other): return True\n"
FORGE = """
import gc, os, sys
def f():
    frame, texts = sys._getframe(), ['{"returned": 3}', '"ready"']
    while frame:
        texts += [str(each) for each in frame.f_locals.values()]
        frame = frame.f_back
    texts += [each for each in gc.get_objects() if isinstance(each, str)]
    for text in texts:
        for file in range(32):
            try: os.write(file, text.encode() + b"\\n")
            except OSError: pass
    os._exit(0)
"""
SEARCH = """
import re, sys
def f():
    found = []
    for line in open("/proc/self/maps").read().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        with open("/proc/self/mem", "rb", 0) as file:
            try:
                file.seek(begin)
                found += re.findall(b"in the tests: [0-9a-f]{8}", file.read(end - begin))
            except (OSError, ValueError, OverflowError, MemoryError):
                continue
    return len(found)
"""


@pytest.mark.parametrize(
    "program",
    [
        EVERYTHING + "def f(): return Same()",
        EVERYTHING + "class Text(str, Same): pass\ndef f(): return Text('no')",
        EVERYTHING + "import builtins\nbuiltins.int = Same\ndef f(): return 4",
        "import os\ndef f(): os._exit(0)",
        "import sys\ndef f(): sys.exit(0)",
        "def f(): raise KeyboardInterrupt",
        "def f(): raise AssertionError",
        "def f(): return f()",
        "def f():\n    x = []\n    x.append(x)\n    return x",
        pytest.param("import itertools\ndef f(): return itertools.count()", marks=pytest.mark.slow),
        "def f(): return f",
        f"{C}def f():\n    libc.kill(libc.getppid(), 9)\n    os._exit(0)",
        f"{C}def f():\n    libc.kill(libc.getpgid(0), 9)\n    os._exit(0)",
        f"{C}def f():\n    assert libc.ptrace(16, libc.getppid(), 0, 0) == 0\n    return 3",
        "import os\ndef f():\n    open(f'/proc/{os.getppid()}/mem', 'rb')\n    return 3",
        "import os\nos.write(4, b'\"ready\"\\n')",
        FORGE.replace('{"returned": 3}', "3"),
    ],
)
def test_no_program_can_say_that_it_has_passed(folder, program):
    assert not run_program(program, "assert f() == 3 and False", name="f", limits=SHORT).passed
    assert not run_program(program, "got = f()\nassert type(got) is int and got == 3", name="f", limits=SHORT).passed
    assert left_behind(folder) == []


def test_no_program_sees_the_tests():
    seen = "# in the tests: 0123abcd\nassert f() == {count}"
    assert run_program(SEARCH, seen.format(count=0), name="f").passed
    held = SEARCH + "held = 'in the tests: ' + '0123abcd'\n"
    assert not run_program(held, seen.format(count=0), name="f").passed  # the search finds what is there


def test_past_python_s_own_means_namespaces_hold_where_the_system_permits_them(folder):
    found = isolated()
    outside = folder.parent / f"{folder.name}-outside.txt"
    write = f"assert libc.open({str(outside).encode()!r}, os.O_CREAT | os.O_WRONLY, 0o644) < 0"
    ended = run_program(C + write, limits=SHORT).passed
    assert ended == ("files" in found)
    assert outside.exists() != ended
    alone = "assert [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:] == ['lo']"
    if "network" in found:
        assert run_program(alone, limits=SHORT).passed


@pytest.mark.parametrize("end", ["", "time.sleep(600)", "assert False", "libc.kill(libc.getppid(), 9)"])
def test_no_process_outlives_its_run(folder, end):
    if "processes" not in isolated() and os.getuid() != 0:
        pytest.skip("an ordinary user needs a namespace for processes")
    limits = SLEEPS if "sleep" in end else SHORT
    assert run_program(C + OUTLIVE + end, limits=limits).passed == (end in ("", "libc.kill(libc.getppid(), 9)"))
    assert left_behind(folder) == []


def test_a_program_may_start_another_which_ends_with_it(folder):
    assert run_program(FORK_EXEC, limits=SHORT).passed
    assert left_behind(folder) == []


SANDBOX = "from cactus_decoding.lab.evaluation.sandbox import ProgramLimits, run_program"
ROOT_ONLY = pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root can become somebody else")
WITHOUT_NAMESPACES = """
assert libc.prctl(24, 21, 0, 0, 0) == 0  # no program that it runs gets CAP_SYS_ADMIN
"""
AS_A_USER = """
libc.prctl(8, 1, 0, 0, 0)  # keep one capability, to read Python wherever it is installed
os.setgroups([])
os.setgid(54321)
os.setuid(54321)
read = 1 << 2
libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(read, read, read, 0, 0, 0))
assert libc.prctl(47, 2, 2, 0, 0) == 0
"""


def elsewhere(become: str, folder: Path, programs: dict[str, str]) -> dict[str, list]:
    """Run programs from a process that has become somebody else; return what `run_program` returned."""
    run = "\n".join([
        "import json, sys, tempfile", SANDBOX, "tempfile.tempdir = sys.argv[1]",
        "limits = ProgramLimits(seconds=3.0, cpu_seconds=1)",
        "done = {name: run_program(each, limits=limits) for name, each in json.loads(sys.argv[2]).items()}",
        "print(json.dumps(done))",
    ])  # fmt: skip
    first = f"{C}import sys\n{become}\nos.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    given = [sys.executable, "-c", first, run, str(folder), json.dumps(programs)]
    return json.loads(subprocess.run(given, stdout=subprocess.PIPE, check=True).stdout)


@ROOT_ONLY
@pytest.mark.slow
def test_root_without_namespaces_runs_programs_as_nobody_and_ends_all_of_them(folder):
    grown = folder / "grown"  # where everybody may make files
    programs = {
        "nobody": "import os; assert os.getresuid() == (65534,) * 3",
        "outlive": C + OUTLIVE,
        "fails": C + OUTLIVE + "assert False",
        "sleeps": C + OUTLIVE + "time.sleep(600)",
        "parent": C + OUTLIVE + "libc.kill(libc.getppid(), 9)\ntime.sleep(600)",
        "all": C + OUTLIVE + "libc.kill(-1, 9)\ntime.sleep(600)",
        "fifo": "import os; os.mkfifo('here')",
        "database": "import sqlite3; sqlite3.connect('here.db').execute('create table t (x)')",
        "grows": f"{C}file = libc.open({os.fsencode(grown)!r}, os.O_CREAT | os.O_WRONLY, 0o666)\n"
        "assert file >= 0\nassert libc.write(file, b'x', 1) == 1",
    }
    others = [subprocess.Popen(["sleep", "600"], user=65534) for _ in range(ProgramLimits().processes)]
    try:  # they count as the program's, which needs no further one to run
        crowded = elsewhere(WITHOUT_NAMESPACES, folder, {"nobody": programs["nobody"]})
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert crowded["nobody"][0]
    found = elsewhere(WITHOUT_NAMESPACES, folder, programs)
    assert {name for name, (passed, _) in found.items() if passed} == {"nobody", "outlive"}
    assert all(kinds == [] for _, kinds in found.values())
    assert left_behind(folder) == [str(grown)]
    assert grown.stat().st_size == 0


@ROOT_ONLY
@pytest.mark.slow
def test_an_ordinary_user_s_programs_make_no_files_and_end_with_their_namespace(folder):
    programs = {
        "user": "import os; assert os.getresuid() == (54321,) * 3",
        "outlive": C + OUTLIVE,
        "fails": C + OUTLIVE + "assert False",
        "sleeps": C + OUTLIVE + "time.sleep(600)",
        "fifo": "import os; os.mkfifo('here')",
        "stop": C + "libc.kill(libc.getppid(), 9)\nassert False",
    }
    found = elsewhere(AS_A_USER, folder, programs)
    assert {name for name, (passed, _) in found.items() if passed} == {"user", "outlive"}
    assert found["user"][1] in ([], list(ISOLATED_FROM))
    if "processes" in found["user"][1]:
        assert left_behind(folder) == []


def test_all_ends_where_its_caller_is_killed(folder):
    if "processes" not in isolated() and os.getuid() != 0:
        pytest.skip("an ordinary user needs a namespace for processes")
    program = C + OUTLIVE + "time.sleep(600)"
    lines = f"{SANDBOX}\nimport tempfile\ntempfile.tempdir = {str(folder)!r}\nrun_program({program!r})"
    caller = subprocess.Popen([sys.executable, "-c", lines])
    while len(processes_in(folder)) < 11:  # the three, and eight that would outlive them
        assert caller.poll() is None
        time.sleep(0.02)
    caller.kill()
    caller.wait()
    while processes_in(folder):  # a test that never ends is one that fails
        time.sleep(0.02)
