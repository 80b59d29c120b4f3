"""The process that runs one program: it gives up what it can, then runs it. A script, never imported by the package.

Its arguments are a file descriptor and limits as JSON. On the descriptor it reports what it was isolated from and
whether the program came to its end. Standard input holds a line with a secret, and then the program. The secret is
reported at the end, so that no program passes by leaving early.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 27, 1 << 28, 1 << 29, 1 << 30
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 1, 8, 38
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
CAPABILITY_VERSION, CAP_DAC_READ_SEARCH = 0x20080522, 1 << 2
NOBODY = 65534
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link", "os.mkdir",
    "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.setxattr", "os.startfile", "os.symlink", "os.system",
    "os.truncate", "os.utime", "pty.", "shutil.", "socket.", "subprocess.",
)  # fmt: skip


def forbid(event: str, arguments: tuple[Any, ...]) -> None:
    """End the process where the program is about to write a file, start a process or open a socket."""
    writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
    if writing or event.startswith(FORBIDDEN):
        os._exit(1)


def limit(limits: dict[str, float]) -> None:
    bounds = {"CPU": limits["cpu_seconds"], "AS": limits["memory_bytes"], "FSIZE": limits["file_bytes"],
              "NOFILE": limits["open_files"], "NPROC": limits["processes"], "CORE": 0}  # fmt: skip
    for name, bound in bounds.items():
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(bound), int(bound)))
        except (AttributeError, OSError, ValueError):  # some systems lack some
            continue


def unshare(libc: ctypes.CDLL, user: int, group: int) -> list[str]:
    """Leave the network, other processes and shared mounts, as far as the system permits; return what was left."""
    kinds = {"network": CLONE_NEWNET, "processes": CLONE_NEWPID | CLONE_NEWIPC, "files": CLONE_NEWNS}
    if user != 0:
        if libc.unshare(CLONE_NEWUSER):
            return []
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return [name for name, flags in kinds.items() if libc.unshare(flags) == 0]


def make_read_only(libc: ctypes.CDLL, folder: str) -> bool:
    """Make every file system read-only except the folder; return whether that worked."""

    def set_read_only(path: bytes, *, recursive: bool, on: bool) -> int:
        attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY if on else 0, 0 if on else MOUNT_ATTR_RDONLY, 0, 0)
        flags = AT_RECURSIVE if recursive else 0
        size = ctypes.sizeof(attributes)
        return int(libc.syscall(MOUNT_SETATTR, AT_FDCWD, path, flags, ctypes.byref(attributes), size))

    path = os.fsencode(folder)
    failed = (
        libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
        or libc.mount(path, path, None, ctypes.c_ulong(MS_BIND), None)
        or set_read_only(b"/", recursive=True, on=True)
        or set_read_only(path, recursive=False, on=False)
    )
    os.chdir(folder)  # in the mount that was made of it
    return not failed


def drop_privileges(libc: ctypes.CDLL) -> None:
    """Become nobody if we are root, and give up every capability, except reading files where Python needs it."""
    kept = 0
    if os.getuid() == 0:
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.chown(".", NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        if not all(os.access(path, os.R_OK) for path in sys.path if "/" in path and not path.endswith(".zip")):
            kept = CAP_DAC_READ_SEARCH  # Python is installed where only root reads
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)(kept, kept))


def main() -> None:
    report, limits = int(sys.argv[1]), json.loads(sys.argv[2])
    secret, _, program = sys.stdin.buffer.read().decode().partition("\n")
    isolated: list[str] = []
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        isolated = unshare(libc, os.getuid(), os.getgid())
        if child := os.fork():  # the first process of a new namespace: with it all others in it end
            os.waitpid(child, 0)
            os._exit(0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if "files" in isolated and not make_read_only(libc, os.getcwd()):
            isolated.remove("files")
        drop_privileges(libc)
    limit(limits)
    os.write(report, (" ".join(isolated) + "\n").encode())
    sys.addaudithook(forbid)
    try:
        exec(program, {})
    except BaseException:
        os._exit(1)
    os.write(report, secret.encode())
    os._exit(0)


if __name__ == "__main__":
    main()
