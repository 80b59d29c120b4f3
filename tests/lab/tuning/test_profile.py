"""A profile is for the machine and the files that it was made with, and everything else is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cactus_decoding.lab.tuning import profile as module
from cactus_decoding.lab.tuning.profile import Profile, default_place, file_key


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def written(target: Path, tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"recommended": Profile.of(f"{target}:threads=2", "ngram", 3, 2).as_dict()}))
    return path


def test_a_profile_is_read_as_it_was_written(written: Path, target: Path) -> None:
    found = Profile.read(written)
    assert found == Profile.of(f"{target}:threads=2", "ngram", 3, 2)
    assert found.files == {f"{target}:threads=2": [7, target.stat().st_mtime_ns], "ngram": []}


def test_other_files_are_refused(written: Path, target: Path) -> None:
    target.write_bytes(b"other weights")
    with pytest.raises(ValueError, match=r"is of another '.*target\.gguf:threads=2' than is there now: run"):
        Profile.read(written)


def test_another_machine_is_refused(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_key", lambda: {"processor": "cpu Z80", "cores": 1})
    with pytest.raises(ValueError, match=r"is of a machine with processor '.*', but this one has 'cpu Z80': run"):
        Profile.read(written)


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"recommended": 3}', '{"recommended": {"target": "a"}}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "none.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"none\.json(' is no profile|, line 1)"):
        Profile.read(path)
    with pytest.raises(ValueError, match="cannot read the profile"):
        Profile.read(tmp_path / "missing.json")


@pytest.mark.parametrize(
    "changes", [{"threads": 0}, {"threads": "2"}, {"num_speculative_tokens": -1}, {"draft": ""}, {"files": []}]
)
def test_values_of_another_kind_are_refused(written: Path, changes: dict[str, object]) -> None:
    values = json.loads(written.read_text())
    values["recommended"] |= changes
    written.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="is no profile of cactus tune"):
        Profile.read(written)


def test_a_folder_is_known_by_its_weights(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"1")
    (tmp_path / "two.safetensors").write_bytes(b"22")
    assert file_key(str(tmp_path))[0] == 3
    assert file_key("owner/name") == []
    assert default_place("owner/name").name.startswith("name-")
    assert default_place("a/b.gguf") != default_place("b.gguf")
