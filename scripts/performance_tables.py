"""Writes the tables of docs/performance.md, and the long ones, those of proposals too.

python scripts/performance_tables.py
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import proposal_tables
from pages import ROOT, Cell, columns, insert, read, table, with_ends
from results import parse

from cactus_decoding.core.files.writing import write_atomically

LONG = ("performance", "proposals", "laptop")
PAGES = [ROOT / "docs" / "performance.md", *(ROOT / "docs/studies/tables" / f"{name}.md" for name in LONG)]
OURS = "ours|lossless"
PEERS = {
    "generate": "transformers' `generate`",
    "assisted": "its assisted generation",
    "vllm": "vLLM's CPU engine",
    "vllm-speculative": "the same with the draft",
}
QWEN, SMOL = "Qwen2.5-Coder 1.5B", "SmolLM2 135M"
AT_ONCE = {"at_once": QWEN, "at_once_smollm2": SMOL}
FIRST_TOKEN = {"first_token": QWEN, "first_token_4000": QWEN, "first_token_smollm2": SMOL}
LENGTHS = {
    "real_pair_bfloat16": "1.5B and 0.5B, bfloat16",
    "twins_bfloat16": "twins, bfloat16",
    "twins_float32": "twins, float32",
}
BASELINES = {"generate": "`generate`", "assisted|7": "assisted, 7", "lossless|auto": "lossless, `auto`"}
FILES, ALONE = "files loaded", "files loaded by a process of its own"


def render(page: str) -> str:
    """Return the page with those tables that it has marks for, as the result files give them."""
    for name, made in TABLES.items():
        if f"<!-- begin: {name} -->" in page:
            page = insert(page, name, made())
    return page


def protection(what: str) -> list[dict[str, Any]]:
    return [result for result in read("verification_protected") if result["what"] == what]


def masked_sums() -> str:
    shapes = protection("masked sum")
    names = [name for name in shapes[0]["times"] if name != "logsumexp"]
    rows = [[name, *(f"{shape['times'][name]['ratio']:.3f}" for shape in shapes)] for name in names]
    return table(["what", *(f"{shape['protected tokens']:,} protected tokens" for shape in shapes)], rows)


def verification() -> Iterable[dict[str, Any]]:
    """Yield the times of the extremes, truncated and not; formulas are timed truncated only."""
    truncated, plain = (result["times"] for result in read("verification"))
    for name in [name for name in truncated if name != "logsumexp"]:
        ratio = f"{plain[name]['ratio']:.2f}" if name in plain else ""
        yield {"what": name, "truncated": truncated[name]["ratio"], "plain": ratio}


def trees() -> str:
    results, rows = read("verification_trees"), []
    for case in dict.fromkeys(result["case"] for result in results):
        shapes = [result["times"] for result in results if result["case"] == case]
        for rule in (name for name in shapes[0] if name != "logsumexp"):
            found = (each.format_map(times[rule]) for times in shapes for each in ("{ratio:.2f}", "{accepted:.1f}"))
            rows.append([case, rule, *found])
    depths = [tree.count(".") + 1 for tree in dict.fromkeys(result["tree"] for result in results)]
    return table(["case", "rule", *(text for depth in depths for text in (f"{depth} deep", "accepted"))], rows)


def first_tokens() -> str:
    """Return processor seconds until the first token, by turn."""
    rows = [row | {"model": model} for name, model in FIRST_TOKEN.items() for row in read(name, "rows")]
    ways = {name: f"{{processor[{name}]:.2f}}" for name in rows[0]["processor"]}
    return columns(rows, {"model": "{model}", "tokens": "{tokens:,}", "turn": "{turn}"} | ways)


def passes() -> str:
    """Return milliseconds of passes over some tokens of each of some texts."""
    taken = {model: read(name, "passes") for name, model in AT_ONCE.items()}
    rows = [[f"{model}, ms", *(f"{1000 * seconds:.0f}" for seconds in row.values())] for model, row in taken.items()]
    return table(["tokens", *taken[QWEN]], rows)


def at_once() -> str:
    """Return tokens per processor second of requests at once, in turn, and of a server with one place."""
    ways, shown = ("at once", "in turn", "one place"), []
    for name, model in AT_ONCE.items():
        every = read(name, "rounds")
        for proposals in dict.fromkeys(each["proposals"] for each in every):
            rounds = [each for each in every if each["proposals"] == proposals]
            ratios = [", ".join(f"{each[key]:.2f}" for each in rounds) for key in ("ratio", "ratio_to_one_place")]
            shown.append([model, proposals, *(rate([each[way] for each in rounds]) for way in ways), *ratios])
    return table(["model", "proposals", *ways, "at once ÷ in turn, by round", "÷ one place"], shown)


def rate(answers: Sequence[dict[str, Any]], first: int = 0) -> str:
    """Return tokens per processor second, without so many at the beginning of each answer."""
    tokens, seconds = (sum(each[name] for each in answers) for name in ("tokens", "processor"))
    return f"{(tokens - first * len(answers)) / seconds:.2f}"


def starts() -> str:
    """Return processor seconds until a server answers, and a conversation, beside those of loading the files."""
    every = read("starts", "starts")
    middle = {(name, key): median(t[key] for t in taken) for name, taken in every.items() for key in taken[0]}

    def cell(key: str, over: str = "") -> Cell:
        whole = middle[over, key] if over else 1
        return lambda name: f"{middle[name, key] / whole:.2f}" if (name, key) in middle else ""

    return columns(every, {
        "what": str, "seconds": cell("processor"), "first answer": cell("first_answer_processor"),
        "÷ files loaded": cell("processor", FILES), "÷ the same in a process of its own": cell("processor", ALONE),
    })  # fmt: skip


def own_logprobs() -> str:
    """Return how far log-probabilities are from llama.cpp's own, and those from themselves."""
    rows = [row for name in ("own_logprobs", "own_logprobs_larger") for row in read(name, "rows")]
    shown = [[str(value) for value in row.values()] for row in rows]
    for row in shown:  # a narrow screen would break the whole name of a file
        row[0] = " ".join(row[0].partition("-instruct")[0].split("-"))
    return table(["file", "tokens", "answers", "proposed", "largest difference", "mean", "control", "mean"], shown)


