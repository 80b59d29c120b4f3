"""The study of all rules on the bundled target: regenerates the tables and pictures of docs/studies/rules.md.

    python -m studies.rules.run                          everything: hours on one core, can be interrupted and continued
    python -m studies.rules.run --sampling truncated     one of the two samplings, for a process of its own
    python -m studies.rules.run --only-render            tables and pictures again, from the result files

Widths are matched on validation problems; answers are to held-out ones. Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cactus_decoding import Request, SamplingParams, load_pair
from cactus_decoding.cli import options
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.frontier.frontier import Frontier
from cactus_decoding.lab.frontier.recording import record_rows
from scripts.pages import put
from scripts.results import read, write
from studies.rules.page import shown
from studies.study import answer, least, parser_of_answers

FOLDER = Path(__file__).with_name("results")
SAMPLINGS = {"plain": SamplingParams(), "truncated": SamplingParams(temperature=0.6, top_k=20, top_p=0.95)}
PUBLISHED = ("typical", "top_k:k=10", "ensemble:weight=0.3", "cactus:delta=0.75", "cactus:delta=1.0")
"""What the Cactus paper's first table compares, with the defaults of this package where it leaves a knob open."""
EXACT = "cactus:delta=1.0,solver=exact"


@dataclass(frozen=True)
class Part:
    """A draft with the draft lengths of lossless (0: the target alone), of each rule, and of the clamped ratio.

    The clamped ratio is asked at the acceptance of a rule, by that rule.
    """

    draft: str
    problems: int
    lossless: tuple[int, ...]
    rules: Mapping[str, tuple[int, ...]]
    matched: Mapping[str, tuple[int, ...]]


_SIDE: dict[str, Any] = {
    "problems": 120,
    "lossless": (0, 2, 4, 10),
    "rules": {"cactus:delta=1.0": (4, 10), "typical": (10,), "ensemble:weight=0.3": (10,)},
    "matched": {"cactus:delta=1.0": (10,)},
}
PARTS = (
    Part(
        draft="bundled:draft",
        problems=1000,
        lossless=(0, 2, 4, 6, 10, 20),
        rules=dict.fromkeys((*PUBLISHED, EXACT), (10, 20)) | {"cactus:delta=0.1": (10,)},
        matched={"cactus:delta=1.0": (10, 20), "cactus:delta=0.1": (10,)},
    ),
    Part(
        draft="bundled:draft",
        problems=300,
        lossless=(0, 4, 6, 8),
        rules={"cactus:delta=1.0": (4, 6, 8)},
        matched={"cactus:delta=1.0": (4, 6, 8)},
    ),
    Part(draft="early_exit:layers=3", **_SIDE),
    Part(draft="ngram", **_SIDE),
)


def match(draft: str, sampling: SamplingParams, positions: int) -> dict[str, dict[str, Any]]:
    """Return, by rule, the width of the clamped ratio with the same acceptance at a lossless run's positions."""
    task = parse_task("word_problems:split=validation", None)
    pair = load_pair(draft=draft)
    prompts = [problem.prompt for problem in task.problems]
    request = Request(num_speculative_tokens=10, sampling=sampling, stop=task.stop)
    rows = record_rows(pair, prompts, request, positions=positions)
    frontier = Frontier(rows)
    found = {}
    for rule in dict.fromkeys(rule for part in PARTS if part.draft == draft for rule in part.matched):
        wanted = frontier.measure(rule)

        def enough(width: float, wanted: float = wanted.acceptance.value) -> bool:
            return frontier.measure(f"clamped:width={width!r}").acceptance.value >= wanted

        width = float(f"{least(enough, 1e-3, 100.0, 14):.3g}")
        clamped = frontier.measure(f"clamped:width={width!r}")
        both = {"rule": wanted.as_dict(), "clamped": clamped.as_dict()}
        found[rule] = {"width": width, "positions": rows.positions} | both
    return found


def configs(
    part: Part, sampling: SamplingParams, widths: Mapping[str, float], problems: int | None
) -> Iterator[RunConfig]:
    """Yield what is answered side by side."""
    asked = min(part.problems, problems or part.problems)
    lengths_of = {"lossless": part.lossless, **part.rules}
    lengths_of |= {f"clamped:width={widths[rule]!r}": lengths for rule, lengths in part.matched.items()}
    for rule, lengths in lengths_of.items():
        for length in lengths:
            request = Request(rule, num_speculative_tokens=length, sampling=sampling)
            yield RunConfig("word_problems", "bundled", part.draft, problems=asked, request=request)


def widths_of(folder: Path, sampling: str, arguments: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the matched widths of a sampling by draft and rule: those of the file, or new ones that are kept in it."""
    path = folder / f"matched-{sampling}.json"
    if not path.exists():
        matched: dict[str, Any] = {}
        for draft in dict.fromkeys(part.draft for part in PARTS):
            print(f"matching widths: {sampling}, draft {draft}", flush=True)
            matched[draft] = match(draft, SAMPLINGS[sampling], arguments["positions"])
        write(path, {"matched": matched}, arguments)
    return read(path)["matched"]  # type: ignore[no-any-return]


def answer_all(folder: Path, sampling: str, arguments: Mapping[str, Any]) -> None:
    """Answer what the result file of a sampling lacks."""
    matched = widths_of(folder, sampling, arguments)
    for part in PARTS:
        widths = {rule: found["width"] for rule, found in matched[part.draft].items()}
        asked = list(configs(part, SAMPLINGS[sampling], widths, arguments["problems"]))
        answer(folder / f"{sampling}.jsonl", asked, provenance(arguments))


def main() -> None:
    """Answer what is missing, then render."""
    positions = (4000, "validation positions on which widths are matched")
    given = parser_of_answers(__doc__, SAMPLINGS, FOLDER, positions=positions).parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    arguments = {"study": "rules", "problems": given.problems, "positions": given.positions}
    options.prepare(1, small=True)
    if not given.only_render:
        for sampling in given.sampling:
            answer_all(given.folder, sampling, arguments)
    if not given.only_answer:
        put(given.page, shown(given.folder, list(SAMPLINGS)))


if __name__ == "__main__":
    main()
