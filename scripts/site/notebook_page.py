"""An executed notebook as a page: its text, its code, and what the code gave."""

from __future__ import annotations

import base64
import json
from typing import Any


def notebook_page(text: str) -> str:
    """Return the Markdown of a notebook in Jupyter's format 4."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif source.strip():
            parts.append(f"```python\n{source}\n```")
            parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """Return an output: a picture as one file with the page, everything else as text."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        picture = base64.b64encode("".join(data["image/svg+xml"]).encode()).decode()
        return f"![the picture that this cell draws](data:image/svg+xml;base64,{picture})"
    lines = "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n")
    return f"```text\n{lines}\n```"
