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
    """Return a conversation as a template writes it, by transformers' own sandboxed Jinja.

    Args:
        template: in Jinja.
        conversation: messages, each with a role and most with content.
        options: further names that the template knows.

    Raises:
        ValueError: for a template that fails, takes longer than `tokenizers.TEMPLATE_SECONDS`, writes more than
            `tokenizers.MAX_TEMPLATE_TEXT` characters, or needs more than `rendering.MEMORY`.
    """
    seconds = tokenizers.TEMPLATE_SECONDS
    asked = {"template": template, "conversation": conversation, "options": dict(options), "seconds": seconds}
    return _worker().text(asked | {"most": tokenizers.MAX_TEMPLATE_TEXT}, seconds, "text")


@cache
def _worker() -> WorkerProcess:
    """Return the one process, which knows no file: each template comes with its conversation."""
    made = WorkerProcess(rendering.__file__, b"{}", "renders chat templates")
    atexit.register(made.close)
    return made
