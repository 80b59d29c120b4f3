"""How long forward passes take on this machine: measured once, and kept in a file; and what is asked meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from cactus_decoding.core.drafting.lengths import FixedLength
from cactus_decoding.core.drafting.lookup import LookUpDrafter
from cactus_decoding.core.drafting.timing import BUSY, Clock, PassTimes
from cactus_decoding.core.files.home import user_cache
from cactus_decoding.core.files.provenance import processor
from cactus_decoding.core.files.writing import as_json, write_atomically
from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.core.sampling.params import SamplingFn, SamplingParams
from cactus_decoding.core.types import Drafter

StepSeconds = Callable[[Callable[[], float]], tuple[float, float]]
"""Returns the seconds of a step without proposals by a clock, and of one with one."""
PASS_WIDTHS = (1, 2, 4, 8, 16, 3, 12)
"""Numbers of tokens in the measured passes: kernels work on blocks, so that times between them are not on a line. The
first ones matter most."""
MEASURING_SECONDS = 3.0
"""Seconds after which `measure_passes` begins nothing more, but for passes without which nothing can be chosen."""
_CONTEXT = 2
_DRAFTED = 4
_REPEATS, _LEAST, _ALWAYS = 2, 4, 2
_SHORT = 8
"""Short passes are repeated so often: it costs nothing, and threads that wait for each other disturb them most."""
_SLICE, _ALIKE = 0.005, 1.25
"""Seconds for which a thread usually keeps its core, and how much longer an undisturbed pass may take."""
_ENGINES = ("torch", "transformers", "llama-cpp-python")


def measure_passes(
    target: BaseCachedModel,
    drafter: Drafter,
    clock: Clock | None = None,
    steps: StepSeconds | None = None,
    now: Clock = time.perf_counter,
) -> PassTimes:
    """Time passes of both models over a few tokens, the best of two each, or of eight short ones; both forget all.

    It takes `MEASURING_SECONDS` by ``now``, or six tokens' time where those take longer. Passes that do not fit are
    left out, the widest first: they count as long as those before them token for token, until responses show what they
    take.

    On the CPU the clock is that of the processor, which other work on the machine hardly disturbs: what is decided by
    these times depends on their ratios only. But threads that wait for one that has no core count as busy. Where two
    runs differ much there is a third, and ``source`` says so if none agree. See `as_steps` for ``steps``.
    """
    clock = clock or (time.process_time if target.on_cpu else time.perf_counter)
    until, runs, repeats = now() + MEASURING_SECONDS, list[dict[int, float]](), _REPEATS
    with closing(_timed_runs(target, PASS_WIDTHS, clock, until - 0.4 * MEASURING_SECONDS, _ALWAYS, now)) as timed:
        for run in timed:
            runs.append(run)
            repeats = _SHORT if runs[0][1] < _SLICE else _REPEATS
            if len(runs) >= repeats and (len(runs) > _REPEATS or agree(runs)):
                break
    best = fastest(runs)
    draft, reading, pair = time_drafter(target, drafter, clock, repeats=repeats, until=until, now=now)
    taken = as_steps(best, clock, steps)
    return PassTimes(tuple(taken.items()), draft, reading, "now" if agree(runs) else BUSY, pair)


def as_steps(passes: Mapping[int, float], clock: Clock, steps: StepSeconds | None) -> Mapping[int, float]:
    """Return the seconds of steps from those of passes, by width; where passes are long they are the same.

    ``steps`` measures the seconds of a step without proposals and with one, and is only called where passes are short.

    Example:
        >>> as_steps({1: 0.001, 2: 0.0015, 4: 0.002}, time.process_time, lambda clock: (0.00125, 0.0025))
        {1: 0.00125, 2: 0.0025, 4: 0.003}
    """
    if steps is None or passes[1] >= _SLICE:
        return passes
    plain, proposing = steps(clock)
    beside = max(plain - passes[1], 0.0)
    more = max(proposing - passes.get(2, passes[1]), beside)
    return {width: seconds + (more if width > 1 else beside) for width, seconds in passes.items()}


def agree(runs: Sequence[Mapping[int, float]]) -> bool:
    """Whether two runs took about as long for every pass, and a wider one no less; those shorter than a slice do."""
    nearest = [sorted(run[width] for run in runs if width in run)[:2] for width in sorted(runs[0])]
    alike = all(each[-1] <= _ALIKE * each[0] for each in nearest)
    rising = all(narrow[0] <= _ALIKE * wide[0] for narrow, wide in pairwise(nearest))
    return nearest[0][0] < _SLICE or (alike and rising)


def time_passes(
    model: BaseCachedModel, widths: Sequence[int], clock: Clock, repeats: int = _REPEATS, until: float = math.inf
) -> dict[int, float]:
    """Return the seconds of passes over so many tokens, by ascending width: the best of several, see `time_runs`."""
    return fastest(time_runs(model, widths, clock, repeats, until))


def fastest(runs: Sequence[Mapping[int, float]]) -> dict[int, float]:
    return {width: min(run[width] for run in runs if width in run) for width in sorted(runs[0])}


def time_runs(
    model: BaseCachedModel, widths: Sequence[int], clock: Clock, repeats: int, until: float = math.inf
) -> list[dict[int, float]]:
    """Time passes over so many tokens in turn, several times, and return the seconds by width of each time.

    The model forgets what it had read. The most important widths come first; those that the context window has no room
    for are left out. No further pass is begun that would end after ``until``, by `time.perf_counter`; the first four
    are always timed once.
    """
    with closing(_timed_runs(model, widths, clock, until, _LEAST)) as runs:
        return [*islice(runs, repeats)]


def _timed_runs(
    model: BaseCachedModel,
    widths: Sequence[int],
    clock: Clock,
    until: float,
    least: int,
    now: Clock = time.perf_counter,
) -> Generator[dict[int, float]]:
    """Yield the seconds of passes by width, again and again, until the next pass would end after ``until`` by ``now``.

    The first ``least`` are always timed once. A pass is expected to take as long as the narrower ones, token for token.
    """
    text, context = _text(model, max(widths))
    fitting = [width for width in widths if context + width <= len(text)]
    smallest, longest = 1e-9, 0.0  # seconds by a clock that has not moved, and of a token in any pass so far
    try:
        model.reset()
        model.append(text[:context], rows=1)
        for number in count():
            run: dict[int, float] = {}
            for place, width in enumerate(fitting):
                if (number or place >= least) and now() + width * longest > until:
                    continue
                began, started = clock(), now()
                model.append(text[context : context + width], rows=width)
                wait_for(model.device)
                run[width] = max(clock() - began, smallest)
                longest = max(longest, (now() - started) / width)
                model.rollback(context)
            if not run:
                return
            yield run
    finally:
        model.reset()


def text_to_time(model: BaseCachedModel, count: int) -> list[int]:
    """Return so many tokens for timed passes, of a real text where the model has one.

    A mixture's pass reads the experts that its tokens ask for, so tokens must differ as those of texts do.
    """
    text = [] if model.sample_text is None else model.sample_text()[:count]
    if text and max(text) < model.vocabulary_size:
        return (text * (count // len(text) + 1))[:count]
    return [(7 * i) % min(model.vocabulary_size, 1000) for i in range(count)]


def _text(model: BaseCachedModel, longest: int) -> tuple[list[int], int]:
    text = text_to_time(model, _CONTEXT + longest + _DRAFTED)
    room = len(text) if model.max_length is None else model.max_length - 1
    return text[:room], min(_CONTEXT, room // 2)


def time_drafter(
    target: BaseCachedModel,
    drafter: Drafter,
    clock: Clock,
    sampling: SamplingParams | None = None,
    repeats: int = _REPEATS,
    until: float = math.inf,
    now: Clock = time.perf_counter,
) -> tuple[float, float, float]:
    """Return draft, reading and pair of `PassTimes`; zeros for what only copies.

    What would end after ``until`` by ``now`` is left out: repeats, and reading further tokens to time that.
    """
    if isinstance(drafter, LookUpDrafter):
        return 0.0, 0.0, 0.0
    text, context = _text(target, max(PASS_WIDTHS))
    to_probs = SamplingFn(sampling or SamplingParams())
    generator = torch.Generator(target.device).manual_seed(0)
    drafts: list[float] = []
    reads: list[float] = []
    pairs: list[float] = []

    def seconds(length: int, limit: int) -> tuple[float, list[int]]:
        began = clock()
        proposal = drafter.propose(text[:length], limit, to_probs, generator)
        wait_for(target.device)
        return clock() - began, proposal.token_ids

    try:
        for _ in range(repeats):
            drafter.reset()
            drafter.begin_response(target, FixedLength(_DRAFTED))
            began = now()
            seconds(context, 1)
            read = now()
            most = _DRAFTED if read + (_DRAFTED + 4) * (read - began) <= until else 1
            taken, drafted = seconds(context + 1, most)
            pace = (now() - read) / max(len(drafted), 1)
            drafts.append(taken / max(len(drafted), 1))
            other = (token for token in text if [token] != drafted[:1])
            text[context + 1] = next(other, text[0])  # which the draft has not read
            pairs.append(seconds(context + 3, 1)[0])
            unread = min(max(PASS_WIDTHS), len(text) - context - 3)
            while unread > 1 and now() + unread * pace > until:
                unread //= 2
            if unread > 1 or not reads:
                taken, _ = seconds(context + 3 + unread, 1)
                reads.append(max(taken - drafts[-1], 0.0) / max(unread, 1))
            if 2 * now() - began > until:
                break
    finally:
        drafter.reset()
    return min(drafts), min(reads), min(pairs)


def wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def cache_folder() -> Path:
    """It may be deleted at any time."""
    return user_cache() / "pass_times"


_KNOWN: dict[str, PassTimes] = {}
"""What this process has measured or read, by the profile's file: a folder may be read-only."""


