"""The bundled target as anybody's model: in a folder of its own, with a chat template or without one."""

from __future__ import annotations

import shutil
from pathlib import Path

from cactus_decoding import zoo


def save_target(folder: Path, chat_template: str | None) -> str:
    shutil.copytree(zoo.path("target"), folder)
    (folder / "chat_template.jinja").unlink()
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return str(folder)
