"""All rules on the same rows: regenerates docs/studies/tables/frontier.md and its picture, exactly.

    python -m studies.rules.frontier                    records rows of the bundled pair, and measures; minutes
    python -m studies.rules.frontier --rows FILE        on rows of a real pair, as `cactus frontier` records them
    python -m studies.rules.frontier --only-render      the tables and the picture again, from the result files

Each family takes the knob at which it accepts as much as is asked, half-way between lossless and everything; beside it
stands what the clamped ratio costs at that very acceptance. Regret is the log-probability that what is emitted gives
up against the target's most likely token, less what the target's own draws give up. Needs matplotlib.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cactus_decoding import Request, load_pair, parse_rule
from cactus_decoding.cli import options
from cactus_decoding.core.audit import audit, judge_every_token
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.rules import RULES
from cactus_decoding.core.rules.base import Family, GreedyRule, round_to
from cactus_decoding.core.rules.relaxed_greedy import given_up
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.frontier.frontier import LOOSEST
from cactus_decoding.lab.frontier.recorded_rows import RecordedRows, chunks, read_rows
from cactus_decoding.lab.frontier.recording import record_rows
from cactus_decoding.lab.frontier.relaxations import FAMILIES
from cactus_decoding.lab.reporting.pictures import style_of
from scripts.pages import ROOT, columns, put, table
from scripts.results import parse, read, write
from studies.shown import Axes, picture
from studies.study import least

RESULTS = {kind: Path(__file__).with_name("results") / f"{kind}frontier.json.gz" for kind in ("", "real_")}
"""Of the bundled pair, and of a real one."""
PAGE, INDEX = ROOT / "docs/studies/tables/frontier.md", ROOT / "docs/rules/index.md"
PICTURE = "../pictures/frontier/rules.svg"
SHARE = 0.5
"""Of the way from what lossless accepts to what any rule may, in the tables; in the picture and at temperature 0:"""
DRAWN_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
GREEDY_SHARES = (0.25, 0.5, 0.75)
Row = Mapping[str, Any]
MEMORY = 2**24
"""Bytes of rows that are looked at together."""
COSTS = {
    "kl": (4, "KL", "KL, nats per position"),
    "tv": (3, "TV", "total variation"),
    "max_log_ratio": (1, "ratio", "largest log-ratio, nats"),
    "regret": (4, "regret", "regret, nats"),
}
"""Digits of what a rule costs, what a cell calls it, and an axis."""
GIVEN_UP = {"keeps": "{acceptance:.3f}", "nats given up, mean": "{regret:.4f}", "at most": "{most:.2f}"}


def recorded(positions: int) -> RecordedRows:
    """Return rows of the bundled target and the draft that words things differently, temperature 1, nothing cut."""
    task = parse_task("word_problems:split=validation", None)
    request = Request(num_speculative_tokens=12, stop=task.stop)
    pair = load_pair(draft="bundled:worded", kept_prompts=0)
    settings = {"draft": "bundled:worded", "positions": positions}
    return record_rows(
        pair, [each.prompt for each in task.problems], request, positions=positions,
        settings=settings, provenance=provenance(settings),
    )  # fmt: skip


def thinned(rows: RecordedRows, positions: int) -> RecordedRows:
    """Return rows of which every n-th visited position counts, about so many of all texts."""
    every = max(round(rows.positions / positions), 1)
    return replace(rows, visited=rows.visited & (rows.visited.cumsum(0) % every == 0))


@cache
def visited(rows: RecordedRows) -> list[tuple[Tensor, Tensor]]:
    """Return the target's and the draft's rows of visited positions, in parts."""
    found = []
    for start, target, draft, _ in chunks(rows.target, rows.draft, rows.drafted, MEMORY):
        if (here := rows.visited[start : start + len(target)]).any():
            found.append((target[here], draft[here]))
    return found


def accepted(rows: RecordedRows, rule: str) -> float:
    """Return what a rule accepts per visited position."""
    parsed, kept = parse_rule(rule), 0.0
    for q, p in visited(rows):
        kept += torch.minimum(judge_every_token(parsed, q, p).relaxed_prob, p).sum().item()
    return kept / rows.positions


def measured(rows: RecordedRows, rule: str) -> dict[str, float]:
    """Return what a rule accepts and costs per visited position, and the largest log-ratio at any."""
    found = dict.fromkeys(("acceptance", "kl", "tv", "regret"), 0.0)
    largest = -math.inf
    for q, p in visited(rows):
        result = audit(rule, q, p)
        lost = torch.where(q > 0, (q - result.output_probs) * q.log(), 0.0).sum(-1)
        for name, each in zip(found, (result.acceptance, result.kl.clamp(min=0), result.tv, lost), strict=True):
            found[name] += each.sum().item() / rows.positions
        largest = max(largest, result.max_log_ratio.max().item())
    return found | {"max_log_ratio": largest}


def greedily(rows: RecordedRows, rule: str) -> dict[str, float]:
    """Return the share of a greedy draft's tokens that a rule for temperature 0 keeps, and what these give up."""
    kept, nats, most = 0.0, 0.0, 0.0
    for q, draft in visited(rows):
        proposed = draft.argmax(-1, keepdim=True)
        passed = parse_rule(rule).judge(q, None, proposed).relaxed_prob > 0
        costs = given_up(q, proposed)[passed]
        kept, nats = kept + passed.sum().item(), nats + costs.sum().item()
        most = max([most, *costs.tolist()])
    return {"acceptance": kept / rows.positions, "regret": nats / rows.positions, "most": most}


