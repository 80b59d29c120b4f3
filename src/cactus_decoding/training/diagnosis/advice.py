"""A diagnosis in sentences."""

from __future__ import annotations

from cactus_decoding.training.diagnosis.diagnosis import BRANCHES, Diagnosis, Promise

WAYS = ("trained", "relaxed", "tree")


def advice(found: Diagnosis) -> list[str]:
    """Return what a diagnosis says, most promising way first; what cannot be told from chance is said to be so."""
    lossless = found.promises[0]
    lines = [_where(found)]
    ways = sorted((each for each in found.promises if each.name in WAYS), key=lambda each: each.time.value)
    for each in ways:
        lines.append(f"{each.name}: {_gain(each, lossless)}. {_means(each, found)}")
    length = lossless.num_speculative_tokens
    many = f"{length} proposals a step are best for lossless" if length else "lossless is best without a draft"
    free = next(each for each in found.promises if each.name == "free draft")
    lines.append(
        f"length: {many}, if a proposal takes {found.draft_cost:.2f} of a pass of the target; with a draft that is as "
        f"good and takes no time, a token would take {free.time.value:.2f} of the time."
    )
    return lines


def _where(found: Diagnosis) -> str:
    if not found.classes:
        return "nothing is rejected: there is nothing to win back."
    first = found.classes[0]
    return (
        f"rejections: {100 * first.rejected:.0f} % are at {first.name}, where the draft's greatest probability is "
        f"{first.confidence:.2f} on average."
    )


def _gain(way: Promise, lossless: Promise) -> str:
    time, tokens = way.time, way.tokens_per_step.value
    steps = f"{lossless.tokens_per_step.value:.2f} to {tokens:.2f} tokens per step"
    if not time.told:
        return f"{time.value:.2f} of the time per token (too few problems for an interval), {steps}"
    ends = f"95 %: {time.low:.2f} to {time.high:.2f}"
    sure = "" if time.high < 1 or time.low > 1 else ", which may be chance"
    return f"{time.value:.2f} of the time per token ({ends}{sure}), {steps}"


def _means(way: Promise, found: Diagnosis) -> str:
    if way.name == "tree":
        return f"At most: {BRANCHES} candidates at every position, verified at no cost."
    if way.name == "relaxed":
        return f"This is {found.rule}; what it does to answers, 'cactus eval' measures."
    if way.time.told and way.time.high < 1:
        return (
            "At least: a change of the last layer does it, and training all of it removes more ('cactus train-draft')."
        )
    return (
        "A change of the last layer removes nothing. Training all of the draft may yet, by less: a few hundred steps "
        "of 'cactus train-draft --loss total_variation' tell."
    )
