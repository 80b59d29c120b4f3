"""What all pictures share: colours that colour-blind people can tell apart, markers, and reproducible SVG."""

from __future__ import annotations

import re
import warnings
from hashlib import sha256
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from cactus_decoding.core.declared import fields_of
from cactus_decoding.core.extras import needing
from cactus_decoding.core.rules import Rule, parse_rule, recorded_rule
from cactus_decoding.lab.frontier.relaxations import FAMILIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ID = re.compile(r'(?<=["#])(?P<kind>\w*?)[0-9a-f]{10}(?=[")])')
GREY, BAND = "#595959", "#dddddd"
SIZE = (7.0, 4.6)


class Style(NamedTuple):
    """How a rule is drawn; a hollow marker and dashes are a cue beside colour."""

    colour: str
    marker: str
    hollow: bool = False

    def keywords(self) -> dict[str, Any]:
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": "--" if self.hollow else "-",
            "markerfacecolor": "white" if self.hollow else self.colour,
            "markersize": 5,
            "linewidth": 1.2,
        }


STYLES = {
    "lossless": Style("#000000", "*"),
    "cactus": Style("#d55e00", "o"),
    "cactus_exact": Style("#d55e00", "s", hollow=True),
    "clamped": Style("#0072b2", "D"),
    "clamped_max_kl": Style("#56b4e9", "d", hollow=True),
    "ensemble": Style("#009e73", "^"),
    "lenience": Style("#e69f00", "v"),
    "typical": Style("#cc79a7", "P"),
    "typical_sample": Style("#cc79a7", "p", hollow=True),
    "top_k": Style("#595959", "X"),
    "top_k_mask": Style("#595959", "h", hollow=True),
}
"""Those of Okabe and Ito's colours that can be seen on white; a family looks the same in every picture."""
_SPARE = (
    Style(colour, marker, hollow=hollow)
    for colour, hollow, markers in (("#882255", False, "<>8H"), ("#332288", True, "<>8H"), ("#117733", False, "phds"))
    for marker in markers
)
STYLES |= zip((name for name in FAMILIES if name not in STYLES), _SPARE, strict=False)
OTHER_STYLE = Style("#999999", ".")


def family_of(rule: str) -> str:
    """Return the family of a rule's spelling: of its rule's families, the one with the most words in common."""
    name = rule.partition(":")[0].strip()
    try:
        parsed = recorded_rule(rule)
        words, families = _words(parsed), parsed.families
    except ValueError:  # a rule that is not known here
        return name
    likeness = {each.name: len(words & _words(parse_rule(each.spell(each.strict)))) for each in families}
    return max(likeness, key=lambda family: likeness[family], default=name)


def _words(rule: Rule) -> set[tuple[str, object]]:
    given = {each: getattr(rule, each.name) for each in fields_of(type(rule))}
    return {
        (each.name, value if each.choices else None) for each, value in given.items() if each.choices or value is None
    }


def style_of(rule: str) -> Style:
    return STYLES.get(family_of(rule), OTHER_STYLE)


def clean(text: str, max_length: int = 200) -> str:
    r"""Return text from a file without what no page or picture may hold: control characters and lone surrogates.

    >>> clean("a\x00b")
    'a�b'
    """
    kept = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return kept if len(kept) <= max_length else kept[: max_length - 1] + "…"


def parts_of(name: str) -> list[str]:
    """Return a setting's name in parts between which a line may break: never within a number.

    >>> parts_of("cactus:delta=1.0,solver=exact ×10")
    ['cactus:', 'delta=1.0,', 'solver=exact ×10']
    """
    return re.findall(r"[^:,]*[:,]|[^:,]+", name)


def literal(text: str) -> str:
    """Return text that matplotlib draws as it is: no formulas, and no labels that it hides."""
    text = clean(text, 80).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def new_figure(size: tuple[float, float] = SIZE) -> Figure:
    """Return an empty figure, made without any global state of matplotlib."""
    with needing("pictures need matplotlib", "report"):
        from matplotlib.figure import Figure as NewFigure
    return NewFigure(figsize=size, layout="constrained", facecolor="white")


def to_svg(figure: Figure) -> str:
    """Return a figure as SVG: the same text for the same figure, with letters as outlines."""
    import matplotlib

    buffer = StringIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "cactus", "svg.fonttype": "path"}):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in another script: a box stands for the letter
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return with_equal_ids(buffer.getvalue())


def with_equal_ids(svg: str) -> str:
    """Return a picture whose names of clips and markers are the same on every processor, and not those of another one.

    Matplotlib makes them of numbers with all their digits, whose last one differs by processor; what is drawn has six.
    """
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        return f"{found['kind']}{numbers.setdefault(found[0], len(numbers))}-"

    plain = _ID.sub(numbered, svg)
    picture = sha256(plain.encode()).hexdigest()[:10]
    return _ID.sub(lambda found: numbered(found) + picture, svg)
