"""The same random requests to the bundled pair by this tree and by another one: do they write the same tokens?

Settings are spelled as an older tree reads them; what it does not know yet it refuses, which is counted and is no
difference. Chains of `AdaptiveLength` are left out: it goes by measured times, so that no two runs need be equal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = (
    "lossless", "cactus:delta=0.01", "cactus:delta=1", "cactus:delta=1,max_ratio=1.5", "cactus:delta=0.3,solver=exact",
    "cactus:delta=0.1,divergence=chi_square", "ensemble:weight=0.3", "lenience:lenience=0.6", "clamped:width=0.1",
    "clamped:width=2", "clamped:max_kl=0.1", "typical", "typical:recovery=sample", "top_k:k=2",
    "top_k:k=2,residual=mask", "cascade:alpha=0.1", "cascade:alpha=0.4,defer=chow", "fuzzy:threshold=0.3",
    "relaxed_greedy:margin=1",
)  # fmt: skip
SAMPLINGS = (
    {},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 0},
)
BUDGETS = (
    {}, {}, {"budget_nats": 0.05}, {"budget_nats": 1.0}, {"max_shift": 0.3},
    {"budget_nats": 1.0, "expected_tokens": 24},
)  # fmt: skip
POLICIES = (
    {}, {}, {"protect": "digits"}, {"protect": "digits", "protect_threshold": 0.2}, {"lossless_tokens": 6},
    {"importance": True, "max_importance": 0.3}, {"importance": True, "importance_scale": True},
)  # fmt: skip
CHAINS = (0, 1, 2, 4, 7, "confidence")
TREES = ("static=2.2.1", "static=3.2.1,drawn=0", "static=2.2.2", "best_first,nodes=12", "adaptive", "priced")
REFUSED = "refused by the old"
COUNTS = ("steps", "drafted", "accepted", "relaxed", "nats")


def random_requests(count: int, seed: int, new_tokens: int) -> list[dict]:
    """Return prompts and settings that this tree takes."""
    from cactus_decoding import Request
    from cactus_decoding.zoo import word_problems
    from cactus_decoding.zoo.word_problems import word_problems as problems

    draw, stream = random.Random(seed), problems("validation", seed=seed)
    prompts = [next(stream).prompt for _ in range(64)]
    importance = next(Path(word_problems.__file__).parent.glob("*importance*"))
    requests = []
    while len(requests) < count:
        settings = {
            **draw.choice(SAMPLINGS),
            **draw.choice(BUDGETS),
            **draw.choice(POLICIES),
            "rule": draw.choice(RULES),
        }
        if settings["rule"].startswith("relaxed_greedy"):
            settings["temperature"] = 0
        if "importance" in settings:
            settings["importance"] = str(importance)
        if draw.random() < 0.6:
            settings |= {
                "num_speculative_tokens": draw.choice(CHAINS),
                "verification": draw.choice(["token"] * 3 + ["block"]),
            }
        else:
            ways = ["token"] * 3 + ["joint", "recursive", "traversal"]
            settings |= {"tree": draw.choice(TREES), "verification": draw.choice(ways)}
        settings |= {"seed": len(requests), "max_new_tokens": new_tokens}
        try:
            Request.from_dict(settings)
        except ValueError:  # parts that do not go together
            continue
        requests.append({"prompt": draw.choice(prompts), "settings": settings})
    return requests


def answers_of(tree: Path, requests: Path) -> list[dict]:
    """Return what a tree answers, from a process of its own that finds no other tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--answer", str(requests)]
    done = subprocess.run(command, env=environment, cwd=tree, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def answer(requests: Path) -> None:
    """Print what this process's package answers, a line each."""
    from cactus_decoding import generate, load_pair

    pair = load_pair()
    for line in requests.read_text().splitlines():
        asked = json.loads(line)
        try:
            response = generate(pair, asked["prompt"], **asked["settings"])
        except (TypeError, ValueError) as error:
            print(json.dumps({"error": str(error)}))
            continue
        counts = {name: getattr(response.metrics, name) for name in COUNTS}
        print(json.dumps({"token_ids": response.token_ids, **counts}))


def difference(old: dict, new: dict) -> str | None:
    """Return in what two answers differ, if in anything; nats may by rounding."""
    if ("error" in old) != ("error" in new):
        return REFUSED if "error" in old else "refused by the new"
    if "error" in old:
        return None
    if old["token_ids"] != new["token_ids"]:
        return "token_ids"
    close = abs(old["nats"] - new["nats"]) <= 1e-6 * max(1.0, abs(old["nats"]))
    return next((name for name in COUNTS[:-1] if old[name] != new[name]), None if close else "nats")


def main() -> None:
    """Compare, and exit with 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?", help="a git revision")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=24, help="of a response")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer is not None:
        return answer(given.answer)
    with tempfile.TemporaryDirectory() as folder:
        asked, old_tree = Path(folder, "requests.jsonl"), Path(folder, "old")
        requests = random_requests(given.requests, given.seed, given.tokens)
        asked.write_text("".join(json.dumps(each) + "\n" for each in requests))
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(old_tree), given.old], check=True)
        try:
            old, new = answers_of(old_tree, asked), answers_of(ROOT, asked)
        finally:
            subprocess.run([*git, "remove", "--force", str(old_tree)], check=True)
    found = Counter[str]()
    for each, before, after in zip(requests, old, new, strict=True):
        differs = difference(before, after)
        found[differs or ("refused by both" if "error" in before else "equal")] += 1
        if differs not in (None, REFUSED):
            print(differs, json.dumps(each["settings"]), before.get("error", ""), after.get("error", ""))
    print(dict(found))
    sys.exit(found.total() != found["equal"] + found["refused by both"] + found[REFUSED])


if __name__ == "__main__":
    main()
