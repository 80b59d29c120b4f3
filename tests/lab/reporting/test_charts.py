"""Charts: nothing that is measured is cut off, every family is drawn, and always in the same way."""

from __future__ import annotations

import pytest
from support.recorded_rows import some_rows
from support.result_files import made, several

from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.frontier.frontier import as_result, frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES, parse_families, parse_policies
from cactus_decoding.lab.reporting import charts
from cactus_decoding.lab.reporting.charts import TO_ALONE, TO_LOSSLESS, frontier_picture, time_metric
from cactus_decoding.lab.reporting.pictures import STYLES, family_of


def test_time_is_normalised_by_the_target_alone_where_every_pair_has_it():
    rows = summarise(several())
    assert time_metric(rows) == TO_ALONE
    assert time_metric(summarise([r for r in several() if r.config.num_speculative_tokens])) == TO_LOSSLESS


def test_panels_of_wall_time_show_the_slowest_pair_whole(monkeypatch):
    monkeypatch.setattr(charts, "to_svg", lambda figure: figure)
    slow = [made("lossless", 0, seconds=1.0, draft="slow"), made("lossless", 4, seconds=3.0, draft="slow")]
    figure = charts.time_picture({"quick": summarise(several()), "slow": summarise(slow)})
    for panel in figure.axes:
        assert panel.get_ylim()[0] == 0
        assert panel.get_ylim()[1] > 3


def test_protected_curves_stand_beside_the_others(monkeypatch):
    monkeypatch.setattr(charts, "to_svg", lambda figure: figure)
    rows, words = some_rows(), Vocabulary(("1", *"abcdef"))
    policies = parse_policies(["none", "digits", "[1-2]$"], protect_threshold=0.2)
    points = frontier(rows, [FAMILIES["clamped"]], points=3, policies=policies, vocabulary=words)
    figure = frontier_picture(as_result(points, rows, {}))
    curves = [line for line in figure.axes[0].lines if line.get_label().startswith(FAMILIES["clamped"].label)]
    assert [line.get_label().partition(",")[2] for line in curves][:2] == ["", " protecting digits above 0.2"]
    assert len(curves) == 3
    assert [line.get_linestyle() for line in curves] == ["-", ":", ":"]
    assert {line.get_color() for line in curves} == {STYLES["clamped"].colour}


@pytest.mark.slow
def test_the_picture_is_the_same_every_time_and_shows_every_family():
    rows = some_rows()
    result = as_result(frontier(rows, list(FAMILIES.values()), points=3), rows, {})
    picture = frontier_picture(result)
    assert picture == frontier_picture(result)
    assert picture.startswith("<?xml")
    for colour in {STYLES[name].colour for name in FAMILIES}:
        assert colour in picture


def test_families_cover_every_rule_that_samples_and_have_a_look_of_their_own():
    assert {family_of(family.spell(family.strict)) for family in FAMILIES.values()} == set(FAMILIES)
    assert set(FAMILIES) <= set(STYLES)
    looks = [(style.marker, style.colour, style.hollow) for style in STYLES.values()]
    assert len(set(looks)) == len(looks)
    assert len({(style.marker, style.hollow) for style in STYLES.values()}) == len(STYLES)
    with pytest.raises(ValueError, match="unknown rule family 'cactis'; known are cactus, cactus_exact"):
        parse_families(["cactis"])
