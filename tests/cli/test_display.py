"""How responses look on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from cactus_decoding import Fate
from cactus_decoding.cli.display import styles, write
from cactus_decoding.core.detokenizer import TextPart


def test_every_fate_has_a_look_of_its_own_and_controls_do_nothing():
    for colours in ("truecolor", "256", "standard"):
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, color_system=colours, _environ={})
        look = styles(console)
        for fate in Fate:
            write(console, [TextPart("x", fate)], look)
        assert len(set(file.getvalue().split("x"))) == len(Fate) + 1
    cues = {style.rpartition(" ")[0] for style in look.values()}
    assert len(cues) == len(Fate)  # they differ without colours, too
    write(console, [TextPart("\x1b[2J\x07\x9b\n", Fate.BONUS)], look)
    assert "\x1b[2J" not in file.getvalue()
    assert "␛[2J␇." in file.getvalue()
