"""Distributions that known mistakes lead to: a check gathers evidence for each, and a report names the likeliest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cactus_conform.engine import END
from cactus_conform.processing import Rows
from cactus_conform.truth import Scored

UNLIKELY = 0.3  # a mistaken drafter drops draws that are less likely
LENIENCE = 0.7


def _normalised(rows: Rows, instead: Rows) -> Rows:
    total = rows.sum(-1, keepdims=True)
    return np.asarray(np.where(total > 0, rows / np.where(total > 0, total, 1), instead))


def _residual(target: Rows, draft: Rows) -> Rows:
    return _normalised(np.maximum(target - draft, 0), target)


def _verified(kept: Rows, recovery: Rows) -> Rows:
    """What is emitted where a drafted token is accepted with ``kept``, and the rest is drawn from ``recovery``."""
    return np.asarray(kept + (1 - kept.sum(-1, keepdims=True)) * recovery)


def _recovered(recovery: Callable[[Scored], Rows]) -> Callable[[Scored], Rows]:
    """What is emitted where rejected tokens are replaced by draws from ``recovery``."""
    return lambda rows: _verified(np.minimum(rows.target, rows.draft), recovery(rows))


def _likeliest(rows: Rows) -> Rows:
    return np.asarray(np.eye(rows.shape[-1])[rows.argmax(-1)])


def untruncated_draft(rows: Scored) -> Rows:
    """What is emitted where tokens are tested by the draft's probabilities before temperature and cuts."""
    tested = np.maximum(rows.raw_draft, 1e-300)
    kept = rows.draft * np.minimum(rows.target / tested, 1)
    return _verified(kept, _residual(rows.target, rows.raw_draft))


def recovery_without_rejected(rows: Scored) -> Rows:
    """What is emitted where a rejected token is replaced by a draw from the target without that token."""
    rejected = np.maximum(rows.draft - rows.target, 0)
    left = np.maximum(1 - rows.target, 1e-300)
    others = (rejected / left).sum(-1, keepdims=True) - rejected / left
    return np.asarray(np.minimum(rows.target, rows.draft) + rows.target * others)


def reused_number(rows: Scored) -> Rows:
    """What is emitted where the number that rejected a token, which is never below the ratio, draws the next one."""
    sums = _residual(rows.target, rows.draft).cumsum(-1)
    ratios = np.minimum(rows.target / np.maximum(rows.draft, 1e-300), 1)
    above = np.maximum(sums[:, None] - ratios[:, :, None], 0)  # of the numbers that reject, those up to each token
    parts = np.diff(above, axis=-1, prepend=0) * rows.draft[:, :, None]
    return np.asarray(np.minimum(rows.target, rows.draft) + parts.sum(1))


def reused_noise(rows: Scored) -> Rows:
    r"""What is emitted where the Gumbel noise that drew a proposal draws the token after its rejection too.

    With exponential times :math:`T_i = E_i / p_i` the proposal comes first, at a time m of rate 1, and the others later
    by times of rates p_i. With the residual r, the least of :math:`m p_i / r_i + E'_i / r_i` is drawn: a race that
    tokens join in the order of p / r, integrated over m.
    """
    residual = _residual(rows.target, rows.draft)
    joins = np.where(residual > 0, rows.draft / np.maximum(residual, 1e-300), np.inf)
    order = np.argsort(joins, -1)
    rates, joins = (np.take_along_axis(each, order, -1) for each in (residual, joins))
    together = rates.cumsum(-1)
    waits = np.diff(np.where(np.isfinite(joins), joins, 1e300), axis=-1, append=1e300)
    open_after = 1 / (1 + np.minimum(together * waits, 1e200).cumsum(-1))  # the part of the races not over by then
    over = np.concatenate([np.ones_like(open_after[:, :1]), open_after[:, :-1]], -1) - open_after
    won = rates * (over / np.maximum(together, 1e-300))[:, ::-1].cumsum(-1)[:, ::-1]
    recovered = np.take_along_axis(won, np.argsort(order, -1), -1)
    return _verified(np.minimum(rows.target, rows.draft), recovered)


def hot_draft(rows: Scored) -> Rows:
    """What is emitted where proposals are drawn at temperature 1, and tested as if at the asked temperature."""
    kept = rows.untempered_draft * np.minimum(rows.target / np.maximum(rows.draft, 1e-300), 1)
    return _verified(kept, _residual(rows.target, rows.draft))


