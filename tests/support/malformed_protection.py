"""What a request may ask in vain of protection and phases, and what the error says."""

from __future__ import annotations

from typing import Any

RULE = {"acceptance_rule": "clamped:width=1"}
MALFORMED: tuple[tuple[dict[str, Any], str], ...] = (
    ({**RULE, "protect": ""}, "protect must be one of"),
    ({**RULE, "protect": "digit"}, "no regular expression of its own"),
    ({**RULE, "protect": r"\d"}, "no regular expression of its own"),
    ({**RULE, "protect": "(a+)+$"}, "no regular expression of its own"),
    ({**RULE, "protect": "digits|"}, "no regular expression of its own"),
    ({**RULE, "protect": 5}, "protect must be a text"),
    ({**RULE, "protect": "digits", "protect_threshold": -0.1}, "threshold must be in"),
    ({**RULE, "protect_threshold": 0.1}, "protect_threshold is that of a pattern in protect"),
    ({**RULE, "protect": "none", "protect_threshold": 0.1}, "protect_threshold is that of a pattern in protect"),
    ({**RULE, "lossless_tokens": -1}, "lossless_tokens must be at least 0"),
    ({**RULE, "relax_within": "<think>"}, "relax_within must be two different texts"),
    ({**RULE, "relax_within": ["<think>", "<think>"]}, "relax_within must be two different texts"),
    ({**RULE, "relax_within": ["", "</think>"]}, "relax_within must be two different texts"),
    ({**RULE, "relax_within": [5, -6]}, "relax_within must be two different texts"),
    ({**RULE, "relax_within": [5, 1 << 40]}, "relax_within must be two different texts"),
    ({**RULE, "relax_within": "thinking"}, "the server knows no tokens around a thinking part"),
    ({**RULE, "relax_within": ["x" * 65, "</think>"]}, "at most 64 characters"),
    ({**RULE, "importance": "/etc/passwd"}, "a request may set max_importance only"),
    ({**RULE, "max_importance": 0.2}, "max_importance is 0.2, but importance is None"),
    ({**RULE, "importance_scale": True}, "importance_scale does not work in vLLM"),
    ({"protect": "digits"}, "protect is given .'digits'. without acceptance_rule"),
    ({"lossless_tokens": 5}, "lossless_tokens is given .5. without acceptance_rule"),
)
"""Values of ``vllm_xargs`` that must be refused with status 400."""
