"""From result files to a recommendation: the fastest rule whose score is known to hold, if lossless is not faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cactus_decoding.lab.evaluation.intervals import problems_to_show
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.summary import RunSummary


@dataclass(frozen=True, eq=False)
class Advice:
    """What the results of one task, pair and sampling say.

    The baseline is lossless at its own best draft length; of the candidates, fastest first, those are ``within`` whose
    score drop is within the limit with confidence, and ``chosen`` is the fastest of these.
    """

    config: RunConfig
    baseline: RunSummary
    candidates: tuple[RunSummary, ...]
    within: tuple[RunSummary, ...]
    chosen: RunSummary | None
    faster: bool
    text: str

    @property
    def recommended(self) -> RunSummary:
        """What to use: the fastest rule whose score holds if it is faster beyond chance, else the baseline."""
        return self.chosen if self.chosen is not None and self.faster else self.baseline


def advise(summaries: Iterable[RunSummary], task: str, max_drop: float) -> list[Advice]:
    """Return advice for each pair and sampling that a task was answered with.

    A setting is within the limit where the whole 95 % interval of its score less the baseline's (`paired_difference`)
    is at or above ``-max_drop``. Problems that are too few to show this show it of no setting.
    """
    found = list(summaries)
    ours = [summary for summary in found if summary.config.task == task]
    if not ours:
        known = ", ".join(dict.fromkeys(summary.config.task for summary in found)) or "none"
        raise ValueError(f"there is no result of task {task!r}; there are: {known}")
    if any(summary.metrics["score"] is None for summary in ours):
        raise ValueError(f"task {task!r} has no score, so a score drop says nothing about it; use --max-nats")
    groups: dict[tuple[object, ...], list[RunSummary]] = {}
    for summary in ours:
        groups.setdefault(summary.config.comparable, []).append(summary)
    return [_advise(group, max_drop) for group in groups.values()]


def _advise(summaries: Sequence[RunSummary], max_drop: float) -> Advice:
    baselines = [summary for summary in summaries if summary.group is summary.baseline]
    if not baselines:
        config = summaries[0].config
        raise ValueError(
            f"task {config.task!r} with {config.target} and {config.draft} has no lossless run to compare with; add "
            "--rule lossless to cactus eval"
        )
    baseline = baselines[0]
    alone = [summary for summary in summaries if summary.config.num_speculative_tokens == 0]
    candidates = sorted((summary for summary in summaries if summary.config.rule != "lossless"), key=_seconds)
    within = [summary for summary in candidates if summary.known("score_difference").low >= -max_drop]
    chosen = within[0] if within else None
    ratio = None if chosen is None else chosen.metrics["seconds_ratio"]
    faster = ratio is not None and ratio.high < 1
    text = _words(baseline, candidates, within, faster, max_drop)
    if alone and _seconds(alone[0]) < min(map(_seconds, [baseline, *within[:1]])):
        text += " The target alone is faster than all of them on this machine."
    return Advice(summaries[0].config, baseline, tuple(candidates), tuple(within), chosen, faster, text)


def _seconds(summary: RunSummary) -> float:
    return summary.known("seconds_per_answer").value


def _words(
    baseline: RunSummary, candidates: list[RunSummary], within: list[RunSummary], faster: bool, max_drop: float
) -> str:
    """Say which setting to take, and why."""
    length = baseline.config.num_speculative_tokens
    length = f"{length} proposals per step" if isinstance(length, int) else f"the draft length {length}"
    take = f"Lossless with {length}, its best length: "
    if not candidates:
        return take + "no other rule was measured."
    if not within:
        problems, needed = baseline.config.problems, problems_to_show(max_drop) if max_drop else None
        why = f"no setting of another rule is known to lose at most {max_drop:g} of the score."
        if needed is None:
            return f"{take}{why} That takes a setting whose score is higher beyond chance: allow a drop above 0."
        if problems < needed:
            return f"{take}{why} {problems} problems are too few to tell: it takes at least {needed}."
        return f"{take}{why} More problems may show that one does."
    chosen = within[0]
    ratio, difference = chosen.known("seconds_ratio"), chosen.known("score_difference")
    ends = f"95 %: {ratio.low:.3f} to {ratio.high:.3f}" if ratio.has_ends else "too few problems to tell"
    spread = f"{ratio.value:.3f} times its wall time per answer ({ends})"
    score = f"score {difference.value:+.3f} (95 %: {difference.low:+.3f} to {difference.high:+.3f})"
    if faster:
        text = f"{chosen.config.label}: {spread.replace('its', 'the')} of lossless with {length}, {score}."
        if len(within) > 1:
            text += f" It is the fastest of {len(within)} settings within the limit: confirm it on fresh problems."
        return text
    why = "slower" if ratio.low > 1 else "no faster beyond chance"
    return take + f"{chosen.config.label}, the fastest setting within the limit, takes {spread}, {score}: {why}."
