"""The script of a process that renders chat templates, without torch."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

MEMORY = 2**29  # bytes that a template may take


def rendered(asked: dict[str, Any]) -> dict[str, str]:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, _ = render_jinja_template([asked["conversation"]], chat_template=asked["template"], **asked["options"])
        text = str(texts[0])
        if len(text) > asked["most"]:
            return {"error": f"it writes {len(text):,} characters, of which {asked['most']:,} are allowed"}
        return {"text": text}
    except MemoryError:
        return {"error": "it needs more memory than is allowed"}
    except Exception as error:  # templates are programs, and raise what they like
        return {"error": str(error) or type(error).__name__}


def limit_memory() -> None:
    """Let this process take `MEMORY` more than it has, where the system can see to that."""
    try:
        import resource

        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (ImportError, ValueError, OSError):  # such as on Windows, or under a smaller limit
        pass


def render_templates() -> None:
    """Answer lines of JSON from stdin: first an empty object, and then conversations, one at a time."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # which takes seconds to import, and renders nothing
    import transformers.utils.chat_template_utils  # noqa: F401  # so that no template waits for it

    limit_memory()
    for number, line in enumerate(sys.stdin.buffer):
        if number == 0:
            reply: dict[str, Any] = {"ready": True}
        else:
            asked = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, asked["seconds"])  # of processor time, after which this process ends
            reply = rendered(asked)
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    render_templates()
