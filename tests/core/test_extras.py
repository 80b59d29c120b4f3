"""Hints at optional dependencies: a command that works from where the package was installed."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.result_files import several, write

from cactus_decoding.core import extras
from cactus_decoding.core.extras import install_command, install_conform, needing

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TRAIN = ("train-draft", "--target", "bundled", "--draft", "bundled:worded", "--data", "word_problems:split=train")


def test_a_clone_installs_itself():
    assert shlex.split(install_command("report")) == [sys.executable, "-m", "pip", "install", "-e", f"{ROOT}[report]"]


@pytest.mark.parametrize(
    ("recorded", "origin"),
    [
        (None, ""),
        ({"url": "file:///a/clone", "dir_info": {}}, " @ file:///a/clone"),
        ({"url": "file:///a/b-1.0.whl", "archive_info": {}}, " @ file:///a/b-1.0.whl"),
        ({"url": "https://a/b.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}}, " @ git+https://a/b.git@12ab"),
    ],
)
def test_an_installed_package_is_installed_again_from_where_it_came(recorded, origin, tmp_path, monkeypatch):
    text = None if recorded is None else json.dumps(recorded)
    monkeypatch.setattr(extras, "_PROJECT", tmp_path)
    monkeypatch.setattr(extras, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert shlex.split(install_command("report"))[-1] == f"cactus-decoding[report]{origin}"
    conform = origin.replace("a/clone", "a/clone/packages/conform").replace(
        "12ab", "12ab#subdirectory=packages/conform"
    )
    assert shlex.split(install_conform())[-1] == f"cactus-conform{conform if 'whl' not in origin else ''}"


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("matplotlib", ("report", "results.jsonl", "--output", "new.html"), "report"),
        ("jinja2", ("report", "results.jsonl", "--output", "new.html"), "report"),
        ("matplotlib", ("frontier", "--output", "new.json", "--picture", "new.svg"), "report"),
        ("vllm", ("serve",), "vllm"),
        ("vllm", ("eval", "--engine", "vllm", "--output", "new.jsonl", "--problems", "1"), "vllm"),
        ("accelerate", (*TRAIN, "--output", "new"), "train"),
        ("lm_eval.tasks", ("eval", "--lm-eval", "gsm8k", "--output", "new.jsonl"), "eval"),
    ],
)
def test_a_missing_extra_is_told_by_the_line_that_installs_it(run, tmp_path, monkeypatch, missing, arguments, extra):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "results.jsonl", several())
    if missing != "vllm":  # which is in an environment of its own
        for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
            monkeypatch.setitem(sys.modules, name, None)
    code, _, err = run(*arguments)
    assert code == 2
    assert f"run {install_command(extra)}" in err
    assert err.count("\n") == 1
    assert extra in EXTRAS
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_a_mistake_of_our_own_is_no_missing_extra():
    with pytest.raises(ImportError, match="cactus_decoding"), needing("nothing", "report"):
        from cactus_decoding.zoo import nothing_of_that_name  # noqa: F401


def test_the_demo_s_environment_has_what_the_first_commands_need():
    line = next(line for line in (ROOT / "scripts" / "setup.sh").read_text().splitlines() if line.startswith("extras="))
    assert line.startswith('extras="report,playground')
    names = {
        extra: {each.split(">")[0] for each in EXTRAS[extra]}
        for extra in ("report", "playground", "eval", "train", "dev")
    }
    assert names["report"] | names["playground"] | names["eval"] | names["train"] <= names["dev"] | {"anyio"}
