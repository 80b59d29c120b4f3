"""Our rules beside the formulas of published code, enumerated: regenerates a table of docs/rules/index.md, exactly.

    python -m studies.rules.published                enumerates; seconds
    python -m studies.rules.published --only-render  the table again, from the result file

The code is graphcore-research/relaxed-spec-dec-repro at commit c28353f, of "A practical investigation of
training-free relaxed speculative decoding"; its formulas are written down here once more. In it p is the target's and q
the draft's distribution; here, as everywhere in this project, q is the target's and p the draft's.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cactus_decoding import audit, parse_rule
from scripts.pages import columns
from studies.study import study

RESULTS, PAGE = Path(__file__).with_name("results") / "published.json", "rules/index.md"
PAIRS, VOCABULARY, KEPT, SEED = 2000, 7, 4, 0
ALIKE = 1e-12


@dataclass(frozen=True)
class Published:
    """What a method does at a position: the chance that each drafted token is kept, and what is recovered from.

    ``row`` is the relaxed row: a bonus token is drawn from it.
    """

    kept: Tensor
    recovered: Tensor
    row: Tensor

    def emitted(self, p: Tensor) -> Tensor:
        return p * self.kept + (p * (1 - self.kept)).sum(-1, keepdim=True) * self.recovered


def by_row(h: Tensor, p: Tensor) -> Published:
    """Return what verifying against a row does, which emits it."""
    return Published(_ratio(h, p).clamp(max=1), _normalised((h - p).clamp(min=0), h), h)


def by_ratio(ratio: Tensor, weights: Tensor, q: Tensor, p: Tensor) -> Published:
    """Return what a test and a residual of their own do; a bonus token goes through the same two."""
    kept, recovered = torch.where(p > 0, ratio, 0.0).clamp(max=1), _normalised(weights.clamp(min=0), q)
    found = Published(kept, recovered, q)
    return Published(kept, recovered, found.emitted(p))


def ensemble(q: Tensor, p: Tensor, weight: float) -> Published:
    """Mix by a weight on the target; also tokens that the target excludes are kept."""
    return by_ratio((1 - weight) + weight * _ratio(q, p), q - p, q, p)


def cascade_opt(q: Tensor, p: Tensor, alpha: float) -> Published:
    """Leave a row to the draft unless max p < max q - alpha TV."""
    defers = p.amax(-1) < q.amax(-1) - alpha * (q - p).clamp(min=0).sum(-1)
    return by_row(torch.where(defers.unsqueeze(-1), q, p), p)


def cascade_tok(q: Tensor, p: Tensor, alpha: float) -> Published:
    """Keep p on the tokens within a factor 1 - alpha of the target's likeliest, and add q by the mass outside."""
    top = (q > 0) & (q >= (1 - alpha) * q.amax(-1, keepdim=True))
    inside = torch.where(top, p, 0.0)
    return by_row(inside + (p.sum(-1, keepdim=True) - inside.sum(-1, keepdim=True)) * q, p)


def r_fuzzy(q: Tensor, p: Tensor, threshold: float) -> Published:
    """Leave a row to the draft where the Jensen-Shannon divergence is at most a threshold."""
    middle = (p + q) / 2
    distance = sum((torch.xlogy(row, row) - torch.xlogy(row, middle)).sum(-1) for row in (q, p)) / 2
    return by_row(torch.where((distance <= threshold).unsqueeze(-1), p, q), p)


def mentored(q: Tensor, p: Tensor, alpha: float) -> Published:
    """Keep by q / ((1 - alpha) p), and recover from q - p."""
    return by_ratio(_ratio(q, p) / (1 - alpha), q - p, q, p)


def contrastive(q: Tensor, p: Tensor, beta: float, alpha: float) -> Published:
    """Emit the softmax of (1 + beta) z_q - beta z_p where q is at least alpha times its greatest."""
    gate = (q > 0) & (q >= alpha * q.amax(-1, keepdim=True))
    scores = ((1 + beta) * q.log() - beta * p.log()).masked_fill(~gate, -torch.inf)
    return by_row(
        (scores - scores.amax(-1, keepdim=True)).exp() / (scores - scores.amax(-1, True)).exp().sum(-1, True), p
    )


def cactus(q: Tensor, p: Tensor, delta: float) -> Published:
    """Lift the drafted token by the closed form; what is recovered depends on it, so each is looked at alone."""
    lifted = (q + (2 * delta * q * (1 - q)).sqrt()).clamp(max=1)
    kept = _ratio(lifted, p).clamp(max=1)
    scale = torch.where(q < 1, (1 - lifted) / (1 - q), 1.0)  # of the other tokens, for each drafted one
    rows = scale.unsqueeze(-1) * q.unsqueeze(-2) - p.unsqueeze(-2)
    rows = torch.where(torch.eye(q.shape[-1]).bool(), (lifted - p).unsqueeze(-1), rows).clamp(min=0)
    recovered = _normalised(rows, q.unsqueeze(-2).expand_as(rows))
    lost = p * (1 - kept)
    mean = _normalised((lost.unsqueeze(-1) * recovered).sum(-2), q)
    return Published(kept, mean, p * kept + lost.sum(-1, keepdim=True) * mean)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below.clamp(min=1e-300), 1.0)


