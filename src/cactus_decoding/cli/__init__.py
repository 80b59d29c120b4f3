"""The `cactus` command. Ctrl-C is quiet from the start, so this file imports nothing that takes time."""

from __future__ import annotations

import atexit
import os
import signal

TYPE_CHECKING = False  # as `typing` has it, whose import takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

__all__ = ["main"]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 for a failed check, 2 for a mistake, 130 for Ctrl-C.

    Without arguments it takes those of the command line, and the process should then end.
    """
    before = signal.getsignal(signal.SIGINT)
    # if Ctrl-C is ignored, as in the background, or somebody else handles it, that is left as it is
    ours = before is signal.default_int_handler and _handle(_leave_imports)
    if ours and arguments is None:  # at the very end Python removes handlers, and another Ctrl-C would kill it
        atexit.register(_handle, signal.SIG_IGN)
    try:
        from cactus_decoding.cli.app import run

        return run(arguments)
    except KeyboardInterrupt:
        if ours:
            _handle(_ignore)
        _say_interrupted()
        return INTERRUPTED
    finally:
        if ours:  # for a second Ctrl-C while Python shuts down
            _handle(_leave if arguments is None else before)


def raise_when_interrupted() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` from now on, also during imports, for work that must end well."""
    if signal.getsignal(signal.SIGINT) is _leave_imports:
        _handle(signal.default_int_handler)


def _handle(handler: Any) -> bool:
    """Set what Ctrl-C does; return whether that is possible here."""
    try:
        signal.signal(signal.SIGINT, handler)
    except ValueError:  # not in the main thread
        return False
    return True


def _leave_imports(number: int, frame: FrameType | None) -> None:
    """End the process at once if it is importing, else raise `KeyboardInterrupt`.

    Libraries that are interrupted while they are imported may swallow the exception, turn it into another, or write
    tracebacks from their C extensions. And during imports there is no work yet that would have to be undone.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _handle(_ignore)  # or a second Ctrl-C would say this twice
            _say_interrupted()
            _leave(number, frame)
        frame = frame.f_back
    raise KeyboardInterrupt


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _say_interrupted() -> None:
    os.write(2, b"cactus: interrupted\n")
