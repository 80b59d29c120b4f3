"""Results of evaluations made by hand: small, in the shape that `cactus eval` writes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from cactus_decoding.core.drafting.trees.shape import TreeShape
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.results import RunResult

NASTY = '<script>alert("x")</script> $\\frac{1}{2}$ | _a_ \x00\ud800 名前 & "quoted"'
"""What a name from a file may hold at its worst."""


def config_of(**fields) -> RunConfig:
    """Return a run of flat fields, as result files have them, with defaults for the others."""
    usual = RunConfig("word_problems", "bundled", "bundled:worded").as_dict()
    return RunConfig.from_dict(usual | fields)


def made(
    rule: str,
    length: int | str | TreeShape,
    *,
    right: float = 0.9,
    seconds: float = 1.0,
    accepted: float = 0.7,
    nats: float = 0.0,
    problems: int = 60,
    audited: bool = True,
    scored: bool = True,
    **changes,
) -> RunResult:
    """Return a run: every number varies from problem to problem, in the same way for every run."""
    noise = np.random.default_rng(0).random((problems, 2))
    proposals = sum(map(int, re.findall(r"\d+", str(length))))  # those of a number, and about those of a tree
    jitter = np.random.default_rng([proposals, len(rule)]).uniform(0.999, 1.001, problems)  # as times are
    steps = np.full(problems, 10)
    drafted = steps * proposals
    kept = np.round(drafted * accepted * (0.8 + 0.4 * noise[:, 1])).astype(int).clip(max=drafted)
    answers = {
        "id": [str(i) for i in range(problems)],
        "group": ["2 steps", "3 steps"] * (problems // 2),
        "right": [bool(x) if scored else None for x in noise[:, 0] < right],
        "finish_reason": ["stop"] * problems,
        "generated": [int(x) + 10 for x in kept],
        "steps": steps.tolist(),
        "drafted": drafted.tolist(),
        "accepted": kept.tolist(),
        "relaxed": (kept // 10).tolist(),
        "recovered": [8] * problems,
        "bonus": [2] * problems,
        "seconds": (seconds * (0.9 + 0.2 * noise[:, 1]) * jitter).tolist(),
    }
    if audited:
        answers |= {"metered": [10] * problems, "nats": (nats * (0.5 + noise[:, 1])).tolist()}
        answers |= {"tv": [nats / 10] * problems, "max_log_ratio": [nats] * problems}
    given = {"task": "sums", "target": "large", "draft": "small", "problems": problems} | changes
    provenance = {"commit": "0" * 40, "arguments": {"seed": 0}, "problems": "digest"}
    if isinstance(length, TreeShape):
        given |= {"num_speculative_tokens": length.max_draft_tokens, "tree": str(length)}
    else:
        given["num_speculative_tokens"] = length
    return RunResult(config_of(**given, rule=rule), answers, provenance)


def several(**changes) -> list[RunResult]:
    """Return lossless at three lengths, the target alone, and rules that are better, worse and as good."""
    return [
        made("lossless", 0, seconds=2.0, **changes),
        made("lossless", 2, seconds=1.2, accepted=0.6, **changes),
        made("lossless", 4, seconds=1.0, accepted=0.5, **changes),
        made("lossless", 8, seconds=1.4, accepted=0.4, **changes),
        made("cactus:delta=1.0", 4, seconds=0.7, right=0.5, accepted=0.8, nats=0.5, **changes),
        made("cactus:delta=1.0", 8, seconds=0.8, right=0.4, accepted=0.7, nats=0.6, **changes),
        made("clamped:width=1.0", 4, seconds=0.9, accepted=0.6, nats=0.01, **changes),
        made("clamped:width=0.1", 4, seconds=1.1, accepted=0.5, nats=0.001, **changes),
    ]


def from_where(result: RunResult, **provenance) -> RunResult:
    """Return a run of another provenance, as far as it is given."""
    return replace(result, provenance={**result.provenance, **provenance})


def write(path: Path, results: list[RunResult]) -> Path:
    path.write_text("".join(result.line() for result in results))
    return path