def _normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total.clamp(min=1e-300), otherwise)


COMPARED: Mapping[str, tuple[Callable[..., Published], tuple[tuple[tuple[float, ...], str], ...]]] = {
    "`cactus`": (cactus, (((0.1,), "cactus:delta=0.1"), ((1.0,), "cactus:delta=1.0"))),
    "`ens`": (ensemble, (((0.95,), "ensemble:weight=0.05"), ((0.8,), "ensemble:weight=0.2"))),
    "`mentored-dec`": (mentored, (((0.3,), "lenience:lenience=0.7,residual=plain"),
                                  ((0.95,), "lenience:lenience=0.05,residual=plain"))),
    "`mentored-dec` beside lenience as published": (mentored, (((0.3,), "lenience:lenience=0.7"),
                                                              ((0.95,), "lenience:lenience=0.05"))),
    "`spec-casc-opt`": (cascade_opt, (((-0.1,), "cascade:alpha=-0.1"), ((0.05,), "cascade:alpha=0.05"))),
    "`spec-casc-tok`": (cascade_tok, (((0.35,), "token_cascade:alpha=0.35,coupling=paper"),
                                      ((0.8,), "token_cascade:alpha=0.8,coupling=paper"))),
    "`r-fuzzy`": (r_fuzzy, (((0.05,), "fuzzy:threshold=0.05"), ((0.2,), "fuzzy:threshold=0.2"))),
    "`spec-cont-dec`": (contrastive, (((0.5, 0.0), "contrastive:beta=0.5,alpha=0"),
                                      ((1.0, 0.1), "contrastive:beta=1.0,alpha=0.1"))),
}  # fmt: skip
"""Their methods by their names, each with its knobs and with the rule that is held beside it."""


def rows(truncated: bool, pairs: int = PAIRS) -> tuple[Tensor, Tensor]:
    """Return random pairs of a target's and a draft's row; truncated, each keeps the likeliest tokens of its own."""
    generator = torch.Generator().manual_seed(SEED)
    target = 2 * torch.randn(pairs, VOCABULARY, generator=generator, dtype=torch.float64)
    draft = target + 1.5 * torch.randn(pairs, VOCABULARY, generator=generator, dtype=torch.float64)
    found = []
    for logits in (target, draft):
        if truncated:
            least = logits.topk(KEPT, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        found.append(logits.softmax(-1))
    return found[0], found[1]


def compared(pairs: int = PAIRS) -> Iterator[dict[str, Any]]:
    """Yield, for each method, the worst total variations over all pairs of rows and knobs."""
    for name, (method, knobs) in COMPARED.items():
        worst = {"emitted": 0.0, "truncated": 0.0, "kept": 0.0, "bonus": 0.0}
        for kind in ("emitted", "truncated"):
            q, p = rows(kind == "truncated", pairs)
            whole = rows(False, pairs)[1]
            for given, spelling in knobs:
                # a contrast is one of logits from before the draft's truncation, and emits its row
                contrasts = method is contrastive
                theirs, ours = method(q, whole if contrasts else p, *given), audit(parse_rule(spelling), q, p)
                emitted = theirs.row if contrasts else theirs.emitted(p)
                worst[kind] = max(worst[kind], tv(emitted, ours.output_probs))
                if kind == "emitted":
                    accepted = (theirs.kept * p).sum(-1)
                    worst["kept"] = max(worst["kept"], float((accepted - ours.acceptance).abs().max()))
                    worst["bonus"] = max(worst["bonus"], tv(theirs.row, q))
        yield {"method": name, "rule": ", ".join(f"`{spelling}`" for _, spelling in knobs)} | worst


def tv(rows: Tensor, others: Tensor) -> float:
    return float(((rows - others).abs().sum(-1) / 2).max())


def measure(given: Namespace) -> dict[str, Any]:
    return {"pairs": PAIRS, "vocabulary": VOCABULARY, "kept": KEPT, "methods": [*compared()]}


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    def worst(name: str) -> Callable[[Any], str]:
        return lambda row: f"{row[name]:.0e}" if row[name] < ALIKE else f"{row[name]:.2f}"

    return {"published": columns(result["methods"], {
        "its method": "{method}", "held beside it": "{rule}", "worst TV of what is emitted": worst("emitted"),
        "worst difference of acceptance": worst("kept"), "worst TV, truncated rows": worst("truncated"),
        "worst TV of the bonus token": worst("bonus"),
    }, names=2)}  # fmt: skip


if __name__ == "__main__":
    study(__doc__, RESULTS, PAGE, measure, shown)
