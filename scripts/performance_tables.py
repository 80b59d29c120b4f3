"""Writes the tables of docs/performance.md, and the long ones, those of proposals too.

python scripts/performance_tables.py
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import proposal_tables
from pages import insert, read, table

from cactus_decoding.core.files.writing import write_atomically

ROOT = Path(__file__).resolve().parents[1]
PAGES = tuple(
    ROOT / "docs" / f"{folder}{name}.md"
    for folder, names in (("", "performance"), ("studies/tables/", "performance proposals laptop"))
    for name in names.split()
)
OURS = "ours|lossless"
PEERS = {
    "generate": "transformers' `generate`",
    "assisted": "its assisted generation",
    "vllm": "vLLM's CPU engine",
    "vllm-speculative": "the same with the draft",
}
FORWARDS = "transformers' target forward over ours"


def render(page: str) -> str:
    """Return the page with those tables that it has marks for, as the result files give them."""
    for name, made in TABLES.items():
        if f"<!-- begin: {name} -->" in page:
            page = insert(page, name, made())
    return page


def _peers() -> str:
    rows = []
    for result in read("end_to_end"):
        ratio = result["contenders"][OURS]["ratio"]
        rows.append([f"{result['temperature']:g}", *(f"{ratio[name]:.2f}" for name in PEERS)])
    return table(["temperature", *PEERS.values()], rows)


def _steps() -> str:
    rows = [
        [
            f"{result['context']:,}",
            f"{result['wall']['step over its forwards']:.3f}",
            f"{result['wall'][FORWARDS]:.2f}",
        ]
        for result in read("end_to_end_step")
    ]
    return table(["tokens of context", "step ÷ its forward passes", "transformers' forward pass ÷ ours"], rows)


def _ordinary() -> str:
    times = read("verification_ordinary")[0]["times"]
    ran = {name: time for name, time in times.items() if "accepted" in time}
    rows = [[name, f"{time['ratio']:.2f}", f"{time['accepted']:.1f}"] for name, time in ran.items()]
    return table(["rule", "ratio", "accepted of 10"], rows)


def _masked_sum() -> str:
    shapes = [result for result in read("verification_protected") if result["what"] == "masked sum"]
    names = [name for name in shapes[0]["times"] if name != "logsumexp"]
    rows = [[name, *(f"{shape['times'][name]['ratio']:.3f}" for shape in shapes)] for name in names]
    return table(["what", *(f"{shape['protected tokens']:,} protected tokens" for shape in shapes)], rows)


def _protected() -> str:
    rows = []
    for result in read("verification_protected"):
        if result["what"] == "step":
            times = result["times"]
            ratios = [f"{times[name]['ratio']:.2f}" for name in ("protected", "protected, from whole rows")]
            cut = "top-k 20, top-p 0.95" if "top_k=20" in result["sampling"] else "none"
            rows.append([result["rule"], cut, *ratios])
    return table(["rule", "truncation", "protected ÷ unprotected", "from whole rows ÷ unprotected"], rows)


def _verification() -> str:
    first, second = (result["times"] for result in read("verification"))
    names = [name for name in first if name != "logsumexp"]
    rows = [
        [name, f"{first[name]['ratio']:.2f}", f"{second[name]['ratio']:.2f}" if name in second else ""]
        for name in names
    ]
    return table(["what", "top-k 20, top-p 0.95", "no truncation"], rows)


def _trees() -> str:
    results = read("verification_trees")
    rows = []
    for case in dict.fromkeys(result["case"] for result in results):
        shapes = [result["times"] for result in results if result["case"] == case]
        for rule in (name for name in shapes[0] if name != "logsumexp"):
            numbers = [
                text for times in shapes for text in (f"{times[rule]['ratio']:.2f}", f"{times[rule]['accepted']:.1f}")
            ]
            rows.append([case, rule, *numbers])
    depths = [tree.count(".") + 1 for tree in dict.fromkeys(result["tree"] for result in results)]
    return table(["case", "rule", *(text for depth in depths for text in (f"{depth} deep", "accepted"))], rows)


def _solving() -> str:
    times = read("solving")[0]["times"]
    rows = [[name, f"{time['ms']:.1f}", f"{time['ratio']:.1f}"] for name, time in times.items()]
    return table(["what", "ms", "ratio"], rows)


def _precision() -> str:
    """Return how fast both types are, and which is taken."""
    rows = read("precision")
    shown = [
        [
            row["what"],
            *(f"{row[name]:.{3 if row[name] < 100 else 4}g}" for name in ("float32", "bfloat16")),
            row.get("taken", "torch.float32")[6:],
        ]
        for row in rows
    ]
    return table(["what", "float32", "bfloat16", "`auto` takes"], shown)


QWEN, SMOL = "Qwen2.5-Coder 1.5B", "SmolLM2 135M"
AT_ONCE = {"at_once": QWEN, "at_once_smollm2": SMOL}


def _first_token() -> str:
    """Return processor seconds until the first token, by turn."""
    files = {"first_token": QWEN, "first_token_4000": QWEN, "first_token_smollm2": SMOL}
    rows = [(model, row) for name, model in files.items() for row in read(name, "rows")]
    shown = [
        [model, f"{row['tokens']:,}", str(row["turn"]), *(f"{taken:.2f}" for taken in row["processor"].values())]
        for model, row in rows
    ]
    return table(["model", "tokens", "turn", *rows[0][1]["processor"]], shown)


def _passes() -> str:
    """Return milliseconds of passes over some tokens of each of some texts."""
    taken = {model: read(name, "passes") for name, model in AT_ONCE.items()}
    rows = [[f"{model}, ms", *(f"{1000 * seconds:.0f}" for seconds in row.values())] for model, row in taken.items()]
    return table(["tokens", *taken[QWEN]], rows)


def _at_once() -> str:
    """Return tokens per processor second of requests at once, in turn, and of a server with one place."""
    ways, shown = ("at once", "in turn", "one place"), []
    for name, model in AT_ONCE.items():
        every = read(name, "rounds")
        for proposals in dict.fromkeys(each["proposals"] for each in every):
            rounds = [each for each in every if each["proposals"] == proposals]
            ratios = [", ".join(f"{each[key]:.2f}" for each in rounds) for key in ("ratio", "ratio_to_one_place")]
            shown.append([model, proposals, *(_rate(rounds, way) for way in ways), *ratios])
    return table(["model", "proposals", *ways, "at once ÷ in turn, by round", "÷ one place"], shown)


def _rate(rounds: Sequence[dict[str, Any]], way: str) -> str:
    return f"{sum(each[way]['tokens'] for each in rounds) / sum(each[way]['processor'] for each in rounds):.2f}"


def _starts() -> str:
    """Return processor seconds until a server answers, and a conversation, beside those of loading the files."""
    every = read("starts", "starts")
    middle = {(name, key): np.median([t[key] for t in taken]) for name, taken in every.items() for key in taken[0]}
    shown, loaded = [], ("files loaded", "files loaded by a process of its own")
    for name in every:
        answered = middle.get((name, "first_answer_processor"), np.nan)
        ratios = [middle[name, "processor"] / middle[each, "processor"] for each in loaded]
        numbers = (middle[name, "processor"], answered, *ratios)
        shown.append([name, *("" if np.isnan(each) else f"{each:.2f}" for each in numbers)])
    return table(["what", "seconds", "first answer", "÷ files loaded", "÷ the same in a process of its own"], shown)


def _own_logprobs() -> str:
    """Return how far log-probabilities are from llama.cpp's own, and those from themselves."""
    rows = [row for name in ("own_logprobs", "own_logprobs_larger") for row in read(name, "rows")]
    shown = [[str(value) for value in row.values()] for row in rows]
    for row in shown:  # a narrow screen would break the whole name of a file
        row[0] = " ".join(row[0].partition("-instruct")[0].split("-"))
    return table(["file", "tokens", "answers", "proposed", "largest difference", "mean", "control", "mean"], shown)


