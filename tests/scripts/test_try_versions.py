"""The table of versions: what the page says is in the result file, and what the package says was tried is too."""

from __future__ import annotations

import pytest

from cactus_decoding.engines.transformers import compatibility
from scripts import try_versions
from scripts.marked_page import insert
from scripts.try_versions import PAGE, main, numbers, results, table_of


def test_the_table_of_the_page_is_that_of_the_result_file():
    page = PAGE.read_text()
    assert insert(page, "versions", table_of(results())) == page


def test_the_newest_version_is_left_out_where_it_is_the_installed_one(monkeypatch, capsys):
    monkeypatch.setattr(try_versions, "newest_of", lambda engine: compatibility.transformers.__version__)
    assert numbers("transformers", ["lowest", "newest"]) == [compatibility.TRIED[0]]
    assert "which is installed, is the newest" in capsys.readouterr().out
    monkeypatch.setattr(try_versions, "newest_of", lambda engine: "5.99.0")
    assert numbers("transformers", ["newest", "5.22.2"]) == ["5.99.0", "5.22.2"]


def test_an_engine_and_a_version_must_be_named(capsys):
    with pytest.raises(SystemExit):
        main(["transformers"])
    assert "name an engine and at least one version" in capsys.readouterr().err
