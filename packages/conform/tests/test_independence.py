"""An oracle shares no code with what it judges."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import cactus_conform

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
