r"""How an answer is read from a text: numbers, letters of a multiple choice, and what stands in a ``\boxed{}``.

Plain numbers are read here, expressions by math-verify. docs/answers.md lists texts with what is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import partial
from types import MappingProxyType

from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.extras import needing
from cactus_decoding.lab.evaluation.tasks.judging import last_match, value_of

Extractor = Callable[[str], str | None]

_MINUS = "[-\u2212\u2013\uff0d]"  # also the sign of Unicode, a dash and a wide hyphen
_CURRENCY = r"\\?[$€£¥₹]"
_NUMBER = re.compile(
    # a minus belongs to a number unless it stands between two things
    rf"(?:(?P<before>(?<![\w)\]}}%.,]){_MINUS})?(?P<currency>{_CURRENCY}[ ]?)?(?(currency)(?P<after>{_MINUS})?))"
    r"(?P<digits>\d{1,3}(?:[,\u202f]\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\d)\.\d+)"
    rf"(?:[eE](?P<exponent>(?:{_MINUS}|\+)?\d+)(?!\w)"
    rf"|[ ]?(?:×|x|\*|\\times|\\cdot)[ ]?10[ ]?(?:\^|\*\*)[ ]?\{{?(?P<power>{_MINUS}?\d+)\}}?"
    r"|/(?P<under>(?<=\d/)\d{1,15})(?![\d/]|\.\d)"
    r"|[ ](?P<fraction>\d{1,15}/\d{1,15})(?![\d/]|\.\d))?"
)
_FRACTION = re.compile(r"(?P<sign>-?)(?:(?P<whole>\d{1,15})[ ]+)?(?P<above>\d{1,15})/(?P<below>\d{1,15})")
_HASHES = re.compile(rf"####[ \t]*(?:\*\*)?(?={_MINUS}?(?:{_CURRENCY})?[ ]?{_MINUS}?\.?\d)")
_BOX = re.compile(r"\\boxed\s*\{")
_SPACES = re.compile(r"\\[,;:! ]|\\quad|~")
_WORDING = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_PLAIN = re.compile(
    rf"(?:[^\W\d_][^\d+*/^=\\-]*[\s:])?(?P<number>{_NUMBER.pattern})\s*[.,]?\s*"
    r"(?:\\?%|\^?\\circ|\^\{\\circ\}|°)?(?:\s*[^\W\d_][^\d+*/^=\\]*)?"
)
"""A number in a box, perhaps after words, and with a unit or words behind it."""
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_WRITTEN_OUT = 4_000  # digits of an integer: models also write 1e9999999


def canonical_number(text: str) -> str | None:
    """Return a number in its canonical spelling, ``1250.5`` for ``1,250.50``, or None if the text is no number.

    A fraction becomes a decimal, or has its lowest terms where none is exact; one below 1 may follow an integer, as in
    ``3 1/2``. An integer of very many digits is spelled with an exponent, so that it takes no longer than the text.

    Example:
        >>> canonical_number("1,250.50"), canonical_number("6/8"), canonical_number("2/6"), canonical_number("six")
        ('1250.5', '0.75', '1/3', None)
    """
    if found := _FRACTION.fullmatch(text.strip()):
        return _spelled(found)
    try:
        value = Decimal(text.replace(",", "").strip())
    except InvalidOperation:
        return None
    if not value.is_finite():
        return None
    whole = value == value.to_integral_value() and value.adjusted() < _WRITTEN_OUT
    return f"{value.to_integral_value() or Decimal(0):f}" if whole else str(value.normalize(_EXACT))


def _spelled(found: re.Match[str]) -> str | None:
    """Return the canonical spelling of what `_FRACTION` has found, or None for `1/0` and `3 7/2`."""
    above, below = int(found["above"]), int(found["below"])
    if not below or (found["whole"] and above >= below):
        return None
    value = (int(found["whole"] or 0) + Fraction(above, below)) * (-1 if found["sign"] else 1)
    rest = value.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    if rest > 1:
        return f"{value.numerator}/{value.denominator}"
    exact = Context(prec=100).divide(Decimal(value.numerator), Decimal(value.denominator))
    return canonical_number(str(exact))


def _value(found: re.Match[str]) -> str | None:
    """Return the number that `_NUMBER` has found."""
    sign = "-" if found["before"] or found["after"] else ""
    digits = re.sub(r"[,\u202f]", "", found["digits"])
    if found["under"] and found.string[: found.start()].endswith("/"):  # a date
        return canonical_number(found["under"])
    if found["under"]:
        return canonical_number(f"{sign}{digits}/{found['under']}") or canonical_number(found["under"])
    if fraction := found["fraction"]:  # a mixed number, or else a number of its own
        numbers = (f"{sign}{digits} {fraction}", fraction, fraction.partition("/")[2])
        return next(filter(None, map(canonical_number, numbers)))
    exponent = re.sub(_MINUS, "-", found["exponent"] or found["power"] or "")
    return canonical_number(f"{sign}{digits}" + (f"e{exponent}" if exponent else ""))


def after_hashes(text: str) -> str | None:
    """Return the number after the first ``####``."""
    found = _HASHES.search(text)
    number = _NUMBER.search(text, found.end()) if found else None
    return _value(number) if number else None


