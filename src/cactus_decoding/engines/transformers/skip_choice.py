"""Chooses which parts of a target its draft goes without: a knapsack over measured times and what parts contribute."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from cactus_decoding.core.drafting import measuring
from cactus_decoding.core.drafting.timing import Clock, PassTimes, part_of_profile
from cactus_decoding.core.files.writing import as_json, write_atomically
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.sublayers import (
    Part,
    first_layers,
    layers_of,
    modules_of,
    muted,
    parts_of,
    without_parts,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Of the time of all parts, how much a draft's parts may take: a candidate each."""
WIDTHS = (1, 2, 3, 4, 6, 8)  # tokens of the target's timed passes
ANSWER = 24  # tokens of each answer along which drafts are compared with the target
_REPEATS, _UNITS = 8, 200
"""How often passes and parts are timed, and into how many units the knapsack divides the time of all parts."""


class Text(NamedTuple):
    """The target's greedy answer to a prompt."""

    token_ids: list[int]
    start: int  # of the answer
    probs: Tensor  # the target's, of each token of the answer


class Candidate(NamedTuple):
    skipped: frozenset[Part]
    acceptance: float  # mean of the sum over tokens of min(target, draft)
    seconds: float  # of a draft token
    speed: float  # forecast tokens per second, over those without proposals
    num_speculative_tokens: int


