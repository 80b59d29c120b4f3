"""How responses and counts look on a terminal, and as plain text elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cactus_decoding import Fate, Outcome, Response
    from cactus_decoding.core.models.tokenizers import DecodedPart, Tokenizer
    from cactus_decoding.core.types import Choice
    from cactus_decoding.lab.tracing import TracedStep

# of each fate: a colour of Okabe and Ito, which colour-blind people can tell apart (contrast at least 3:1 on black and
# on white), the nearest on terminals of 16 colours, and a second cue
_STYLES = {
    "accepted": ("#009e73", "green", ""),
    "relaxed": ("#d55e00", "yellow", "bold underline"),
    "matched": ("#0072b2", "blue", "italic underline"),
    "recovered": ("#0072b2", "blue", "italic"),
    "bonus": ("#cc79a7", "magenta", "bold"),
}

_EXPLANATIONS = {
    "relaxed": " by the rule",
    "matched": " another proposal after a rejection",
    "recovered": " after a rejection",
    "bonus": " if none",
}
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    code: ord(".") for code in range(0x7F, 0xA0)
}  # what a model writes must not command the terminal


def styles(console: Console) -> dict[str, str]:
    few = console.color_system in (None, "standard", "windows")
    return {fate: f"{cue} {plain if few else colour}" for fate, (colour, plain, cue) in _STYLES.items()}


def legend(console: Console) -> Text:
    line = Text()
    for fate, style in styles(console).items():
        line.append(" · " if line else "", "dim").append(fate, style).append(_EXPLANATIONS.get(fate, ""), "dim")
    return line


def show(steps: Iterable[Outcome | TracedStep], tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
    """Write a response's steps to stdout as they come, styled by fate if stdout is a terminal."""
    from cactus_decoding.core.models.tokenizers import IncrementalDetokenizer

    console = Console(highlight=False, soft_wrap=True)
    if console.is_terminal:
        console.print(legend(console), end="\n\n")
    detokenizer: IncrementalDetokenizer[Fate] = IncrementalDetokenizer(tokenizer, stop)
    look = styles(console)
    for step in steps:
        for token_id, fate in zip(step.token_ids, step.fates, strict=True):
            write(console, detokenizer.push(token_id, fate), look)
        console.file.flush()
    write(console, detokenizer.finish(), look)
    console.file.write("\n")


def write(console: Console, parts: list[DecodedPart[Fate]], look: dict[str, str]) -> None:
    """Write parts of a text to a console, each in the style of its token's fate; plain if it is not a terminal."""
    for part in parts:
        if console.is_terminal:
            console.print(Text(part.text.translate(_CONTROLS), look[part.fate]), end="")
        else:
            console.file.write(part.text)


def rounded(value: float, digits: int = 2) -> str:
    """Format a number for a table; a ratio over zero is a dash."""
    if isinstance(value, int):
        return str(value)
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def pass_times_text(times: Mapping[str, Any]) -> str:
    """Return pass times and their source, in one line.

    >>> times = {"source": "times.json", "target": [[1, 0.1], [2, 0.16]], "draft": 0.04, "reading": 0.0}
    >>> pass_times_text(times)
    'pass times times.json: 1, 2 tokens in 100, 160 ms, a drafted one in 40 ms'
    """
    widths, seconds = zip(*times["target"], strict=True)
    drafted = f", a drafted one in {1000 * times['draft']:.3g} ms" if times["draft"] else ""
    taken = ", ".join(f"{1000 * each:.3g}" for each in seconds)
    return f"pass times {times['source']}: {', '.join(map(str, widths))} tokens in {taken} ms{drafted}"