def last_number(text: str) -> str | None:
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007
        pass
    return _value(found) if found else None


def last_box(text: str) -> str | None:
    r"""Return what the last ``\boxed{...}`` holds that is closed and not empty, with its braces.

    Example:
        >>> last_box(r"\boxed{\frac{1}{2}} and \boxed{")
        '\\frac{1}{2}'
    """
    begun: list[int] = []
    depth, opened = 0, list[tuple[int, int]]()
    begins = {match.end() - 1 for match in _BOX.finditer(text)}
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            depth += 1
            if match.start() in begins:
                opened.append((depth, match.end()))
        elif depth:
            if opened and opened[-1][0] == depth:
                start = opened.pop()[1]
                if text[start : match.start()].strip():
                    begun = [start, match.start()]
            depth -= 1
    return text[begun[0] : begun[1]].strip() if begun else None


def _tidy(latex: str) -> str:
    """Return what a box holds without what only sets it."""
    text = _SPACES.sub(" ", latex.replace("{,}", ",").replace("\\!", ""))
    text = _WORDING.sub(r" \1 ", text).replace("$", " $").replace("\\ $", " $")
    text = re.sub(r"(?<=\d)[ ]?,[ ]?(?=\d{3}\b)", ",", " ".join(text.split()))
    return re.sub(r"(?<!\d)\d{1,3}(?: \d{3})+(?![\d/])", lambda each: each[0].replace(" ", ","), text)


def _boxed_number(latex: str) -> str | None:
    """Return the number that a box holds, which math-verify works out where it is not written plainly."""
    text = re.sub(rf"^({_MINUS})\s+", r"\1", _tidy(latex).rpartition("=")[2].strip())
    if _PLAIN.fullmatch(text):
        return last_number(text)
    if ":" in text or not re.search(r"\d", text):
        return None
    return canonical_number(value_of(latex.rpartition("=")[2]) or "")


def final_number(text: str) -> str | None:
    r"""Return the number in the last ``\boxed{...}``, else the one after the first ``####``, else the last one.

    A box that holds something else is an answer, which is no number.
    """
    box = last_box(text)
    return _boxed_number(box) if box else after_hashes(text) or last_number(text)


def boxed(text: str) -> str | None:
    r"""Return what the last ``\boxed{...}`` holds, a number in its canonical spelling."""
    box = last_box(text)
    return box and (_boxed_number(box) or _tidy(box).replace(" $", "$").strip() or None)


_OPTION = (
    r"(?<![\w'’])(?:(?P<letter>[B-HJ])(?!\w|['’]\w)"
    # words that are letters: an article before a word, a pronoun before a verb
    r"|(?P<article>A)(?!\w|['’]\w)(?![ ]+(?!(?:is|was|because|since|as|and|or|but|for|by|if|would|has|can)\b)[a-z])"
    r"|(?P<pronoun>I)(?!\w|['’]\w)(?![ ]+(?!(?:is|because|since|and|or|but)\b)[a-z]))"
)
_MARKS = r"[\s:=*_(\[\"'`$\\]*"
_NAMED = rf"(?:(?i:(?:the[ ])?(?:option|choice|answer|letter))\b{_MARKS})?"
_ANY = re.compile(_OPTION)
_STATED = re.compile(
    rf"(?i:\banswer|\bchoice|\boption)[\s*_\"'`]*(?i:is|would be|must be|should be|:|=)"
    rf"(?:[ ](?i:likely|probably|clearly|definitely|therefore|thus))?{_MARKS}{_NAMED}{_OPTION}"
    # not what is stated to be wrong, as in "Answer: A is wrong"
    r"(?![\s*_)\]\"'`$]*\b(?:is|was)[ ](?:wrong|incorrect|false|not)\b)"
)
_FIRST = re.compile(_MARKS + _OPTION)
_BOXED_OPTION = re.compile(rf"{_MARKS}{_NAMED}([A-J])\b[\s).:]*.*")
_SMALL_OPTION = re.compile(rf"{_MARKS}{_NAMED}([a-j])(?:[\s*_)\].\"'`$]*\Z|[).:]\s)")


