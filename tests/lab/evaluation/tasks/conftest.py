"""What several tasks need."""

from __future__ import annotations

import pytest


@pytest.fixture
def sentences(tmp_path, monkeypatch):
    """Stand in for NLTK's data, which is downloaded: how English sentences end, with nothing learned."""
    import nltk

    folder = tmp_path / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    for name in ("abbrev_types.txt", "collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (folder / name).write_text("")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk_data")])
