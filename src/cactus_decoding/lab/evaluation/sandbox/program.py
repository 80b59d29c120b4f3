"""Judges one program in three processes: one that watches, one that runs the tests, and one that runs the program.

A script, never imported by the package. Its argument is a file descriptor that the asker holds the other end of: when
that is closed, everything ends. Standard input holds two lines of JSON: what the program is and its limits, and then
the tests, which only the process reads that runs them. On standard output it says what the program was isolated from,
and whether it passed.

The tests call the program's function through pipes, and take plain data for an answer. So the program never sees them,
and the only proof of having passed them is how the process ends that runs them.
"""

import builtins
import ctypes
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 27, 1 << 28, 1 << 29, 1 << 30
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 8, 36, 38
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
    """End the process where the program is about to write a file, start a process or open a socket.

    That stops accidents. Python has ways around it, such as `ctypes`; what holds against these is the kernel's.
    """
    writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
    if writing or event.startswith(FORBIDDEN):
        os._exit(1)


def limit(limits: dict[str, float]) -> None:
    bounds = {"CPU": limits["cpu_seconds"], "AS": limits["memory_bytes"], "FSIZE": 0,
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
    return [name for name, flags in kinds.items() if libc.unshare(flags) == 0 and (name != "files" or read_only(libc))]


def read_only(libc: ctypes.CDLL) -> bool:
    """Make every file system read-only; return whether that worked."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    given = ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes))
    failed = libc.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    return not (failed or libc.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, *given))


def drop_privileges(libc: ctypes.CDLL) -> None:
    """Become nobody if we are root, and give up every capability, except reading files where Python needs it."""
    kept = 0
    if os.getuid() == 0:
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        if not all(os.access(path, os.R_OK) for path in sys.path if "/" in path and not path.endswith(".zip")):
            kept = CAP_DAC_READ_SEARCH  # Python is installed where only root reads
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)(kept, kept))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # which becoming somebody else has cleared


ITEMS = (tuple, list, frozenset, set)
PARTS: dict[str, Callable[[list[Any]], Any]] = {
    "bytes": bytes,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
}


def pack(value: Any) -> Any:
    """Return plain data for JSON, everything but scalars as its kind and its items; `TypeError` for other objects."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    for kind in ITEMS:
        if isinstance(value, kind):
            return {kind.__name__: [*map(pack, value)]}
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(each)] for key, each in value.items()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": [*value]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, Iterator):
        return {"iterator": [*map(pack, value)]}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():  # one of its numbers
        return pack(value.item())
    raise TypeError(f"tests and programs exchange plain data alone, but this is a {type(value).__name__}")


def unpack(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((name, items),) = value.items()
    if name in PARTS:
        return PARTS[name](items)
    if name == "dict":
        return {unpack(key): unpack(each) for key, each in items}
    if name == "iterator":
        return iter([*map(unpack, items)])
    return next(kind for kind in ITEMS if kind.__name__ == name)(map(unpack, items))


def tell(file: IO[str], message: object) -> None:
    file.write(json.dumps(message) + "\n")
    file.flush()


def answer_calls(task: dict[str, Any], asked: IO[str], answers: IO[str]) -> NoReturn:
    """Run the program, and answer calls of its function until it ends."""
    try:
        namespace: dict[str, Any] = {}
        sys.addaudithook(forbid)
        exec(task["code"], namespace)
        tell(answers, "ready")
        for line in asked:
            args, keywords = unpack(json.loads(line))
            try:
                reply = {"returned": pack(namespace[task["name"]](*args, **keywords))}
            except Exception as error:
                reply = {"raised": type(error).__name__}
            tell(answers, reply)
    except BaseException:
        tell(answers, "ended")  # as processes that it has started may keep the pipe open
    os._exit(1)


def judge(task: dict[str, Any], ends: int) -> NoReturn:
    """Run the tests, with the program in a process of its own, and end with 0 if they pass."""
    asked, asks = os.pipe()
    answers, says = os.pipe()
    given, nothing = os.dup(0), os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    program = os.fork()
    limit(task["limits"])  # not before: another process may be one too many
    if program == 0:
        for other in (ends, asks, answers, given, nothing):
            os.close(other)
        with open(asked) as calls, open(says, "w") as replies:
            answer_calls(task, calls, replies)
    os.close(asked)
    os.close(says)
    try:
        with open(asks, "w") as calls, open(answers) as replies:
            if json.loads(replies.readline()) == "ready":
                with open(given) as file:
                    tests = json.load(file)
                run_tests(tests, task["name"], calls, replies)
                os._exit(0)
    finally:
        os._exit(1)


def run_tests(tests: dict[str, str], name: str, calls: IO[str], replies: IO[str]) -> None:
    def call(*args: Any, **keywords: Any) -> Any:
        tell(calls, pack([args, keywords]))
        ((how, what),) = json.loads(replies.readline()).items()
        if how == "returned":
            return unpack(what)
        kind = getattr(builtins, str(what), None)
        raise kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError

    namespace: dict[str, Any] = {}
    exec(tests["helpers"], namespace)
    namespace[name] = call
    exec(tests["tests"], namespace)


def end_children() -> None:
    """Kill the processes below this one until there are none: those that lose their parent become its children."""
    own = os.getpid()
    while True:
        for each in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{each}/stat") as file:
                    parent = file.read().rpartition(")")[2].split()[1]
                if int(parent) == own:
                    os.kill(int(each), signal.SIGKILL)
            except OSError:  # it has ended
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main() -> NoReturn:
    alive = int(sys.argv[1])
    with open(0, "rb", buffering=0, closefd=False) as file:  # no further than its first line
        task = json.loads(file.readline())
    sys.set_int_max_str_digits(0)
    isolated: list[str] = []
    linux = sys.platform == "linux"
    libc = ctypes.CDLL(None, use_errno=True)
    if linux:
        libc.syscall.restype = ctypes.c_long
        isolated = unshare(libc, os.getuid(), os.getgid())
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # nobody reads or writes our memory, nor that of processes below
    ended, ends = os.pipe()
    tester = os.fork()
    if tester == 0:  # the first process of a new namespace: with it all others in it end
        os.close(alive)
        os.close(ended)
        if linux:
            drop_privileges(libc)
        judge(task, ends)
    os.close(ends)
    select.select([alive, ended], [], [], task["limits"]["seconds"])
    os.kill(tester, signal.SIGKILL)  # which changes nothing if it has ended
    passed = os.waitpid(tester, 0)[1] == 0
    if linux:
        end_children()
    os.write(1, json.dumps({"isolated": isolated, "passed": passed}).encode())
    os.killpg(0, signal.SIGKILL)  # ourselves, and elsewhere than on Linux whoever is left
    os._exit(1)


if __name__ == "__main__":
    main()
