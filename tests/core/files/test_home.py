"""Users without a home directory: their answers are the same, and nothing is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cactus_decoding import load_pair, stream
from cactus_decoding.core.drafting.measuring import cache_folder
from cactus_decoding.core.files.home import NOWHERE, expanded, user_cache
from cactus_decoding.core.files.jsonl import read_json
from cactus_decoding.lab.evaluation.runs.results import read_results
from cactus_decoding.lab.evaluation.tasks.sources import file_of
from cactus_decoding.lab.tracing import read_trace

NOBODY_S = """
import os, pwd
for name in ("HOME", "XDG_CACHE_HOME"):
    os.environ.pop(name, None)
if os.getuid() == 0:  # files are read by the effective user, homes are those of the real one
    taken = {each.pw_uid for each in pwd.getpwall()}
    os.setreuid(next(user for user in range(54321, 60000) if user not in taken), -1)
else:
    pwd.getpwuid = {}.__getitem__
assert os.path.expanduser("~") == "~"
"""
GENERATE = """
from cactus_decoding import load_pair, stream
pair = load_pair(None, "ngram")
for _ in range(2):
    response = stream(pair, "3 + 4 = 7. 3 + 4 = ", num_speculative_tokens="auto", max_new_tokens=8, temperature=0)
    list(response)
print(response.token_ids, response.pass_times["source"], sep="|")
"""
TUNE = """
from cactus_decoding.cli.tune import _kept_place
from cactus_decoding.lab.tuning.profile import default_place
print(_kept_place(default_place("owner/name")))
"""


def without_home(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NOBODY_S + program], cwd=folder, capture_output=True, text=True, timeout=300, check=True
    )


@pytest.mark.slow
def test_generate_with_auto_keeps_nothing_for_a_user_without_a_home(tmp_path):
    text, source = without_home(GENERATE, tmp_path).stdout.strip().split("|")
    prompt, pair = "3 + 4 = 7. 3 + 4 = ", load_pair(None, "ngram")
    alone = stream(pair, prompt, num_speculative_tokens=1, max_new_tokens=8, temperature=0)
    list(alone)
    assert text == str(alone.token_ids)
    assert "no-home-directory" in source or "busy" in source
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_tune_says_that_its_profile_is_not_kept(tmp_path):
    done = without_home(TUNE, tmp_path)
    assert done.stdout.strip() == "None"
    assert "the profile will not be kept" in done.stderr
    assert "no-home-directory" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def homeless(monkeypatch):
    pwd = pytest.importorskip("pwd")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)


def test_the_cache_is_nowhere_without_a_home(homeless, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert user_cache().is_relative_to(NOWHERE)
    for act in (cache_folder().mkdir, (cache_folder() / "file").read_bytes):
        with pytest.raises(OSError, match="no-home-directory"):
            act()
    with pytest.raises(OSError, match="no-home-directory"):
        cache_folder().mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "cactus-decoding"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "cactus-decoding"
    assert expanded("~/file") == tmp_path / "file"
    assert expanded(Path("file")) == Path("file")


@pytest.mark.parametrize("path", ["~/missing", "~no-such-user/missing"])
def test_a_path_below_a_home_that_is_none_is_a_missing_file(homeless, path):
    for read in (read_json, read_results, read_trace):
        with pytest.raises(FileNotFoundError) as raised:
            read(path)
        assert os.fspath(raised.value.filename) == path
    assert file_of(f"gsm8k:path={path}") == Path(path)
