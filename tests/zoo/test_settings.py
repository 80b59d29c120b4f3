"""The settings of the demo and the playground are those that validation problems chose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cactus_decoding import Request
from cactus_decoding.zoo.settings import LOSSLESS, RELAXED

CHOSEN = Path(__file__).resolve().parents[2] / "studies" / "relaxing" / "results" / "chosen-plain.json"


@pytest.mark.parametrize(("kind", "settings"), [("lossless", LOSSLESS), ("protected", RELAXED)])
def test_settings_are_what_the_study_chose(kind, settings):
    chosen = json.loads(CHOSEN.read_text())["chosen"][kind]
    asked = Request.from_dict(settings).as_dict()
    assert {name: asked[name] for name in ("rule", "protect", "protect_threshold", "num_speculative_tokens")} == {
        "rule": chosen["rule"],
        "protect": chosen.get("protect"),
        "protect_threshold": chosen.get("protect_threshold"),
        "num_speculative_tokens": chosen["num_speculative_tokens"],
    }