def choose(target: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> frozenset[Part]:
    """Return what should be skipped of a target: of some candidates, the one with the fastest forecast.

    It is measured once, and kept in a file beside the pass times of `AutoLength`. Whether even the best one is faster
    than no proposals, `cactus tune` says.
    """
    place, about = measuring.place_of(CachedModel(target), "skips")
    try:
        kept = part_of_profile(place, "forecast")["skipped"]
        known = frozenset(part for part in parts_of(target) if [*part] in kept)
    except (KeyError, TypeError, ValueError):  # there is none yet, or one that was damaged
        known = frozenset()
    if known:
        return known
    found = best_of(candidates(target, prompts))
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        content = {"about": about, "forecast": found._asdict() | {"skipped": sorted(found.skipped)}}
        write_atomically(place, as_json(content, indent=2) + "\n")
    except (OSError, ValueError):  # it is measured again next time
        pass
    return found.skipped


def best_of(found: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the fastest forecast, and of equal ones the one with the cheapest draft."""
    if not found:
        raise ValueError("the target has too few parts that a draft could go without")
    return max(found, key=lambda each: (each.speed, -each.seconds))


def candidates(target: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[Candidate]:
    r"""Return a draft for each share of the time, with the parts that turn the hidden states most.

    A part is worth the angle between what its layer returns with it and without it, averaged over the tokens of the
    target's own answers; angles add up to at least the angle of all of them. Those worth most in a given time are a
    knapsack. What each draft then agrees with the target is measured, on the same answers, and its forecast is

    .. math:: \max_k \frac{V(1) \sum_{i=0}^{k} a^i}{V(k + 1) + k \, d}

    with a its mean acceptance, d the seconds of its pass over a token, and V(n) those of the target's over n. On the
    CPU the clock is the processor's.
    """
    model = CachedModel(target)
    clock: Clock = time.process_time if model.on_cpu else time.perf_counter
    texts = _answers(model, prompts)
    worth, seconds = _angles(target, texts), _seconds(target, clock)
    parts = parts_of(target)
    model.sample_text = lambda: texts[0].token_ids
    times = PassTimes(tuple(measuring.time_passes(model, WIDTHS, clock, _REPEATS).items()))
    found = dict[frozenset[Part], Candidate]()
    for kept in knapsack(worth, seconds, SHARES):
        skipped = frozenset(part for part in parts if part not in kept)
        if skipped in found:
            continue
        try:
            draft = CachedModel(without_parts(target, skipped))
        except ValueError:  # without any attention, or with everything
            continue
        draft.sample_text = model.sample_text
        taken = measuring.time_passes(draft, (1,), clock, _REPEATS)[1]
        found[skipped] = _candidate(skipped, acceptance(draft, texts), taken, times)
    return list(found.values())


def knapsack(
    worth: Mapping[Part, float], seconds: Mapping[Part, float], shares: Sequence[float]
) -> list[frozenset[Part]]:
    """Return the parts that are worth most together, and take at most each share of the time of all."""
    unit = sum(seconds.values()) / _UNITS
    best: list[tuple[float, frozenset[Part]]] = [(0.0, frozenset())] * (_UNITS + 1)
    for part, value in worth.items():
        weight = max(round(seconds[part] / unit), 1)
        for room in range(_UNITS, weight - 1, -1):
            before, kept = best[room - weight]
            if before + value > best[room][0]:
                best[room] = before + value, kept | {part}
    return [best[int(share * _UNITS)][1] for share in shares]


@torch.inference_mode()
def acceptance(draft: CachedModel, texts: Sequence[Text]) -> float:
    """Return how often a draft's proposal is kept losslessly at temperature 1, averaged over the answers' tokens."""
    kept = []
    for text in texts:
        draft.reset()
        probs = draft.append(text.token_ids[:-1], rows=len(text.probs)).float().softmax(-1)
        kept.append(torch.minimum(probs, text.probs).sum(-1))
    draft.reset()
    return float(torch.cat(kept).mean())


def _candidate(skipped: frozenset[Part], accepted: float, seconds: float, times: PassTimes) -> Candidate:
    speeds = {0: 0.0}
    for k in range(1, times.widths[-1]):
        tokens = sum(accepted**i for i in range(k + 1))
        speeds[k] = times.of(1) * tokens / (times.of(k + 1) + k * seconds)
    best = max(speeds, key=lambda k: speeds[k])
    return Candidate(skipped, accepted, seconds, speeds[best], best)


@torch.inference_mode()
def _answers(model: CachedModel, prompts: Sequence[Sequence[int]]) -> list[Text]:
    texts = []
    for prompt in prompts:
        ids, rows = list(prompt), list[Tensor]()
        if model.max_length is not None and len(ids) + ANSWER > model.max_length:
            continue
        model.reset()
        for _ in range(ANSWER):
            rows.append(model.append(ids[model.length :], rows=1).float().softmax(-1))
            ids.append(int(rows[-1].argmax()))
        texts.append(Text(ids, len(prompt), torch.cat(rows)))
    model.reset()
    if not texts:
        raise ValueError("choosing what to skip needs prompts that fit into the target's context window")
    return texts


@torch.inference_mode()
def _angles(target: PreTrainedModel, texts: Sequence[Text]) -> dict[Part, float]:
    """Return by how much each part turns what its layer returns, in radians."""
    probe, found = first_layers(target, len(layers_of(target))), defaultdict[Part, list[Tensor]](list)
    start = 0

    def compare(number: int) -> Callable[..., None]:
        def hook(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            for kind in modules_of(layer):
                with muted(layer, kind):
                    other = layer.forward(*given, **named)
                own, less = ((each[0] if isinstance(each, tuple) else each)[0, start:] for each in (output, other))
                cosine = nn.functional.cosine_similarity(own.float(), less.float(), dim=-1).clamp(-1, 1)
                found[Part(number, kind)].append(cosine.acos())

        return hook

    for number, layer in enumerate(layers_of(probe)):
        layer.register_forward_hook(compare(number), with_kwargs=True)
    for text in texts:
        start = text.start - 1
        probe(input_ids=torch.tensor([text.token_ids[:-1]], device=probe.device), use_cache=False)
    return {part: float(torch.cat(angles).mean()) for part, angles in found.items()}


def _seconds(target: PreTrainedModel, clock: Clock) -> dict[Part, float]:
    probe, found = first_layers(target, len(layers_of(target))), defaultdict[tuple[Part, str], list[float]](list)
    began = 0.0

    def begin(*_: Any) -> None:
        nonlocal began
        measuring.wait_for(probe.device)
        began = clock()

    def end(part: Part, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            measuring.wait_for(probe.device)
            found[part, name].append(max(clock() - began, 1e-9))

        return hook

    for number, layer in enumerate(layers_of(probe)):
        for kind, names in modules_of(layer).items():
            for name in names:
                module = getattr(layer, name)
                module.register_forward_pre_hook(begin)
                module.register_forward_hook(end(Part(number, kind), name))
    model = CachedModel(probe)
    for token in range(_REPEATS):
        model.append([token % model.vocabulary_size], rows=1)
    taken = defaultdict[Part, float](float)
    for (part, _), seconds in found.items():
        taken[part] += median(seconds)
    return taken
