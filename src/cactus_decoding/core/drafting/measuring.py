"""How long forward passes take on this machine: measured once, and kept in a file."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from cactus_decoding.core.drafting.lengths.base import FixedLength, StepSeconds
from cactus_decoding.core.drafting.lookup import LookUpDrafter
from cactus_decoding.core.drafting.timing import Clock, PassTimes
from cactus_decoding.core.files.provenance import processor
from cactus_decoding.core.files.writing import as_json, write_atomically
from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.core.sampling.params import SamplingParams, as_logits_to_probs
from cactus_decoding.core.types import Drafter

WIDTHS = (1, 2, 3, 4, 8, 12, 16)
"""Numbers of tokens in the measured passes: kernels work on blocks, so that times between them are not on a line."""
_CONTEXT = 16
_DRAFTED = 4
_REPEATS, _LEAST = 2, 4
_SHORT = 8
"""Short passes are repeated so often: it costs nothing, and threads that wait for each other disturb them most."""
_SLICE, _ALIKE = 0.005, 1.25
"""Seconds for which a thread usually keeps its core, and how much longer an undisturbed pass may take."""
_BUSY = "measured now on a busy machine, and not kept"
_ENGINES = ("torch", "transformers", "llama-cpp-python")


def measure(
    target: BaseCachedModel, drafter: Drafter, clock: Clock | None = None, steps: StepSeconds | None = None
) -> PassTimes:
    """Time passes of both models over a few tokens, the best of two each, or of eight short ones; both forget all.

    On the CPU the clock is that of the processor, which other work on the machine hardly disturbs: what is decided by
    these times depends on their ratios only. But threads that wait for one that has no core count as busy. Where two
    runs differ much there is a third, and ``source`` says so if none agree. See `as_steps` for ``steps``.
    """
    clock = clock or (time.process_time if target.on_cpu else time.perf_counter)
    runs = [time_passes(target, WIDTHS, clock, repeats=1) for _ in range(_REPEATS)]
    repeats = _SHORT if min(run[1] for run in runs) < _SLICE else _REPEATS
    while len(runs) < repeats or (len(runs) == _REPEATS and not _agree(runs)):
        runs.append(time_passes(target, WIDTHS, clock, repeats=1))
    best = {width: min(run[width] for run in runs) for width in runs[0]}
    draft, reading, pair = time_drafter(target, drafter, clock, repeats=repeats)
    taken = as_steps(best, clock, steps)
    return PassTimes(tuple(taken.items()), draft, reading, "now" if _agree(runs) else _BUSY, pair)


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


def _agree(runs: Sequence[Mapping[int, float]]) -> bool:
    """Whether two runs took about as long for every pass; passes shorter than a slice of a core always do."""
    nearest = [sorted(run[width] for run in runs)[:2] for width in runs[0]]
    return nearest[0][0] < _SLICE or all(second <= _ALIKE * first for first, second in nearest)


def time_passes(
    model: BaseCachedModel, widths: Sequence[int], clock: Clock, repeats: int = _REPEATS, until: float = math.inf
) -> dict[int, float]:
    """Return the seconds of passes over so many tokens, by ascending width: the best of several, in turn.

    The model forgets what it had read. The most important widths come first; those that the context window has no room
    for are left out. No further pass is begun after ``until``, by `time.perf_counter`; the first four are always timed
    once.
    """
    text, context = _text(model, max(widths))
    best: dict[int, float] = {}
    fitting = [width for width in widths if context + width <= len(text)]
    try:
        model.reset()
        model.append(text[:context], rows=1)
        for width in fitting * repeats:
            if len(best) >= min(_LEAST, len(fitting)) and time.perf_counter() > until:
                break
            began = clock()
            model.append(text[context : context + width], rows=width)
            wait_for(model.device)
            smallest = 1e-9  # of a clock that has not moved
            best[width] = min(best.get(width, math.inf), max(clock() - began, smallest))
            model.rollback(context)
    finally:
        model.reset()
    return dict(sorted(best.items()))


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
) -> tuple[float, float, float]:
    """Return draft, reading and pair of `PassTimes`; zeros for what only copies."""
    if isinstance(drafter, LookUpDrafter):
        return 0.0, 0.0, 0.0
    text, context = _text(target, max(WIDTHS))
    to_probs = as_logits_to_probs(sampling or SamplingParams())
    generator = torch.Generator(target.device).manual_seed(0)
    drafts: list[float] = []
    reads: list[float] = []
    pairs: list[float] = []

    def seconds(length: int, limit: int) -> tuple[float, int]:
        began = clock()
        proposal = drafter.propose(text[:length], limit, to_probs, generator)
        wait_for(target.device)
        return clock() - began, len(proposal.token_ids)

    try:
        for _ in range(repeats):
            drafter.reset()
            drafter.begin_response(target, FixedLength(_DRAFTED))
            seconds(context, 1)
            taken, drafted = seconds(context + 1, _DRAFTED)
            drafts.append(taken / max(drafted, 1))
            pairs.append(seconds(context + 3, 1)[0])
            behind = min(context + 3 + max(WIDTHS), len(text))
            taken, _ = seconds(behind, 1)
            reads.append(max(taken - drafts[-1], 0.0) / max(behind - context - 3, 1))
    finally:
        drafter.reset()
    return min(drafts), min(reads), min(pairs)


def wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def cache_folder() -> Path:
    """It may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "cactus-decoding" / "pass_times"


_KNOWN: dict[str, PassTimes] = {}
"""What this process has measured or read, by the profile's file: a folder may be read-only."""


def pass_times(target: BaseCachedModel, drafter: Drafter, steps: StepSeconds | None = None) -> PassTimes:
    return known_times(target, drafter) or keep_times(measure(target, drafter, steps=steps), target, drafter)


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
    if times.source != _BUSY:
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
    if isinstance(drafter, LookUpDrafter):
        return place_of(target, draft="copies")
    cache = getattr(drafter, "model_cache", drafter)
    return place_of(target, draft=[*_identity(cache), getattr(cache, "build", "")])


def place_of(target: BaseCachedModel, kept: str = "pass_times", **about: Any) -> tuple[Path, dict[str, Any]]:
    """Return the file for what was measured of a target on this machine, and what it is valid for."""
    about = {
        "target": _identity(target),
        **about,
        "device": device_name(target.device),
        "threads": torch.get_num_threads() if target.threads is None else target.threads,
        "versions": _versions(),
        "build": target.build,
    }
    return cache_folder().with_name(kept) / f"{sha256(as_json(about).encode()).hexdigest()[:16]}.json", about


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