def _by_step(rows: Scored, bonus: Rows, *, one_number: bool = False) -> Rows:
    """What is emitted where a position's place in its step matters: a filter over the places that it may have.

    ``bonus`` is drawn from after a step's proposals were all kept; with ``one_number`` one random number tests all of
    them, so that a kept one tells that the number was low.
    """
    starts = np.flatnonzero(rows.places == 0)
    lengths = np.diff(np.append(starts, len(rows.places)))
    most, limit = rows.sampling.max_tokens, rows.sampling.num_speculative_tokens
    ratio = np.minimum(rows.target / np.maximum(rows.draft, 1e-300), 1)
    residual = _residual(rows.target, rows.draft)
    result, places = rows.target.copy(), np.eye(limit + 1)[np.zeros(len(starts), int)]
    least = np.ones_like(places)
    for place in range(int(lengths.max(initial=0))):
        here = np.flatnonzero(lengths > place)
        at = starts[here] + place
        token = rows.tokens[at]
        emitted, moved, lower = (
            np.zeros((len(at), bonus.shape[1])),
            np.zeros_like(places[here]),
            np.ones_like(least[here]),
        )
        for step in range(min(place, limit) + 1):
            weight = places[here, step]
            if step == min(limit, most - (place - step) - 1):
                came = (bonus if step else rows.target)[at]
                kept = np.zeros_like(came)
            else:
                bound = np.maximum(least[here, step, None], 1e-300) if one_number else 1
                kept = rows.draft[at] * np.minimum(ratio[at] / bound, 1)
                came = (1 - kept.sum(-1, keepdims=True)) * residual[at]
                of = np.arange(len(at)), token
                moved[:, step + 1] = weight * kept[of]
                lower[:, step + 1] = np.minimum(least[here, step], ratio[at][of])
            emitted += weight[:, None] * (kept + came)
            moved[:, 0] += weight * came[np.arange(len(at)), token]
        result[at] = emitted
        places[here] = _normalised(moved, np.eye(limit + 1)[0])
        least[here] = lower
    return result


def eaten_end(rows: Scored) -> Rows:
    """What is emitted where an end that was proposed and kept is left out, and another token comes."""
    kept = np.minimum(rows.target, rows.draft)[:, END, None]
    ends = np.eye(rows.target.shape[-1])[END]
    return _normalised(rows.target - kept * ends, rows.target)


def dropped_draws(rows: Scored) -> Rows:
    """What is emitted where unlikely draws are dropped, and the target is drawn from in their place."""
    drawn = np.where(rows.draft >= UNLIKELY, rows.draft, 0)
    kept = np.minimum(drawn, drawn / np.maximum(rows.draft, 1e-300) * rows.target)
    rejected = drawn.sum(-1, keepdims=True) - kept.sum(-1, keepdims=True)
    dropped = 1 - drawn.sum(-1, keepdims=True)
    return np.asarray(kept + rejected * _residual(rows.target, rows.draft) + dropped * rows.target)


def _tempered(power: float) -> Callable[[Scored], Rows]:
    return lambda rows: _normalised(rows.target**power * (rows.target > 0), rows.target)


CAUSES: dict[str, Callable[[Scored], Rows]] = {
    "rejected tokens are replaced by draws from the target's row, not from (target - draft)+": _recovered(
        lambda rows: rows.target
    ),
    "rejected tokens are replaced by draws from the draft's row": _recovered(lambda rows: rows.draft),
    "rejected tokens are replaced by the target's likeliest token": _recovered(lambda rows: _likeliest(rows.target)),
    "rejected tokens are replaced by the likeliest token of (target - draft)+": _recovered(
        lambda rows: _likeliest(_residual(rows.target, rows.draft))
    ),
    "tokens of the draft are kept without a test, or a bonus token is drawn from the draft": lambda rows: rows.draft,
    "tokens are tested by the draft's row before temperature and cuts": untruncated_draft,
    "rejected tokens are replaced by draws from the target's row without them": recovery_without_rejected,
    "unlikely proposals are dropped after they were drawn": dropped_draws,
    "the test accepts too much (lenience, or a relaxed rule)": lambda rows: _verified(
        np.minimum(rows.target / LENIENCE, rows.draft), _residual(rows.target / LENIENCE, rows.draft)
    ),
    "the number that rejects a token draws the next one": reused_number,
    "the noise that drew a rejected token draws the next one": reused_noise,
    "proposals are drawn at temperature 1, and tested as if at the asked one": hot_draft,
    "one random number tests all proposals of a step": lambda rows: _by_step(rows, rows.target, one_number=True),
    "after a full acceptance a row that is short by one token is drawn from": lambda rows: _by_step(rows, rows.before),
    "one token more than top-k is kept": lambda rows: rows.one_more,
    "min-p is compared with probabilities, not with their ratios to the largest": lambda rows: rows.min_p_of_all,
    "ends that were proposed are left out": eaten_end,
    "tokens that are cut are accepted where the random number is 0 (the test is <=)": lambda rows: _normalised(
        np.maximum(rows.target, rows.draft / 256), rows.target
    ),
    "the test rejects too much": lambda rows: _verified(
        np.minimum(rows.target * LENIENCE, rows.draft), _residual(rows.target, rows.draft)
    ),
    "rows of the position before are used (off by one, or the last token is not read)": lambda rows: rows.before,
    "penalties miss the latest tokens": lambda rows: rows.forgetful,
    "cuts and temperature are in the other order": lambda rows: rows.swapped,
    "the temperature is not applied": lambda rows: rows.untempered,
    "temperature, cuts, penalties or biases are not applied": lambda rows: rows.raw_target,
    "the likeliest token comes too often": lambda rows: _likeliest(rows.target),
    "rows are sharper than they should be": _tempered(1.3),
    "rows are flatter than they should be": _tempered(0.75),
    "likely and unlikely tokens come alike": _tempered(0),
}
"""Mistakes, each with the distribution that it leads to at a verified position."""

SHARES = (0.1, 0.4, 1.0)  # the part of the positions in which a mistake may show
PLACES: dict[str, Callable[[Scored], NDArray[np.bool_]]] = {
    "everywhere": lambda rows: rows.places >= 0,
    "at the first token": lambda rows: rows.places == 0,
    "after the first token": lambda rows: rows.places > 0,
    "at the last token of max_tokens": lambda rows: rows.last,
}
"""Where in an output a mistake may show."""
