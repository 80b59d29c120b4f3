"""Patterns that look ahead, as libraries of clients write them, in equal forms without: grammars cannot look ahead."""

from __future__ import annotations

import re

_NAMED = r"[A-Za-z0-9_'+\-]"
_EMAIL = rf"^({_NAMED}+\.)*{_NAMED}*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{{2,}}$"
_SECONDS = r"\d+([.,]\d+)?S"
_TIME = rf"T(\d+H(\d+M)?({_SECONDS})?|\d+M({_SECONDS})?|{_SECONDS})"
_EQUAL = {
    # addresses, by zod 4 and by zod-to-json-schema for zod 3: no dot comes first, none follows another one
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": _EMAIL,
    r"^(?!\.)(?!.*\.\.)([a-zA-Z0-9_'+\-\.]*)[a-zA-Z0-9_+-]@([a-zA-Z0-9][a-zA-Z0-9\-]*\.)+[a-zA-Z]{2,}$": _EMAIL,
    # durations, by zod 4: at least one unit, and one after T
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": (
        rf"^P(\d+W|(\d+Y(\d+M)?(\d+D)?|\d+M(\d+D)?|\d+D)({_TIME})?|{_TIME})$"
    ),
    # decimals, by pydantic 2.12: at least one digit
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$",
}
_DECIMAL_PLACES = re.compile(re.escape(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,") + r"([1-9]\d*)" + re.escape(r"}0*$"))


def without_lookahead(pattern: str) -> str:
    r"""Return an equal pattern that does not look ahead, where one is known; any other as it is.

    Example:
        >>> without_lookahead(r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,2}0*$")
        '^[+-]?(\\d+(\\.\\d{0,2}0*)?|\\.(\\d{1,2}0*|0+))$'
    """
    if found := _DECIMAL_PLACES.fullmatch(pattern):
        return rf"^[+-]?(\d+(\.\d{{0,{found[1]}}}0*)?|\.(\d{{1,{found[1]}}}0*|0+))$"
    return _EQUAL.get(pattern, pattern)