def strictest(family: Family, accepts: Callable[[str], float], wanted: float, halvings: int = 12) -> str | None:
    """Return the strictest of a family's rules that accept as much as is wanted, by bisection; None if none does."""
    if family.whole:
        return next((family.spell(knob) for knob in family.knobs(100) if accepts(family.spell(knob)) >= wanted), None)

    def enough(knob: float) -> bool:
        return accepts(family.spell(round_to(knob))) >= wanted

    if not enough(family.loose):
        return None
    return family.spell(round_to(least(enough, family.strict, family.loose, halvings)))


def compute(rows: RecordedRows) -> dict[str, Any]:
    """Return every number of the tables and the picture."""
    accepts, costs = cache(partial(accepted, rows)), cache(partial(measured, rows))
    lossless, most = accepts("lossless"), accepts(LOOSEST)
    table = []
    for name, family in FAMILIES.items():
        wanted = lossless + SHARE * (most - lossless)
        rule = strictest(family, accepts, wanted)
        row: dict[str, Any] = {"family": name, "label": family.label, "rule": rule, "wanted": wanted}
        if rule is not None:
            row |= costs(rule)
            row["clamped"] = costs(strictest(FAMILIES["clamped"], accepts, row["acceptance"]) or LOOSEST)
        drawn_at = (strictest(family, accepts, lossless + at * (most - lossless), 6) for at in DRAWN_SHARES)
        row["curve"] = [[costs(each)[axis] for axis in ("kl", "acceptance")] for each in drawn_at if each]
        table.append(row)
        print(json.dumps({key: each for key, each in row.items() if key != "clamped"}), flush=True)
    found = {"visited": rows.positions, "problems": rows.problems, "lossless": lossless, "table": table}
    return found | {"greedy": compute_greedy(rows), "recorded": dict(rows.provenance)}


def compute_greedy(rows: RecordedRows) -> list[dict[str, Any]]:
    """Return what rules for temperature 0 keep and give up, each at the same shares of the way to everything."""
    families = [family for rule in RULES.values() if issubclass(rule, GreedyRule) for family in rule.families]
    strict = greedily(rows, "relaxed_greedy:margin=0")["acceptance"]
    found = []
    for share, family in product(GREEDY_SHARES, families):
        wanted = strict + share * (1 - strict)
        rule = strictest(family, lambda rule: greedily(rows, rule)["acceptance"], wanted)
        if rule is not None:
            found.append({"label": family.label, "rule": rule, "wanted": wanted} | greedily(rows, rule))
    return found


def with_plain(rows: Sequence[Row]) -> list[Row]:
    """Return rules for temperature 0, and before them plain greedy decoding.

    What is wanted of a rule is counted from what plain greedy decoding keeps, so the first one's says how much that is.
    """
    share = GREEDY_SHARES[0]
    strict = (rows[0]["wanted"] - share) / (1 - share)
    return [{"rule": "lossless", "acceptance": strict, "regret": 0.0, "most": 0.0}, *rows]


def pages() -> dict[Path, dict[str, str]]:
    """Return the tables and the picture of each page."""
    bundled, real = results = [read(path) for path in RESULTS.values()]
    tables = {PICTURE: drawn(bundled["table"], real["table"])}
    for kind, result in zip(RESULTS, results, strict=True):
        tables[f"{kind}frontier"] = _all_rules(result["table"])
        tables[f"{kind}greedy frontier"] = columns(with_plain(result["greedy"]), {"rule": "`{rule}`"} | GIVEN_UP)
    beside = {"frontier": beside_each_other(bundled["table"], real["table"])}
    least_kept = min(each["wanted"] for each in bundled["greedy"])
    some = with_plain([row for row in bundled["greedy"] if row["wanted"] == least_kept])
    return {PAGE: tables, INDEX: beside | {"greedy frontier": columns(some, {"temperature 0": _link} | GIVEN_UP)}}


