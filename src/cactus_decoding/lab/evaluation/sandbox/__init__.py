"""Runs programs that a model wrote, with limits, and says whether they came to their ends."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

KINDS = ("network", "processes", "files")
"""What a program can be kept from by namespaces, where the system permits them."""


@dataclass(frozen=True)
class ProgramLimits:
    """What a program may use. The limit on processor time is that of `evaluate`'s ``code_eval``."""

    cpu_seconds: int = 3
    seconds: float = 120.0  # by the clock, for what waits: a busy machine must not decide what is right
    memory_bytes: int = 2**30
    file_bytes: int = 2**20
    open_files: int = 32
    processes: int = 16


class ProgramResult(NamedTuple):
    """Whether a program came to its end without an error, and which of `KINDS` namespaces kept it from."""

    passed: bool
    isolated: tuple[str, ...]


def run_program(program: str, limits: ProgramLimits | None = None) -> ProgramResult:
    """Run a program of Python in a process of its own, and leave nothing behind.

    In every case it has a fresh folder and limits of time, memory, processes and files. It ends if it writes a file,
    starts a process or opens a socket by Python's own means. On Linux, where namespaces are permitted, it has no
    network, can write to no file system except that folder, and all its processes end with it; root becomes nobody.
    It can read what its user (or nobody) can read, and nothing keeps it from finding holes in the kernel.
    """
    secret, limits = secrets.token_hex(16), limits or ProgramLimits()
    arguments = json.dumps(asdict(limits))
    # what a program leaves there must not stop us from removing the folder
    with TemporaryDirectory(prefix="cactus-program-", ignore_cleanup_errors=True) as folder:
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(Path(__file__).with_name("program.py")), str(writes), arguments],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[writes], cwd=folder,
            start_new_session=True, env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        os.close(writes)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(f"{secret}\n{program}".encode(errors="replace"), limits.seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            said = b""
            with suppress(BlockingIOError):  # nothing was said, and somebody could still say something
                said = os.read(reads, 1024)
            os.close(reads)
    isolated, _, proof = said.decode(errors="replace").partition("\n")
    return ProgramResult(secrets.compare_digest(proof, secret), tuple(isolated.split()))


def missing_isolation() -> str:
    """Return those `KINDS` that programs are not isolated from on this machine, for people."""
    return ", ".join(kind for kind in KINDS if kind not in run_program("").isolated)
