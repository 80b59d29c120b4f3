"""What `cactus demo` prints: bars, what they show and cannot show, and an answer that broke."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from cactus_decoding.cli.display import number
from cactus_decoding.core.types import judges_untempered
from cactus_decoding.lab.evaluation.intervals import (
    TAIL,
    Interval,
    Numbers,
    bootstrapped,
    paired_difference,
    problems_to_show,
    resampled_sums,
)

if TYPE_CHECKING:
    from cactus_decoding import Metrics, Pair, Request, Response
    from cactus_decoding.lab.evaluation.score import Score
    from cactus_decoding.zoo.word_problems import WordProblem

BAR = 8  # characters of the longest bar
POINTS = 0.02  # a loss of right answers that a user would want to know of


def report(
    ways: DemoComparison, problems: Sequence[WordProblem], console: Console, *, verbose: bool
) -> Iterator[RenderableType]:
    """Yield a table and a sentence for each way; ``verbose`` adds intervals, a weak draft and a budget."""
    shown = ways.all if verbose else ways.main
    yield table(ways, shown, "#" if console.options.ascii_only else "█")
    yield ""
    for way in ways.main:
        yield f"[bold]{way.name}[/bold]: {sentence(way, ways)}"
    if verbose:
        yield comparison(ways)
        yield ""
        if (found := broken(ways)) is not None:
            yield broken_answer(ways, problems[found[1]], *found)
        yield f"[bold]{ways.budgeted.name}[/bold]: {budgeted(ways)}"
    more = "" if verbose else " --verbose adds a weak draft, without and with a budget."
    yield f"\n{too_few(len(problems))}{more}"


def table(ways: DemoComparison, listed: Sequence[Way], full: str = "█") -> Table:
    """Return right answers and speeds, with bars made of a character."""
    sampling = ways.plain.request.sampling.described
    shown = _new_table(
        f"{ways.plain.score.answers} held-out problems, {sampling}\nrelaxed: {ways.unprotected.request.rule}",
        *(
            "draft\nlength",
            "tokens\nper step",
            "tokens\nper second",
            "seconds\n/answer",
            "right answers\n(95 % interval)",
        ),
    )
    steps = [way.score.metrics.acceptance_length for way in listed]
    speeds = [way.score.metrics.tokens_per_second for way in listed]
    for way, step, speed in zip(listed, steps, speeds, strict=True):
        low, high = way.score.interval
        shown.add_row(
            way.name,
            str(way.proposals) if way.proposals else "–",
            _barred(step / max(steps), f"{number(step):>5}", full),
            _barred(speed / max(speeds), f"{number(speed, 0):>4}", full),
            number(way.score.seconds_per_answer, 3),
            f"{way.score.right}/{way.score.answers} {100 * low:.0f}–{100 * high:.0f} %",
        )
    return shown


def _new_table(title: str, *columns: str) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    shown.title, shown.title_style, shown.title_justify = f"\n{title}", "bold", "left"
    shown.add_column("sampling", no_wrap=True)
    for name in columns:
        shown.add_column(name, justify="right", no_wrap=True)
    return shown


def bar(share: float, full: str = "█") -> str:
    """Return a bar for a share of the longest one.

    >>> bar(1.0), bar(0.5, "#"), bar(0.01)
    ('████████', '####', '▏')
    """
    eighths = max(1, round(8 * BAR * share)) if share > 0 else 0
    rest = eighths % 8 if full == "█" else 0
    return full * (eighths // 8) + (chr(0x2590 - rest) if rest else "")


def _barred(share: float, value: str, full: str) -> Text:
    return Text.assemble((f"{bar(share, full):<{BAR}}", "green"), " ", value)


def comparison(ways: DemoComparison) -> Table:
    """Return every relaxed way beside lossless speculation, with 95 % intervals, paired by problem."""
    shown = _new_table(
        "Beside lossless speculation (95 % interval)", "tokens per step", "time per answer", "right answers, points"
    )
    for way in ways.relaxed:
        beside = beside_lossless(way, ways.lossless)
        steps, time, right = beside["tokens_per_step"], beside["time_per_answer"], beside["right_answers"]
        shown.add_row(way.name, _percent(steps), _percent(time), _points(right))
    return shown


def sentence(way: Way, ways: DemoComparison) -> str:
    """Say what a way is, and what it gives beside lossless speculation."""
    if way is ways.plain:
        return "the target writes alone, one token per step."
    if way is ways.lossless:
        time = time_beside(way, ways.plain).value
        return f"answers have the target's own distribution, and take {time:.2f} of its time."
    beside = beside_lossless(way, ways.lossless)
    return (
        f"beside lossless it has {_percent(beside['tokens_per_step'])} tokens per step, "
        f"{_percent(beside['time_per_answer'])} time per answer and {_points(beside['right_answers'])} points of right "
        f"answers. {judged(beside['time_per_answer'], beside['right_answers'])}"
    )


def judged(time: Interval, right: Interval) -> str:
    """Say what two 95 % intervals mean.

    >>> judged(Interval(0.9, 0.88, 0.93), Interval(0.005, -0.04, 0.05))
    'It is faster, with no loss that this run can see.'
    >>> judged(Interval(1.1, 1.05, 1.2), Interval(-0.1, -0.15, -0.05))
    'It is no faster on this machine, and it loses right answers, more than chance explains.'
    """
    if time.has_ends and time.high < 1:
        speed = "It is faster"
    elif time.has_ends and time.low > 1:
        speed = "It is no faster on this machine"
    else:
        speed = "This run cannot tell whether it is faster"
    if right.high < 0:
        but = "but" if speed == "It is faster" else "and"
        return f"{speed}, {but} it loses right answers, more than chance explains."
    return f"{speed}, with no loss that this run can see."


def broken(ways: DemoComparison) -> tuple[Way, int] | None:
    """Return the first problem that lossless and protected sampling solved and a rule everywhere did not, and whose."""
    for way in (ways.unprotected, ways.weak):
        answers = zip(ways.lossless.right, ways.protected.right, way.right, strict=True)
        for index, (lossless, protected, everywhere) in enumerate(answers):
            if lossless and protected and not everywhere:
                return way, index
    return None


def broken_answer(ways: DemoComparison, problem: WordProblem, way: Way, index: int) -> Table:
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, title_justify="left", expand=True)
    shown.title, shown.title_style = Text(f"A broken answer. {problem.question}"), ""
    shown.add_column(f"{ways.protected.name}: right ({problem.answer})", ratio=1)
    shown.add_column(f"{way.name}: wrong", ratio=1)
    shown.add_row(*(Text(each.texts[index].strip()) for each in (ways.protected, way)))
    return shown


def budgeted(ways: DemoComparison) -> str:
    way, budget, metrics = ways.budgeted, ways.budgeted.request.budget, ways.budgeted.score.metrics
    if budget is None or not metrics.metered:
        return "Nothing was drafted, so nothing was spent."
    said = (
        f"With {budget.limit:g} nats per response the rule with the weak draft spent "
        f"{metrics.nats / way.score.answers:.4f} on average; at {100 * metrics.fell_back / metrics.metered:.0f} % of "
        "the positions it could not afford its choice, and the lossless rule decided."
    )
    if judges_untempered(way.request.rule):
        return f"{said} No response gives up more than {budget.limit:g} nats of log-probability."
    return (
        f"{said} Whatever rule, draft and prompt, no event, such as a right answer, has its probability "
        f"moved by more than sqrt({budget.limit:g}/2) = {budget.shift:.2g}."
    )


def too_few(problems: int) -> str:
    """Return what so few problems cannot tell.

    >>> too_few(20)[:96]
    '20 problems cannot tell 2 points: even if all answers agreed, 16.8 points could not be excluded.'
    """
    needed = problems_to_show(POINTS)
    if problems >= needed:
        return f"{problems} problems exclude a loss of {100 * POINTS:g} points only where nearly all answers agree."
    return (
        f"{problems} problems cannot tell {100 * POINTS:g} points: even if all answers agreed, "
        f"{100 * (1 - TAIL ** (1 / problems)):.1f} points could not be excluded. --problems 1000 tells more."
    )


def beside_lossless(ours: Way, lossless: Way) -> dict[str, Interval]:
    """Return the ratios of tokens per step and of times per answer, and the difference of right answers."""
    steps = _ratio(ours, lossless, lambda counts: counts.accepted + counts.steps, lambda counts: counts.steps)
    return {
        "tokens_per_step": steps,
        "time_per_answer": time_beside(ours, lossless),
        "right_answers": gained(ours, lossless),
    }


def gained(ours: Way, theirs: Way) -> Interval:
    return paired_difference(np.array(ours.right, dtype=np.float64) - np.array(theirs.right, dtype=np.float64))


def time_beside(ours: Way, theirs: Way) -> Interval:
    return _ratio(ours, theirs, lambda counts: counts.seconds, lambda _: 1)


def _ratio(ours: Way, theirs: Way, over: Callable[[Metrics], float], under: Callable[[Metrics], float]) -> Interval:
    counts = zip(ours.counts, theirs.counts, strict=True)
    columns = np.array([[over(a), under(a), over(b), under(b)] for a, b in counts], dtype=np.float64)
    return bootstrapped(float(_quotient(columns.sum(0))), _quotient(resampled_sums(columns)), len(columns))


def _quotient(sums: Numbers) -> Numbers:
    over, under, over_theirs, under_theirs = np.moveaxis(sums, -1, 0)
    result: Numbers = over * under_theirs / (under * over_theirs)
    return result


def _percent(ratio: Interval) -> str:
    """Return a ratio as a change.

    >>> _percent(Interval(1.125, 1.08, 1.15)), _percent(Interval(0.8, float("nan"), float("nan")))
    ('+12 % (+8 to +15)', '-20 % (too few)')
    """
    value, low, high = (f"{100 * (each - 1):+.0f}" for each in ratio)
    return f"{value} % ({low} to {high})" if ratio.has_ends else f"{value} % (too few)"


def _points(difference: Interval) -> str:
    """Return a difference of shares in points.

    >>> _points(Interval(-0.025, -0.131, 0.066))
    '-2.5 (-13.1 to +6.6)'
    """
    value, low, high = (f"{100 * each:+.1f}" for each in difference)
    return f"{value} ({low} to {high})"


@dataclass
class Way:
    name: str
    draft: str
    request: Request
    score: Score  # right answers and all counts together
    # of each response
    texts: list[str] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    counts: list[Metrics] = field(default_factory=list)

    @property
    def proposals(self) -> int:
        return self.request.num_speculative_tokens.max_draft_tokens

    def stream(self, pair: Pair, problem: WordProblem, seed: int) -> Response:
        from cactus_decoding import stream

        return stream(pair, problem.prompt, self.request.replace(seed=seed))

    def add(self, problem: WordProblem, response: Response) -> None:
        """Count a finished response to the next problem."""
        from cactus_decoding.zoo.word_problems import extract_answer

        self.score.add(problem, response)
        self.texts.append(response.text)
        self.right.append(extract_answer(response.text) == problem.answer)
        self.counts.append(response.metrics)

    def as_dict(self) -> dict[str, object]:
        asked = self.request.as_dict()
        given = {name: asked[name] for name in ("rule", "protect", "budget_nats", "num_speculative_tokens")}
        return (
            {"name": self.name, "draft": self.draft}
            | given
            | self.score.as_dict()
            | {"texts": self.texts, "right_answers": self.right}
        )


@dataclass
class DemoComparison:
    plain: Way
    lossless: Way
    protected: Way  # relaxed where no protected token is at stake
    unprotected: Way  # relaxed everywhere
    weak: Way  # the same with a draft that cannot calculate
    budgeted: Way  # the same with a budget
    cactus: list[Way]  # Cactus with each delta that was asked for

    @property
    def all(self) -> list[Way]:
        return [self.plain, self.lossless, *self.relaxed]

    @property
    def main(self) -> list[Way]:
        """The ways that are told first."""
        return [self.plain, self.lossless, self.protected, self.unprotected, *self.cactus]

    @property
    def relaxed(self) -> list[Way]:
        return [self.protected, self.unprotected, self.weak, self.budgeted, *self.cactus]
