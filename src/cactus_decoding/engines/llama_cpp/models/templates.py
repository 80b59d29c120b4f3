"""Chat templates of files, which are programs of strangers: they run in a process of its own."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from functools import cache
from typing import Any

from cactus_decoding.core.models import tokenizers
from cactus_decoding.core.worker import WorkerProcess
from cactus_decoding.engines.llama_cpp.models import rendering


def start() -> None:
    """Start the process, so that the first conversation does not wait for it."""
    _worker().start()


def render(template: str, conversation: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
    seconds = tokenizers.TEMPLATE_SECONDS
    asked = {"template": template, "conversation": conversation, "options": dict(options), "seconds": seconds}
    return _worker().text(asked | {"most": tokenizers.MAX_TEMPLATE_TEXT}, seconds, "text")


@cache
def _worker() -> WorkerProcess:
    """Return the one process, which knows no file: each template comes with its conversation."""
    made = WorkerProcess(rendering.__file__, b"{}", "renders chat templates")
    atexit.register(made.close)
    return made
