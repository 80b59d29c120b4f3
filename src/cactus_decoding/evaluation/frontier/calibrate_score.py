"""From result files to a recommendation: the fastest rule whose score is known to hold, if lossless is not faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cactus_decoding.evaluation.run_config import Cell
from cactus_decoding.evaluation.runs.summary import Row, comparable


@dataclass(frozen=True, eq=False)
class Advice:
    """What the results of one task, pair and sampling say.

    Attributes:
        cell: any cell of them.
        baseline: lossless at its own best draft length.
        candidates: the other rules' settings, fastest first.
        within: those whose score drop is within the limit with confidence.
        chosen: the fastest of these; None if there is none.
        faster: whether it is faster than the baseline beyond chance.
        verdict: the same in words.
    """

    cell: Cell
    baseline: Row
    candidates: tuple[Row, ...]
    within: tuple[Row, ...]
    chosen: Row | None
    faster: bool
    verdict: str


def advise(rows: Iterable[Row], task: str, max_drop: float) -> list[Advice]:
    """Return advice for each pair and sampling that a task was answered with.

    A setting is within the limit where the whole 95 % interval of its score less the baseline's (paired bootstrap over
    problems) is at or above ``-max_drop``.

    Raises:
        ValueError: for a task without results, without scores, or without a lossless cell.
    """
    found = list(rows)
    ours = [row for row in found if row.cell.task == task]
    if not ours:
        known = ", ".join(dict.fromkeys(row.cell.task for row in found)) or "none"
        raise ValueError(f"there is no result of task {task!r}; there are: {known}")
    if any(row.metrics["score"] is None for row in ours):
        raise ValueError(f"task {task!r} has no score, so a score drop says nothing about it; use --max-nats")
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in ours:
        groups.setdefault(comparable(row.cell), []).append(row)
    return [_advise(group, max_drop) for group in groups.values()]


def _advise(rows: Sequence[Row], max_drop: float) -> Advice:
    baselines = [row for row in rows if row.setting is row.baseline]
    if not baselines:
        cell = rows[0].cell
        raise ValueError(
            f"task {cell.task!r} with {cell.target} and {cell.draft} has no lossless cell to compare with; add "
            "--rule lossless to cactus eval"
        )
    baseline = baselines[0]
    alone = [row for row in rows if row.cell.num_speculative_tokens == 0]
    candidates = sorted((row for row in rows if row.cell.rule != "lossless"), key=_seconds)
    within = [row for row in candidates if _difference(row) >= -max_drop]
    chosen = within[0] if within else None
    ratio = None if chosen is None else chosen.metrics["seconds_ratio"]
    faster = ratio is not None and ratio.high < 1
    text = _words(baseline, candidates, within, faster, max_drop)
    if alone and _seconds(alone[0]) < min(map(_seconds, [baseline, *within[:1]])):
        text += " The target alone is faster than all of them on this machine."
    return Advice(rows[0].cell, baseline, tuple(candidates), tuple(within), chosen, faster, text)


def _seconds(row: Row) -> float:
    seconds = row.metrics["seconds_per_answer"]
    assert seconds is not None
    return seconds.value


def _difference(row: Row) -> float:
    """Return the low end of the score's difference to the baseline's."""
    difference = row.metrics["score_difference"]
    assert difference is not None
    return difference.low


def setting_of(row: Row) -> str:
    """Return a row's rule and draft length, for people."""
    from cactus_decoding.evaluation.runs.runner import label

    return label(row.cell)


def _words(baseline: Row, candidates: list[Row], within: list[Row], faster: bool, max_drop: float) -> str:
    """Say which setting to take, and why."""
    length = baseline.cell.num_speculative_tokens
    length = f"{length} proposals per step" if isinstance(length, int) else f"the draft length {length}"
    take = f"Lossless with {length}, its best length: "
    if not candidates:
        return take + "no other rule was measured."
    if not within:
        return take + (
            f"no setting of another rule is known to lose at most {max_drop:g} of the score. More problems may show "
            "that one does."
        )
    chosen = within[0]
    ratio, difference = chosen.metrics["seconds_ratio"], chosen.metrics["score_difference"]
    assert ratio is not None
    assert difference is not None
    spread = f"{ratio.value:.3f} times its wall time per answer (95 %: {ratio.low:.3f} to {ratio.high:.3f})"
    score = f"score {difference.value:+.3f} (95 %: {difference.low:+.3f} to {difference.high:+.3f})"
    if faster:
        text = f"{setting_of(chosen)}: {spread.replace('its', 'the')} of lossless with {length}, {score}."
        if len(within) > 1:
            text += f" It is the fastest of {len(within)} settings within the limit: confirm it on fresh problems."
        return text
    why = "slower" if ratio.low > 1 else "no faster beyond chance"
    return take + f"{setting_of(chosen)}, the fastest setting within the limit, takes {spread}, {score}: {why}."
