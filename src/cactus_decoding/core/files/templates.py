"""Pages that are filled in from templates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cactus_decoding.core.extras import needing

if TYPE_CHECKING:
    from jinja2 import Environment


def page_templates(folder: Path) -> Environment:
    """Return the templates of a folder, which are escaped, and which refuse a name that is not given.

    Raises `ValueError` where Jinja2 is not installed.
    """
    with needing("pages need Jinja2", "report"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