def cut(text: str, most: int = 80) -> str:
    """Return the beginning of a text, in whole words, and numbers to three decimals."""
    text = re.sub(r"(\.\d{3})\d+", r"\1", " ".join(text.split()).replace("|", "\\|"))
    return text if len(text) <= most else text[:most].rpartition(" ")[0] + " …"


def beside_server() -> str:
    """Return tokens per processor second after the first token by proposals, and what was kept of most of them."""
    groups: dict[tuple[float, str, str], dict[int, list[dict[str, Any]]]] = {}
    for answer in read("beside_llama_server", "answers"):
        way = groups.setdefault((answer["temperature"], answer["server"], answer["rule"]), {})
        way.setdefault(answer["proposals"], []).append(answer)
    counts, shown = [*next(iter(groups.values()))], []
    for (temperature, server, rule), found in sorted(groups.items(), key=lambda each: each[0][0]):
        kept, drafted = (sum(each[name] for each in found[counts[-1]]) for name in ("accepted", "drafted"))
        speeds = [rate(found[count], 1) if count in found else "" for count in counts]
        shown.append([server, rule or "matching", f"{temperature:g}", *speeds, f"{kept / drafted:.2f}"])
    head = ["server", "acceptance", "temperature", *(f"tokens/s at {count}" for count in counts)]
    return table([*head, f"accepted of {counts[-1]}"], shown)