def _clients() -> str:
    """Return what clients were answered."""
    shown = [[row["client"], row["request"], _cut(row["answer"])] for row in read("clients_smollm2", "rows")]
    return table(["client", "request", "SmolLM2 135M"], shown, names=3)


def _cut(text: str, most: int = 80) -> str:
    """Return the beginning of a text, in whole words, and numbers to three decimals."""
    text = re.sub(r"(\.\d{3})\d+", r"\1", " ".join(text.split()).replace("|", "\\|"))
    return text if len(text) <= most else text[:most].rpartition(" ")[0] + " …"


def _beside_server() -> str:
    """Return tokens per processor second behind the first token by proposals, and what was kept of most of them."""
    groups: dict[tuple[float, str, str], dict[int, list[dict[str, Any]]]] = {}
    for answer in read("beside_llama_server", "answers"):
        way = groups.setdefault((answer["temperature"], answer["server"], answer["rule"]), {})
        way.setdefault(answer["proposals"], []).append(answer)
    counts = list(next(iter(groups.values())))
    shown = []
    for (temperature, server, rule), found in sorted(groups.items(), key=lambda each: each[0][0]):
        kept, drafted = (sum(each[name] for each in found[counts[-1]]) for name in ("accepted", "drafted"))
        speeds = [_speed(found[count]) if count in found else "" for count in counts]
        shown.append([server, rule or "matching", f"{temperature:g}", *speeds, f"{kept / drafted:.2f}"])
    head = ["server", "acceptance", "temperature", *(f"tokens/s at {count}" for count in counts)]
    return table([*head, f"accepted of {counts[-1]}"], shown)


