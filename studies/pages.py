"""A study's page of the documentation, and the page beside it that has its long tables."""

from __future__ import annotations

from pathlib import Path

from cactus_decoding.core.files.writing import write_atomically
from scripts.pages import insert


def tables_of(page: Path) -> Path:
    """Return where the long tables of a study's page are."""
    return page.parent / "tables" / page.name


class StudyPage:
    """Both pages of a study, as text: a table goes where its marks are."""

    def __init__(self, page: Path) -> None:
        paths = (page, tables_of(page))
        self._texts = {path: path.read_text() for path in paths if path.exists() or path == page}

    def insert(self, name: str, table: str) -> None:
        """Replace what stands between the marks of this name, on whichever page has them."""
        places = [path for path, text in self._texts.items() if f"<!-- begin: {name} -->" in text]
        path = next(iter(places or self._texts))
        self._texts[path] = insert(self._texts[path], name, table)

    def write(self) -> None:
        for path, text in self._texts.items():
            write_atomically(path, text)


def picture_folder(page: Path, study: str) -> Path:
    """Return the folder of a study's pictures, beside its page."""
    folder = page.parent / "pictures" / study
    folder.mkdir(parents=True, exist_ok=True)
    return folder
