"""The same requests to this tree and to an older one: which are answered with other tokens?

    ../.venv/bin/python old_and_new.py REVISION
    ../.venv/bin/python old_and_new.py REVISION --seeds 20 --parts generate,gguf

Each tree answers in a process of its own, by public names, on one thread and in float32. Draft lengths that go by
measured times are left out, because no two runs of them need be equal. The exit code is 1 where anything differs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RULES = ("lossless", "cactus:delta=0.5", "cactus:delta=0.5,solver=exact", "ensemble:weight=0.3", "clamped:width=2")
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.95},
    {"budget": 0.5, "protect": "digits"},
    {"temperature": 0.0},
)
OF_OUR_LOOP: tuple[dict[str, Any], ...] = ({"tree": "static=3.2.1"}, {"verification": "block"}, {"min_p": 0.05})
"""What `generate` is asked besides."""
PARTS = ("generate", "transformers", "gguf")


def requests(part: str, seeds: int) -> list[dict[str, Any]]:
    """Return what a part is asked."""
    ways = (*WAYS, *OF_OUR_LOOP) if part == "generate" else WAYS
    return [{"rule": rule, "seed": seed, **way} for rule, way, seed in product(RULES, ways, range(seeds))]


def answerer(part: str, models: Path) -> Callable[[str, dict[str, Any]], list[int]]:
    """Return what answers a prompt: the new tokens."""
    import torch

    import cactus_decoding
    from cactus_decoding import zoo

    if part == "gguf":
        from cactus_decoding.engines.llama_cpp import CactusLlama

        files = (str(models / f"{name}-float32.gguf") for name in ("target", "worded"))
        llama = CactusLlama(next(files), draft=next(files), n_ctx=512, verbose=False, num_speculative_tokens=5)
        sampled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "max_tokens": 24}
        return lambda text, given: [*llama.create_completion(text, **sampled | given)["choices"][0]["text"].encode()]
    if part == "generate":
        pair = cactus_decoding.load_pair(dtype=torch.float32)
        usual = {"num_speculative_tokens": 5, "max_new_tokens": 24}
        return lambda text, given: cactus_decoding.generate(pair, text, **usual | given).token_ids
    from transformers import AutoModelForCausalLM, AutoTokenizer

    names = zoo.path("target"), zoo.path("worded")
    target, draft = (AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval() for name in names)
    tokenizer = AutoTokenizer.from_pretrained(names[0])

    def answer(text: str, given: dict[str, Any]) -> list[int]:
        sampled = {"do_sample": True, "top_k": 0} | given
        if not sampled.get("temperature", 1.0):
            sampled = {name: value for name, value in given.items() if name != "temperature"} | {"do_sample": False}
        if "protect" in given:
            sampled["tokenizer"] = tokenizer
        ids = tokenizer(text, return_tensors="pt").input_ids
        custom = cactus_decoding.speculative_generate
        output = target.generate(ids, custom_generate=custom, assistant_model=draft, max_new_tokens=24, **sampled)
        return output[0].tolist()

    return answer


def answers(part: str, seeds: int, models: Path) -> Iterator[Any]:
    """Yield what this process's tree answers: tokens, or how it refuses."""
    from cactus_decoding.zoo.word_problems import EXAMPLES

    answer = answerer(part, models)
    for number, given in enumerate(requests(part, seeds)):
        try:
            yield answer(EXAMPLES[number % len(EXAMPLES)].prompt, given)
        except (TypeError, ValueError) as error:
            yield type(error).__name__


def registered(tree: Path, folder: Path) -> str:
    """Return a folder for Python's path with a tree's own entry points: those that are installed are of this one."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    about = folder / f"of-{tree.name}" / "cactus_decoding-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{a} = {b}" for a, b in points.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return str(about.parent)


def asked(part: str, seeds: int, tree: Path, models: Path) -> list[Any]:
    """Return what a tree answers, in a process of its own."""
    path = os.pathsep.join([registered(tree, models), str(tree / "src"), str(ROOT / "packages/conform/src")])
    fixed = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, "", "--answer", part, "--seeds", str(seeds), "--models", str(models)]
    done = subprocess.run(command, env=os.environ | fixed, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="of git")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--answer", choices=PARTS, help=SUPPRESS)
    parser.add_argument("--models", type=Path, help=SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        for each in answers(given.answer, given.seeds, given.models):
            print(json.dumps(each), flush=True)
        return 0
    git, differing = ["git", "-C", str(ROOT), "worktree"], 0
    with tempfile.TemporaryDirectory() as folder:
        old, models = Path(folder, "old"), Path(folder, "models")
        made = [sys.executable, str(ROOT / "scripts" / "bundled_gguf.py"), str(models), "--type", "float32"]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*git, "add", "--quiet", "--detach", str(old), given.revision], check=True)
        try:
            for part in given.parts.split(","):
                both = [asked(part, given.seeds, tree, models) for tree in (old, ROOT)]
                rows = [*zip(requests(part, given.seeds), *both, strict=True)]
                others = [row for row in rows if row[1] != row[2]]
                refused = sum(isinstance(now, str) for *_, now in rows)
                print(f"{part}: {len(rows)} requests, {refused} of them refused, {len(others)} answered otherwise")
                for request, before, after in others[:5]:
                    print(f"  {request}\n    {before}\n    {after}")
                differing += len(others)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    return int(differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
