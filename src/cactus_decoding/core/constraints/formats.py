"""The values of ``format`` that are enforced, where llguidance's own are too wide or missing as what they mean."""

from __future__ import annotations

from typing import Any

_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    r"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_HOUR = r"([01]\d|2[0-3])"
_TIME = rf"{_HOUR}:[0-5]\d:[0-5]\d(\.\d{{1,9}})?(Z|[+-]{_HOUR}:[0-5]\d)"
# at most 63 characters, without "--" in the third and fourth place, as encoded names of other scripts have it
_INNER = r"[A-Za-z0-9-]([A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}"
_LABEL = rf"[A-Za-z0-9](([A-Za-z0-9-]?|{_INNER})[A-Za-z0-9])?"
_EXACT = 2**53
"""Up to here every reader of JSON keeps integers as they are."""

FORMATS: dict[str, dict[str, Any] | None] = {
    "date": {"pattern": f"^{_DATE}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "double": {},
    "duration": None,
    "email": None,
    "float": {},
    "hostname": {"maxLength": 253, "pattern": rf"^{_LABEL}(\.{_LABEL})*$"},
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"minimum": -_EXACT, "maximum": _EXACT},
    "ipv4": None,
    "ipv6": None,
    "time": {"pattern": f"^{_TIME}$"},
    "uint32": {"minimum": 0, "maximum": 2**32 - 1},
    "uint64": {"minimum": 0, "maximum": _EXACT},
    "uri": None,
    "uuid": None,
}
"""What each means in other keywords; None for those that llguidance enforces itself.

Days exist in their month and year, and there are no leap seconds, which few readers of times take. The names of
integers and numbers are those of OpenAPI.
"""