def pass_times(target: BaseCachedModel, drafter: Drafter, steps: StepSeconds | None = None) -> PassTimes:
    return known_times(target, drafter) or keep_times(measure_passes(target, drafter, steps=steps), target, drafter)


def known_times(target: BaseCachedModel, drafter: Drafter) -> PassTimes | None:
    path = place_of_pair(target, drafter)[0]
    if str(path) not in _KNOWN:
        with suppress(ValueError):  # there is none yet, or one that was damaged
            _KNOWN[str(path)] = PassTimes.read(path)
    return _KNOWN.get(str(path))


def keep_times(times: PassTimes, target: BaseCachedModel, drafter: Drafter) -> PassTimes:
    """Make `pass_times` return these from now on, in other processes too if the cache can be written.

    Those of a busy machine are kept for this process alone.
    """
    path, about = place_of_pair(target, drafter)
    if not times.guessed:
        source = f"kept in {path}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, as_json({"about": about, "times": times.as_dict()}, indent=2) + "\n")
        except (OSError, ValueError) as error:  # it cannot be written, or another process does that
            source = f"not kept in {path.parent}: {getattr(error, 'strerror', None) or error}"
        times = replace(times, source=f"measured now, {source}")
    _KNOWN[str(path)] = times
    return times


def place_of_pair(target: BaseCachedModel, drafter: Drafter) -> tuple[Path, dict[str, Any]]:
    """Return the file for the times of a pair, and what it is valid for."""
    cache = getattr(drafter, "model_cache", drafter)
    copies = isinstance(drafter, LookUpDrafter)
    about = {
        "target": _identity(target),
        "draft": "copies" if copies else [*_identity(cache), getattr(cache, "build", "")],
        "device": device_name(target.device),
        "threads": torch.get_num_threads() if target.threads is None else target.threads,
        "versions": _versions(),
        "build": target.build,
    }
    return cache_folder() / f"{sha256(as_json(about).encode()).hexdigest()[:16]}.json", about


