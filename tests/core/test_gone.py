"""What users typed once and is gone is refused in a sentence that names the nearest thing that remains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.tables import all_of

from cactus_decoding import Request
from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.gone import GONE
from cactus_decoding.lab import training
from cactus_decoding.lab.training.losses import parse_loss

SETTINGS = (
    ({"verification": "hsd"}, "it is gone: use 'block', which keeps the same tokens"),
    ({"verification": "multipath"}, "it is gone: use tree='best_first', or a static one"),
    ({"verification": "recursive"}, "it is gone: use 'joint', or 'token'; studies/trees has it"),
    ({"verification": "traversal"}, "it is gone: use 'joint', or 'token'; studies/trees has it"),
    ({"tree": "adaptive"}, "it is gone: use num_speculative_tokens='auto', or tree='best_first,nodes=16'"),
    ({"tree": "independent,drafts=2"}, "it is gone: use tree='best_first', or a static one"),
)


@pytest.mark.parametrize(("settings", "said"), SETTINGS)
def test_a_setting_that_is_gone_names_what_remains(settings: dict[str, str], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Request.from_dict(settings)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (lambda: parse_loss("relaxed:clamped:width=3"), "it is gone: use the loss 'lk'"),
        (lambda: training.DraftAdaptation, "it is gone: use 'cactus train-draft'"),
        (lambda: training.diagnose, "it is gone: use 'cactus report --frontier FILE', which shows rejections"),
    ],
)
def test_a_python_name_or_a_spelling_that_is_gone_names_what_remains(typed: Callable[[], object], said: str) -> None:
    with pytest.raises((AttributeError, ValueError), match=said):
        typed()


@all_of("name", GONE)
def test_a_name_that_is_gone_is_said_to_be_so_however_it_is_typed(name: str) -> None:
    for typed in (name, f"--{name.replace('_', '-')}", name.upper()):
        assert suggestion(typed, ["lossless"]) == f"; it is gone: use {GONE[name]}"