def summary_line(response: Response) -> str:
    metrics, request = response.metrics, response.request
    parts = [
        f"{counted(metrics.generated, 'token')} in {counted(metrics.steps, 'step')}, "
        f"{rounded(metrics.generated / max(1, metrics.steps), 1)} per step, {metrics.seconds:.1f} s"
    ]
    if not metrics.drafted and getattr(request.draft_length, "learns", None):
        parts.append("nothing was proposed: it did not seem to pay here; 'cactus tune' shows why")
    if str(request.rule) != "lossless":
        parts.append(f"{metrics.relaxed} relaxed")
        if metrics.relaxed and not metrics.metered:
            parts.append("nats not measured (--budget inf measures them)")
    if metrics.metered:
        limit = math.inf if request.budget is None else request.budget.limit
        parts.append(f"{metrics.nats:.3f} nats" + (f" of {limit:.3g}" if math.isfinite(limit) else ""))
    if not request.policy.everywhere:
        parts.append(f"{counted(metrics.protected, 'position')} protected")
    if response.finish_reason == "length":
        parts.append("cut by --max-new-tokens or the context window")
    return "; ".join([*parts, f"seed {request.seed}"])


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def metrics_table(response: Response) -> Table:
    """Return a response's counts and ratios by their names in JSON."""
    metrics = response.metrics
    same = "the same seed gives the same text"
    if getattr(response.request.draft_length, "learns", "") == "always" and not response.request.one_text:
        same = "drawn; it repeats the text with --verification coupled"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("meaning", style="dim")
    for name, value, meaning in (
        ("acceptance_length", metrics.acceptance_length, "tokens per step: 1 + accepted / steps"),
        ("accepted_per_step", metrics.accepted_per_step, "accepted / steps"),
        ("acceptance_rate", metrics.acceptance_rate, "accepted / drafted"),
        ("steps", metrics.steps, "forward passes of the target"),
        ("drafted", metrics.drafted, "tokens that the draft proposed"),
        ("accepted", metrics.accepted, "of these, kept by the rule"),
        *_forced(response),
        ("relaxed", metrics.relaxed, "accepted, though the lossless test rejects them"),
        ("recovered", metrics.recovered, "drawn after a rejection"),
        ("bonus", metrics.bonus, "drawn where no proposal was rejected"),
        ("generated", metrics.generated, f"tokens of the answer; finish_reason: {response.finish_reason}"),
        *_protected(response),
        *_spent(response),
        ("tokens_per_second", metrics.tokens_per_second, f"in {metrics.seconds:.2f} seconds"),
        ("seed", str(response.request.seed), same),
    ):
        table.add_row(name, value if isinstance(value, str) else rounded(value), meaning)
    return table


def choices_table(choices: Sequence[Choice]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("answer")
    for name in ("probability", "log-probability"):
        table.add_column(name, justify="right")
    for choice in sorted(choices, key=lambda each: -each.logprob):
        table.add_row(Text(choice.text), f"{choice.probability:.4f}", f"{choice.logprob:.2f}")
    return table


def _forced(response: Response) -> list[tuple[str, float | str, str]]:
    forced = response.metrics.forced
    return [("forced", forced, "accepted, and the only token that fits")] if forced else []


def _protected(response: Response) -> list[tuple[str, float | str, str]]:
    policy = response.request.policy
    return (
        []
        if policy.everywhere
        else [("protected", response.metrics.protected, f"positions that the lossless rule judges: {policy}")]
    )


def _spent(response: Response) -> list[tuple[str, float | str, str]]:
    metrics, budget = response.metrics, response.request.budget
    if not metrics.metered:
        return []
    rows: list[tuple[str, float | str, str]] = [
        ("nats", f"{metrics.nats:.4f}", f"spent at {metrics.metered} verified positions")
    ]
    if budget is not None and math.isfinite(budget.limit):
        promise = f": moves no event by more than {budget.max_shift:g}" if budget.max_shift is not None else ""
        rows.append(("budget_left", f"{response.budget_left:.4f}", f"of {budget.limit:.4g} nats{promise}"))
        rows.append(("fell_back", metrics.fell_back, "positions that the budget could not afford, judged losslessly"))
    return rows


LINES = 10  # without a terminal, a whole run writes at least so many
LONG_SECONDS = 60  # and another one after so long without a line
AT_ONCE = 0.005  # what is done so soon after the last one was done before


def duration(seconds: float) -> str:
    """Return a time for people.

    >>> duration(50), duration(1000), duration(12000)
    ('about 1 min', 'about 17 min', 'about 3 h 20 min')
    """
    minutes = max(1, round(seconds / 60))
    return f"about {minutes} min" if minutes < 100 else f"about {minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show progress towards a total; yields a function of how much is done and, optionally, a remark."""
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[remark]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    every, printed = max(1, total // LINES), time.monotonic()
    last, began, before = printed, printed, 0

    def line(done: int, remark: str = "") -> None:
        nonlocal printed, last, began, before
        now = time.monotonic()
        if not before or now - last < AT_ONCE:  # not the pace, but loading or an earlier command
            began, before = now, done
        last = now
        if before < done < total:
            left = (now - began) / (done - before) * (total - done)
            remark = f"{remark}, {duration(left)} left" if left >= LONG_SECONDS else remark
        if done % every == 0 or done in (1, total) or now - printed > LONG_SECONDS:
            printed = now
            console.print(f"{what}: {done}/{total} {remark}".rstrip(), soft_wrap=True)

    if not console.is_terminal:
        yield line
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total, remark="")
        yield lambda done, remark="": progress.update(task, completed=done, remark=remark)


class Stages:
    def __init__(self) -> None:
        self._stage = ""
        self._open = ExitStack()
        self._show: Callable[..., None] = lambda done, remark: None

    def __enter__(self) -> Callable[[str, int, int, str], None]:
        return self._report

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def _report(self, stage: str, done: int, total: int, remark: str) -> None:
        if stage != self._stage:
            self._open.close()
            self._stage, self._show = stage, self._open.enter_context(counting(stage, total))
        self._show(done, remark)