def _all_rules(rows: Iterable[Row]) -> str:
    found = []
    for row in sorted(rows, key=lambda row: float(row.get("kl", math.inf))):
        if row["rule"] is None:
            found.append([row["label"], "never as much", *[""] * 6])
        else:
            kl, *others = _costs(row)
            cells = f"{row['acceptance']:.3f}", kl, f"{_factor(row):.2f}", *others, _no_worse(row)
            found.append([f"`{row['rule']}`{elsewhere(row)}", *cells])
    head = ["rule", "accepts", "KL, nats", "KL ÷ clamped's", "TV", "log-ratio, at most", "regret"]
    return table([*head, "clamped is no worse in"], found, notes=1)


def elsewhere(row: Row) -> str:
    """Say so if a rule was measured on other positions than the table's."""
    return f", on {row['rows']['visited']:,} other positions" if "rows" in row else ""


def _factor(row: Row) -> float:
    return float(row["kl"]) / float(row["clamped"]["kl"])


def _costs(row: Row) -> list[str]:
    return [f"{float(row[name]):.{digits}f}" for name, (digits, *_) in COSTS.items()]


def _no_worse(row: Row) -> str:
    """Say in what the clamped ratio is no worse than a rule, by the digits shown: beyond them acceptances differ."""
    pairs = zip(COSTS.values(), _costs(row["clamped"]), _costs(row), strict=True)
    better = [short for (_, short, _), ours, theirs in pairs if float(ours) <= float(theirs)]
    if row["family"] == "clamped" or not better:  # than itself it is no worse
        return "none"
    return "all" if len(better) == len(COSTS) else ", ".join(better)


def beside_each_other(*pairs: Sequence[Row]) -> str:
    """Return what each rule's best family on the first pair costs there, and its nats on the second."""
    by_factor = (sorted((row for row in rows if row["rule"]), key=_factor, reverse=True) for rows in pairs)
    first, second = ({row["rule"].partition(":")[0]: row for row in rows} for rows in by_factor)
    head, found = ("rule", "accepts", "KL", "KL ÷ clamped's", "real pair", "TV", "ratio", "regret", "dominated"), []
    for name, row in sorted(first.items(), key=lambda item: _factor(item[1])):
        real = f"{_factor(second[name]):.2f}" + r"\*" * ("rows" in second[name])
        numbers = f"{row['acceptance']:.3f}", f"{row['kl']:.3f}", f"{_factor(row):.2f}", real, *_costs(row)[1:]
        found.append([_link(row), *numbers, "yes" * (_no_worse(row) == "all")])
    return table(head, found, notes=1)


def _link(row: Row) -> str:
    name = row["rule"].partition(":")[0]
    return f"[{RULES[name].title}]({name}.md)"


def drawn(table: Sequence[Row], real: Sequence[Row]) -> str:
    """Return what rules accept and cost, as SVG: on either pair, then on the first where all accept as much."""

    def curves(rows: Sequence[Row], title: str, axes: Axes) -> None:
        for row in rows:
            if row["rule"] and row.get("curve"):
                axes.plot(*zip(*row["curve"], strict=True), **style_of(row["rule"]).keywords() | {"markersize": 3})
        axes.set(title=title, xlabel=COSTS["kl"][2], ylabel="acceptance")

    def points(name: str, axes: Axes) -> None:
        for row in table:
            if row["rule"] is not None:
                look = style_of(row["rule"]).keywords() | {"linestyle": "", "markersize": 7}
                axes.plot(float(row["kl"]), float(row[name]), **look, label=row["label"])
        axes.set(xlabel=COSTS["kl"][2], ylabel=COSTS[name][2])
        axes.locator_params(axis="x", nbins=5)

    pairs = partial(curves, table, "bundled pair"), partial(curves, real, "real pair")
    return picture(*pairs, *(partial(points, name) for name in [*COSTS][1:]), size=(15, 5.6), below=True)


def main() -> None:
    """Measure unless told otherwise, then render."""
    given = parse(
        __doc__,
        rows=(None, "recorded rows; the bundled pair's are recorded without", {"type": Path}),
        positions=(5000, "about so many; of --rows every n-th"),
        only_render=False,
    )
    options.prepare_process(1, small=True)
    if not given.only_render:
        rows = recorded(given.positions) if given.rows is None else thinned(read_rows(given.rows), given.positions)
        about = {"study": "rules.frontier", "positions": rows.positions}
        write(RESULTS["real_" if given.rows else ""], compute(rows), about)
    for page, shown in pages().items():
        put(page, shown)


if __name__ == "__main__":
    main()