def letter(text: str) -> str | None:
    r"""Return the answer to a multiple choice, a capital from A to J that stands alone and is no word.

    It is the one in the last ``\boxed{}``, else what the last "answer is" or "answer:" says (or choice, or option), as
    in "the answer is option B", else the one that begins the text, else the last one. A before a word is an article and
    I a pronoun, unless a word follows that neither can have, as in "A is right".

    Example:
        >>> letter("The answer is B because I said so"), letter("B. A good choice"), letter("I do not know")
        ('B', 'B', None)
    """
    box = last_box(text)
    if box and (found := _BOXED_OPTION.fullmatch(_tidy(box))):
        return found[1]
    text = _WORDING.sub(r" \1 ", text)
    ways = ([*_STATED.finditer(text)][-1:], [*filter(None, [_FIRST.match(text)])], [*_ANY.finditer(text)][-1:])
    found = next((each[0] for each in ways if each), None)
    return found and next(filter(None, found.groupdict().values()))


def exact(text: str) -> str | None:
    """Return the whole text without space at its ends."""
    return text.strip() or None


def first_line(text: str) -> str | None:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else None


EXTRACTORS = MappingProxyType(
    {
        "hashes": after_hashes,
        "last_number": last_number,
        "letter": letter,
        "boxed": boxed,
        "final_number": final_number,
        "exact": exact,
        "first_line": first_line,
    }
)
"""Extractors by name; ``regex`` is another, with a pattern."""
WITH_BOXES = (boxed, final_number)
"""What reads boxes, and so needs math-verify."""
_UNIT = re.compile(r"(?<=[\d}%])\s+[A-Za-z][A-Za-z ./]*(?:\^\{?-?\d\}?)?\s*$")
_WORD = re.compile(r"(?<![\\{A-Za-z])[A-Za-z]{2,}")


def reference(extract: Extractor, answer: str) -> str | None:
    r"""Return what a right answer, given as it is or as a text that holds it, is read as.

    What stands without the box or the ``####`` that is read is put there, and an expression of `final_number` into a
    box. An option may be a small letter. Where nothing is read it is the whole answer; None if that should be an
    option.

    Example:
        >>> reference(boxed, "1,250.50"), reference(final_number, r"\frac{1}{2}"), reference(letter, "b")
        ('1250.5', '0.5', 'B')
    """
    if extract is letter:
        return letter(answer) or _small_letter(answer)
    read = extract(answer)
    if extract is after_hashes:
        read = read or after_hashes(f"#### {answer.strip()}")
    elif extract is boxed:
        read = read or boxed(rf"\boxed{{{answer}}}")
    elif extract is final_number and (expression := _bare_expression(answer)):
        read = final_number(rf"\boxed{{{expression}}}")
    return answer.strip() if read is None else read


def _small_letter(answer: str) -> str | None:
    found = _SMALL_OPTION.match(answer)
    return found[1].upper() if found else None


def _bare_expression(answer: str) -> str | None:
    """Return an expression in LaTeX that stands alone, without its unit; None for a number, a box or a sentence."""
    if not re.search(r"[\\^]", answer) or last_box(answer) or after_hashes(answer):
        return None
    expression = _UNIT.sub("", answer)
    return None if _WORD.search(_WORDING.sub(" ", expression)) else expression


def check_math() -> None:
    with needing("answers in \\boxed{} are read by math-verify", "eval"):
        import math_verify  # noqa: F401


def extractor_name(extract: Extractor) -> str:
    """Return an extractor's name, of a regex with its pattern; of one of your own, where it is defined.

    >>> extractor_name(last_number), extractor_name(extractor("regex", "is ([0-9]+)"))
    ('last_number', 'regex:is ([0-9]+)')
    """
    if isinstance(extract, partial) and extract.func is last_match:
        return f"regex:{extract.args[0]}"
    named = (name for name, each in EXTRACTORS.items() if each is extract)
    return next(named, None) or definition_name(extract)


def definition_name(value: object) -> str:
    """Return where a function, or else a value's class, is defined."""
    defined = value if hasattr(value, "__qualname__") else type(value)
    return f"{defined.__module__}.{defined.__qualname__}"


def extractor(name: str, pattern: str = "") -> Extractor:
    if name != "regex":
        if name not in EXTRACTORS:
            known = (*EXTRACTORS, "math", "regex", "none")
            raise ValueError(f"extract must be one of {', '.join(known)}, but is {name!r}{suggestion(name, known)}")
        if pattern:
            raise ValueError(f"a pattern goes with extract=regex only, but extract is {name!r}")
        return EXTRACTORS[name]
    if not pattern:
        raise ValueError("extract=regex needs a pattern, as in extract=regex,pattern=is ([0-9]+)")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from None
    return partial(last_match, pattern)
