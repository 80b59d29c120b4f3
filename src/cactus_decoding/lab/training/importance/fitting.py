"""Fits the logistic regression of importance, and measures it on positions that it was not fitted to."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.extras import needing
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.policy.importance import Importance
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.evaluation.intervals import RESAMPLES, Interval, Numbers, bootstrapped
from cactus_decoding.lab.training.importance.collecting import falls

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # inverse strengths of the regularisation that are tried
FOLDS = 5


@dataclass(frozen=True)
class Examples:
    rows: Any  # the target's and then the draft's probabilities, ``[positions, 2 * vocabulary]``, sparse
    worse: Numbers  # share of continuations that the drafted token spoils
    better: Numbers  # share of continuations that the drafted token mends
    problem: NDArray[np.int64]


@dataclass(frozen=True)
class Fit:
    """How an importance was fitted; AUC and log-losses, in nats, are out of fold."""

    problems: int
    positions: int
    worse: float  # mean share of continuations that the drafted token spoils
    better: float  # mean share that it mends; the target's own chance accounts for that many
    strength: float  # inverse strength of the regularisation
    auc: Interval  # area under the ROC curve
    log_loss: float
    log_loss_of_share: float  # of the best constant importance

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"auc": list(self.auc)}


def check_installed() -> None:
    with needing("learning importance needs scikit-learn", "importance"):
        import sklearn.linear_model  # noqa: F401


def examples_of(entries: Sequence[dict[str, Any]], vocabulary: int) -> Examples:
    from scipy.sparse import csr_array

    values: list[float] = []
    columns: list[int] = []
    ends, worse, better, problem = [0], [], [], []
    for place, position, spoilt, mended in falls(entries):
        for offset, (ids, probs) in ((0, position["target"]), (vocabulary, position["draft"])):
            columns += [token + offset for token in ids]
            values += probs
        ends.append(len(values))
        worse.append(spoilt)
        better.append(mended)
        problem.append(place)
    rows = csr_array((values, columns, ends), shape=(len(worse), 2 * vocabulary), dtype=np.float64)
    return Examples(rows, np.array(worse), np.array(better), np.array(problem, dtype=np.int64))


def fit(examples: Examples, vocabulary: Vocabulary, *, folds: int = FOLDS) -> tuple[Importance, Fit]:
    """Return the importance that fits the examples best, and how well it does on problems that it was not fitted to.

    A position counts once: as spoilt with the share of its continuations that were, as harmless with the rest. Classes
    are not weighted against each other, because an importance is a probability. The strength of the L2 penalty is that
    of the least log-loss over folds of problems; the area under the curve is of predictions whose own strength was
    chosen without the problems that they are about.

    Sources: scikit-learn (Pedregosa et al., JMLR 12, 2011); nested cross-validation as in Varma and Simon, BMC
    Bioinformatics 7 (2006).
    """
    check_integer("folds", folds, 2)
    _check_enough(examples, folds)
    held_out = np.full(len(examples.worse), np.nan)
    everything = np.arange(len(examples.worse))
    for train, test in _split(examples, everything, folds):
        strength = _choose(examples, train, folds)
        held_out[test] = _classifier(examples, train, strength).predict_proba(examples.rows[test])[:, 1]
    strength = _choose(examples, everything, folds)
    chosen = _classifier(examples, everything, strength)
    weights = torch.from_numpy(chosen.coef_[0]).float()
    size = len(vocabulary.texts)
    importance = Importance(weights[:size], weights[size:], float(chosen.intercept_[0]), vocabulary.fingerprint)
    share = np.full(len(everything), examples.worse.mean())
    about = Fit(
        problems=len(np.unique(examples.problem)),
        positions=len(everything),
        worse=float(examples.worse.mean()),
        better=float(examples.better.mean()),
        strength=strength,
        auc=auc_with_interval(held_out, examples.worse, examples.problem),
        log_loss=_log_loss(held_out, examples.worse),
        log_loss_of_share=_log_loss(share, examples.worse),
    )
    return importance, about


def _check_enough(examples: Examples, folds: int) -> None:
    problems = len(np.unique(examples.problem))
    if problems < folds:
        raise ValueError(
            f"{problems} problems have a position where a proposal was rejected, but cross-validation takes {folds} at "
            "least: give more problems"
        )
    for kind, share in (("spoils", examples.worse), ("leaves as right", 1 - examples.worse)):
        affected = len(np.unique(examples.problem[share > 0]))
        if affected == 0:
            other = "leaves every answer as right" if kind == "spoils" else "spoils every answer"
            raise ValueError(
                f"labels are of one class only: the drafted token {other} at all {len(examples.worse)} positions, so "
                "there is nothing to tell apart; give more problems or a weaker draft"
            )
        if affected < folds:
            raise ValueError(
                f"only {affected} problems have a position where the drafted token {kind} the answer, but "
                f"cross-validation takes {folds} at least: give more problems"
            )


def _split(examples: Examples, some: NDArray[np.int64], folds: int) -> list[tuple[NDArray[np.int64], Any]]:
    from sklearn.model_selection import GroupKFold

    groups = examples.problem[some]
    count = min(folds, len(np.unique(groups)))
    made = GroupKFold(n_splits=count, shuffle=True, random_state=0).split(some, groups=groups)
    return [(some[train], some[test]) for train, test in made]


def _choose(examples: Examples, some: NDArray[np.int64], folds: int) -> float:
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for train, test in _split(examples, some, folds):
        for strength in STRENGTHS:
            predicted = _classifier(examples, train, strength).predict_proba(examples.rows[test])[:, 1]
            losses[strength] += _log_loss(predicted, examples.worse[test]) * len(test)
    return min(STRENGTHS, key=lambda strength: losses[strength])


def _classifier(examples: Examples, some: NDArray[np.int64], strength: float) -> Any:
    """Fit one: each position as spoilt and as harmless, weighted by its shares."""
    from scipy.sparse import vstack
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    share, rows = examples.worse[some], examples.rows[some]
    weights = np.concatenate([share, 1 - share])
    labels = np.concatenate([np.ones(len(some)), np.zeros(len(some))])
    used = weights > 0
    if len(np.unique(labels[used])) < 2:
        raise ValueError(
            "labels of one fold are of one class only: the drafted token spoils the answers to too few problems; give "
            "more of them"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = LogisticRegression(C=strength, solver="lbfgs", max_iter=10_000)
        return model.fit(vstack([rows, rows]).tocsr()[used], labels[used], sample_weight=weights[used])


def _log_loss(predicted: Numbers, share: Numbers) -> float:
    clipped = predicted.clip(1e-12, 1 - 1e-12)
    return float(-(share * np.log(clipped) + (1 - share) * np.log(1 - clipped)).mean())


def auc_with_interval(
    predicted: Numbers, share: Numbers, problem: NDArray[np.int64], resamples: int = RESAMPLES
) -> Interval:
    """Return the area under the ROC curve, with a bootstrap interval over problems.

    It is the probability that a position of the one kind is given more than one of the other, half of it where they are
    given the same; positions count by their shares of continuations that are of the first kind.
    """
    _, place = np.unique(predicted, return_inverse=True)
    _, group = np.unique(problem, return_inverse=True)
    groups = int(group.max()) + 1
    generator = np.random.default_rng(0)

    def area(weight: Numbers) -> float:
        positive = np.bincount(place, weight * share)
        negative = np.bincount(place, weight * (1 - share))
        below = np.concatenate([[0.0], negative.cumsum()[:-1]])
        total = positive.sum() * negative.sum()
        return float((positive * (below + negative / 2)).sum() / total) if total > 0 else np.nan

    drawn = [
        area(np.bincount(generator.integers(0, groups, groups), minlength=groups)[group].astype(np.float64))
        for _ in range(resamples)
    ]
    return bootstrapped(area(np.ones(len(share))), np.array(drawn), groups)


def check_number_of_problems(problems: int) -> None:
    if problems < FOLDS:
        raise ValueError(f"problems must be at least {FOLDS}, the folds of cross-validation, but is {problems}")


def learn(
    pair: Pair, entries: Sequence[dict[str, Any]], names: Mapping[str, Any], provenance: Mapping[str, Any]
) -> tuple[Importance, Fit]:
    vocabulary = Vocabulary.of(pair.tokenizer, pair.target.vocabulary_size)
    importance, found = fit(examples_of(entries, len(vocabulary.texts)), vocabulary)
    about = dict(names) | {"problems": len(entries), "fit": found.as_dict(), "provenance": dict(provenance)}
    return replace(importance, about=about), found


def summary(found: Fit) -> str:
    value, low, high = found.auc
    vain = found.log_loss >= found.log_loss_of_share or (found.auc.has_ends and low <= 0.5)
    ends = f"95 %: {low:.3f} to {high:.3f}" if found.auc.has_ends else "too few problems for an interval"
    return (
        f"{found.positions} positions in {found.problems} problems; the drafted token spoils {100 * found.worse:.1f} % "
        f"of the continuations and mends {100 * found.better:.1f} %; ROC AUC out of fold {value:.3f} ({ends})"
        + "; that is no better than one importance for all positions: give more problems"
        * vain
    )