@cache
def _versions() -> list[str]:
    """Return those of the installed engines, whichever of them have been imported so far."""
    found = []
    for name in _ENGINES:
        with suppress(PackageNotFoundError):
            found.append(version(name))
    return found


_SIZES: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Weights of models, which take longer to count than a short pass takes."""


def _identity(model: Any) -> list[Any]:
    name, own = str(getattr(model, "name", type(model).__name__)), getattr(model, "model", None)
    settings = str(getattr(model, "settings", ""))
    with suppress(OSError):
        if (path := Path(name)).is_file():
            return [str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns, settings]
    size = 0
    if own is not None and hasattr(own, "num_parameters"):
        size = _SIZES[own] = _SIZES.get(own) or own.num_parameters()
    return [name, str(getattr(own, "dtype", "")), size, settings]


@cache
def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {processor()}"


_CODE = """def total(prices, rate):
    result = 0
    for price in prices:
        result += price * (1 + rate)
    return result
"""
_LETTER = (
    "Dear team, we has moved the meeting from tuesday to thursday, becuase the room is taken. Please bring the figures "
    "of the last quarter, and tell Mara if you can not come. Best wishes, Jon"
)
PROMPTS = (
    "Explain in a few sentences why the sky is blue and sunsets are red.",
    f"Correct the mistakes in this letter, and change nothing else:\n\n{_LETTER}",
    "Write a Python function that returns the prime factors of a number, with a docstring.",
    f"Add type hints and a docstring to this function, and repeat it whole:\n\n{_CODE}",
    "A train leaves at 9:40 and takes 2 hours and 35 minutes. When does it arrive? Show each step.",
    f"Summarise this letter in one sentence:\n\n{_LETTER}",
    "Name the planets of the solar system as a JSON list of objects with a name and a diameter in kilometres.",
    "What speaks for and against living in a small town? Give three points each.",
    f"Translate this letter into French:\n\n{_LETTER}",
    "Write the beginning of a story about a lighthouse keeper who finds a map.",
)
