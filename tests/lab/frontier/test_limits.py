"""The best knob within a limit: no other knob of its family does better, and what is best comes first."""

from __future__ import annotations

import math

import pytest
from support.recorded_rows import enumerated, some_rows

from cactus_decoding import parse_rule
from cactus_decoding.cli.frontier import advice
from cactus_decoding.lab.frontier.frontier import Frontier
from cactus_decoding.lab.frontier.limits import Limit, best_in_family, best_within
from cactus_decoding.lab.frontier.relaxations import EVERYWHERE, FAMILIES


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", ["kl=0.003", "kl=0.05", "kl=0.5", "acceptance=0.7", "acceptance=0.85"])
def test_the_best_knob_is_within_the_limit_and_no_knob_of_a_fine_grid_is_better(name: str, text: str) -> None:
    measured, family, limit = Frontier(some_rows()), FAMILIES[name], Limit.parse(text)
    found = best_in_family(measured, family, limit)
    within = [point for knob in family.knobs(40) if limit.holds(point := measured.measure(family.spell(knob)))]
    if found is None:
        # only a family that is dear at both ends, or whose knob is coarse, may fit in between the scanned knobs
        assert not within
        return
    assert limit.holds(found)
    assert enumerated(parse_rule(found.rule), some_rows())["kl"] == pytest.approx(found.kl.value, abs=1e-10)
    best = max((limit.worth(point)[0] for point in within), default=-math.inf)
    assert limit.worth(found)[0] >= best - 2e-3 * (1 if limit.kind == "kl" else max(1.0, found.kl.value))


def test_the_best_of_all_families_comes_first_and_is_the_advice() -> None:
    measured, families = Frontier(some_rows()), [FAMILIES[name] for name in ("cactus", "clamped", "ensemble")]
    lossless = measured.measure("lossless")
    for text in ("kl=0.05", f"acceptance={lossless.acceptance.value + 0.03:.3f}"):
        limit = Limit.parse(text)
        best = best_within(measured, families, limit, [EVERYWHERE])
        assert [limit.worth(point) for point in best] == sorted(map(limit.worth, best), reverse=True)
        assert advice(limit, lossless, best).startswith(f"[bold]At {limit}:[/bold] --rule {best[0].rule}")


def test_lossless_is_the_advice_where_nothing_is_better() -> None:
    measured = Frontier(some_rows())
    lossless, families = measured.measure("lossless"), [FAMILIES["clamped"]]
    for text in ("kl=0", "acceptance=0.01"):
        limit = Limit.parse(text)
        assert "--rule lossless" in advice(limit, lossless, best_within(measured, families, limit, [EVERYWHERE]))
    assert advice(Limit.parse("acceptance=1"), lossless, []) == "No rule reaches acceptance=1; lossless accepts 0.2610."
