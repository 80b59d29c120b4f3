"""`cactus-conform` from end to end."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import cactus_conform
import pytest


def test_models_are_written(run, tmp_path):
    code, out, _ = run("--models", str(tmp_path / "tiny"))
    assert code == 0
    assert str(tmp_path / "tiny") in out
    assert {each.name for each in (tmp_path / "tiny").iterdir()} >= {"target", "bad", "target.gguf", "bad.gguf"}


@pytest.mark.parametrize("mine", ["good/model.safetensors", "bad.gguf"])
def test_models_of_others_are_not_overwritten(run, tmp_path: Path, mine: str) -> None:
    file = tmp_path / mine
    file.parent.mkdir(exist_ok=True)
    file.write_text("weights")
    code, _, error = run("--models", str(tmp_path))
    assert (code, file.read_text()) == (2, "weights")
    assert f"but {mine.partition('/')[0].partition('.')[0]} is something else there" in error
    assert not (tmp_path / "target").exists()
    file.unlink()
    if file.parent != tmp_path:
        file.parent.rmdir()
    assert [run("--models", str(tmp_path))[0] for _ in range(2)] == [0, 0]  # their own are


def test_mistakes_are_one_line(run):
    for arguments, said in (
        ((), "give an ENGINE"),
        (("vlm",), "engine must be one of"),
        (("--bad",), "there is no option --bad (see 'cactus-conform --help')"),
        (("transformers", "--samples", "0"), "samples must be an integer of at least 1"),
        (("transformers", "--output", "missing/file"), "cannot write 'missing/file': No such file"),
        (("nowhere:engine",), "cannot be imported"),
        (("transformers", "--set", "rule"), "NAME=VALUE"),
        (("transformers", "--false-alarm", "0"), "false_alarm"),
        (("--against", "http://127.0.0.1:1"), "ENGINE"),
        (("json:dumps", "--set", "a=1"), "no settings"),
        (("json:dumps",), "failed"),
    ):
        code, _, err = run(*arguments)
        assert (code, err.count("\n")) == (2, 1), err
        assert said in err


def test_an_engine_that_is_half_installed_is_one_line_and_not_wrong(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, _, err = run("transformers")
    assert (code, err.count("\n")) == (2, 1)
    assert "transformers torch is not installed: run " in err


def test_the_gate_s_verdict_is_one_line_of_json_and_down_is_closed(run, monkeypatch):
    code, out, err = run("json:dumps", "--gate")
    found = json.loads(out)
    assert (code, err, out.count("\n")) == (1, "", 1)
    assert (found["verdict"], found["engine"]) == ("fail", "dumps")
    assert "failed: TypeError" in found["failure"]
    code, out, _ = run("http://127.0.0.1:1", "--gate")
    assert (code, json.loads(out)["verdict"]) == (1, "fail")


SOURCE = Path(cactus_conform.__file__).parent
ENGINES = {"torch", "transformers", "vllm", "llama_cpp", "gguf", "pytest"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_only_numpy_and_safetensors_are_imported_and_engines_by_their_own_files():
    allowed = {*sys.stdlib_module_names, "cactus_conform", "numpy", "safetensors"}
    found = {path: imported(path) - allowed for path in SOURCE.rglob("*.py")}
    assert len(found) > 15
    own = {SOURCE / "gguf_files.py", SOURCE / "pytest_plugin.py", *(SOURCE / "engines").glob("*.py")}
    assert not {path: names for path, names in found.items() if names - (ENGINES if path in own else set())}


def test_a_verdict_needs_nothing_else():
    code = """
import sys
for name in ("cactus_decoding", "torch", "transformers", "scipy", "gguf"):
    sys.modules[name] = None
from cactus_conform import conform
from cactus_conform.checks import Check
from cactus_conform.engine import Sampling
from cactus_conform.reference import Reference
print(bool(conform(Reference(), samples=20, only=[Check("temperature 1", Sampling(draft="bad"))])))
"""
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "True\n"