def _speed(answers: Sequence[dict[str, Any]]) -> str:
    tokens, seconds = (sum(each[name] for each in answers) for name in ("tokens", "processor"))
    return f"{(tokens - len(answers)) / seconds:.2f}"


LENGTHS = {
    "real_pair_bfloat16": "1.5B and 0.5B, bfloat16",
    "twins_bfloat16": "twins, bfloat16",
    "twins_float32": "twins, float32",
}


def _draft_lengths() -> str:
    """Return tokens per second over plain decoding by number of proposals, and at the best one over lossless at its."""
    shown, counts = [], [1, 3, 5, 7, 11, 15]
    for name, pair in LENGTHS.items():
        found = read(name, "summary")
        for rule, best in found["best"].items():
            cells = [found["cells"].get(f"{rule}|{count}") for count in counts]
            ratios = ["" if cell is None else f"{cell['over_plain'][0]:.2f}" for cell in cells]
            against = "" if rule == "lossless" else _with_ends(best["over_lossless_at_its_best"])
            shown.append([pair, rule, *ratios, _with_ends(best["over_plain"]), against])
    head = ["pair", "rule", *(f"{count}" for count in counts), "at its best", "÷ lossless at its best"]
    return table(head, shown)


def _length_baselines() -> str:
    """Return tokens per second of what rules are compared with."""
    names = {
        "plain": "plain",
        "generate": "`generate`",
        "assisted|7": "assisted, 7",
        "lossless|auto": "lossless, `auto`",
    }
    shown = []
    for name, pair in LENGTHS.items():
        found = read(name, "summary")
        cells = [found["cells"].get(each) for each in names]
        rates = ["" if cell is None else _with_ends(cell["over_plain"]) for cell in cells[1:]]
        shown.append([pair, f"{cells[0]['tokens_per_second']:.1f}", *rates, str(found["prompts"])])
    head = ["pair", "plain, tokens/s", *(f"{each} ÷ plain" for each in [*names.values()][1:]), "prompts"]
    return table(head, shown)


def _with_ends(interval: Sequence[float | None]) -> str:
    value, low, high = interval
    return f"{value:.2f}" if low is None else f"{value:.2f} ({low:.2f} to {high:.2f})"


TABLES: dict[str, Callable[[], str]] = {
    "peers": _peers,
    "steps": _steps,
    "ordinary": _ordinary,
    "masked_sum": _masked_sum,
    "protected": _protected,
    "verification": _verification,
    "trees": _trees,
    "solving": _solving,
    **proposal_tables.TABLES,
    "precision": _precision,
    "first_token": _first_token,
    "passes": _passes,
    "at_once": _at_once,
    "starts": _starts,
    "own_logprobs": _own_logprobs,
    "beside_server": _beside_server,
    "clients": _clients,
    "draft_lengths": _draft_lengths,
    "length_baselines": _length_baselines,
}


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, nargs="+", default=PAGES, help="the pages to write the tables to")
    for page in parser.parse_args().page:
        write_atomically(page, render(page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
