"""Runs programs that a model wrote, with limits, and says whether they pass tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ISOLATED_FROM = ("network", "processes", "files")
"""What a program can be kept from by namespaces, where the system permits them."""
SECONDS_TO_END_ALL = 10.0
"""Seconds that ending all processes may take."""


@dataclass(frozen=True)
class ProgramLimits:
    """What a program may use; all but ``seconds`` hold for each of its processes.

    The limit on processor time is that of `evaluate`'s ``code_eval``.
    """

    cpu_seconds: int = 3
    seconds: float = 120.0  # by the clock, for what waits: a busy machine must not decide what is right
    memory_bytes: int = 2**30
    open_files: int = 32
    processes: int = 16  # of its user, wherever they came from


class ProgramResult(NamedTuple):
    """Whether a program passed its tests, and which of `ISOLATED_FROM` namespaces kept it from."""

    passed: bool
    isolated: tuple[str, ...]


def run_program(
    code: str, tests: str = "", *, name: str = "", helpers: str = "", limits: ProgramLimits | None = None
) -> ProgramResult:
    """Run a program of Python and tests of its function ``name``, each in a process of its own, and end both.

    Before the tests ``helpers`` are run; both call the function by its name. Only calls and their results pass between
    the two processes, as plain data: None, numbers, texts, bytes, tuples, lists, sets, dictionaries, ranges, iterators.
    So the program does not see the tests, and cannot say that it has passed them. Nobody can tell whether it worked
    its results out or guessed them.

    The kernel enforces the limits, and that no file grows. On Linux, where namespaces are permitted, it also enforces
    that there is no network, that no file is made or changed, and that all processes end with the run, even if the
    caller is killed. If the caller is root, the program is nobody, and its processes end without namespaces too.

    Nothing else is promised. The means by which Python usually writes files, starts processes and opens sockets are
    stopped everywhere, but Python has ways around that. The program can start processes, can read what its user can
    read, can connect to sockets that lie in the file system, and may find holes in the kernel. Without namespaces an
    ordinary user's program can do whatever its user can, within the limits.
    """
    limits = limits or ProgramLimits()
    first = json.dumps({"code": code, "name": name, "limits": asdict(limits)})
    given = f"{first}\n{json.dumps({'helpers': helpers, 'tests': tests})}\n".encode()
    reads, writes = os.pipe()
    said = b""
    # what a program leaves in the folder must not stop us from removing it
    cleared = TemporaryDirectory(prefix="cactus-program-", ignore_cleanup_errors=True)
    # the pipe's end ends the run, also where we are killed
    with cleared as folder, open(reads, "rb") as alive, open(writes, "wb") as held:
        os.chmod(folder, 0o555)
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(Path(__file__).with_name("program.py")), str(alive.fileno())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[alive.fileno()],
            cwd=folder, start_new_session=True, env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            with suppress(subprocess.TimeoutExpired):
                said, _ = process.communicate(given, limits.seconds + SECONDS_TO_END_ALL)
        finally:
            held.close()
            _end(process)
    if not said:  # it was killed, as an ordinary user's program can do
        return ProgramResult(False, ())
    answer = json.loads(said)
    return ProgramResult(answer["passed"], tuple(answer["isolated"]))


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:  # which closes its pipes
        try:
            process.wait(SECONDS_TO_END_ALL)
        except subprocess.TimeoutExpired:  # the program has stopped it, as an ordinary user's can
            os.killpg(process.pid, signal.SIGKILL)


def missing_isolation() -> str:
    """Return those `ISOLATED_FROM` that programs are not isolated from on this machine, for people."""
    return ", ".join(kind for kind in ISOLATED_FROM if kind not in run_program("").isolated)