def draft_lengths() -> str:
    """Return tokens per second over plain decoding by number of proposals, and at the best one over lossless at its."""
    shown, counts = [], [1, 3, 5, 7, 11, 15]
    for name, pair in LENGTHS.items():
        found = read(name, "summary")
        for rule, best in found["best"].items():
            cells = [found["cells"].get(f"{rule}|{count}") for count in counts]
            ratios = ["" if cell is None else f"{cell['over_plain'][0]:.2f}" for cell in cells]
            against = "" if rule == "lossless" else with_ends(best["over_lossless_at_its_best"])
            shown.append([pair, rule, *ratios, with_ends(best["over_plain"]), against])
    return table(["pair", "rule", *counts, "at its best", "÷ lossless at its best"], shown)


def over_plain(name: str) -> Cell:
    return lambda found: with_ends(found["cells"][name]["over_plain"]) if name in found["cells"] else ""


def three_digits(name: str) -> Cell:
    return lambda row: f"{row[name]:.{3 if row[name] < 100 else 4}g}"


COLUMNS: dict[str, tuple[Callable[[], Iterable[Any]], dict[str, Cell]]] = {
    "peers": (lambda: read("end_to_end"), {
        "temperature": "{temperature:g}",
        **{title: f"{{contenders[{OURS}][ratio][{name}]:.2f}}" for name, title in PEERS.items()},
    }),
    "steps": (lambda: read("end_to_end_step"), {
        "tokens of context": "{context:,}",
        "step ÷ its forward passes": "{wall[step over its forwards]:.3f}",
        "transformers' forward pass ÷ ours": "{wall[transformers' target forward over ours]:.2f}",
    }),
    "ordinary": (
        lambda: [time | {"rule": name} for name, time in read("verification_ordinary")[0]["times"].items()][1:],
        {"rule": "{rule}", "ratio": "{ratio:.2f}", "accepted of 10": "{accepted:.1f}"},
    ),
    "protected": (lambda: protection("step"), {
        "rule": "{rule}",
        "truncation": lambda row: "top-k 20, top-p 0.95" if "top_k=20" in row["sampling"] else "none",
        "protected ÷ unprotected": "{times[protected][ratio]:.2f}",
        "from whole rows ÷ unprotected": "{times[protected, from whole rows][ratio]:.2f}",
    }),
    "verification": (verification, {
        "what": "{what}", "top-k 20, top-p 0.95": "{truncated:.2f}", "no truncation": "{plain}",
    }),
    "solving": (
        lambda: [time | {"what": name} for name, time in read("solving")[0]["times"].items()],
        {"what": "{what}", "ms": "{ms:.1f}", "ratio": "{ratio:.1f}"},
    ),
    "precision": (lambda: read("precision"), {
        "what": "{what}", "float32": three_digits("float32"), "bfloat16": three_digits("bfloat16"),
        "`auto` takes": lambda row: row.get("taken", "torch.float32")[6:],
    }),
    "length_baselines": (lambda: [read(name, "summary") | {"pair": pair} for name, pair in LENGTHS.items()], {
        "pair": "{pair}", "plain, tokens/s": "{cells[plain][tokens_per_second]:.1f}",
        **{f"{title} ÷ plain": over_plain(name) for name, title in BASELINES.items()}, "prompts": "{prompts}",
    }),
}  # fmt: skip
"""Tables of which each row is one thing that was measured."""
TABLES: dict[str, Callable[[], str]] = proposal_tables.TABLES | {
    **{name: lambda rows=rows, heads=heads: columns(rows(), heads) for name, (rows, heads) in COLUMNS.items()},
    "clients": lambda: columns(read("clients_smollm2", "rows"), {
        "client": "{client}", "request": "{request}", "SmolLM2 135M": lambda row: cut(row["answer"]),
    }, names=3),
    "masked_sum": masked_sums, "trees": trees, "first_token": first_tokens, "passes": passes, "at_once": at_once,
    "starts": starts, "own_logprobs": own_logprobs, "beside_server": beside_server, "draft_lengths": draft_lengths,
}  # fmt: skip

if __name__ == "__main__":
    for page in parse(__doc__, page=(PAGES, "the pages to write the tables to")).page:
        write_atomically(page, render(page.read_text(encoding="utf-8")))
