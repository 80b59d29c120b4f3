"""Names that users typed once and that are gone, each with the nearest thing that remains."""

from __future__ import annotations

from types import MappingProxyType

_PROTECTION = "protect (--protect digits), which needs no training"
_TIGHTER = "a rule that relaxes little, such as clamped:width=0.5, or a budget"
_JOINT = "'joint', or 'token'; studies/trees has it as an example of a scheme of one's own"
_TREES = "tree='best_first', or a static one such as 'static=3.2.1', with verification='joint'"
_REPORT = "'cactus report --frontier FILE', which shows rejections by kind of token, and 'cactus tune'"

GONE = MappingProxyType(
    {
        "calibrate": "'cactus frontier --at kl=0.05', which prints the rule to type",
        "delta": "--rule cactus:delta=1",
        "verbose": "'cactus eval', with --all",
        "diagnose": _REPORT,
        "adapt": "'cactus train-draft'",
        "draftadaptation": "'cactus train-draft'",
        "relaxed": "the loss 'lk'",
        "filter": "'cactus train-draft' without it: choosing tokens gained nothing",
        "adaspec": "'cactus train-draft' without it: choosing tokens gained nothing",
        "learn_importance": _PROTECTION,
        "importance": _PROTECTION,
        "max_importance": _PROTECTION,
        "importance_scale": _PROTECTION,
        "show": "'cactus rules' for rules, and 'cactus trace' for answers",
        "recurring": _TIGHTER,
        "recurring_ratio": _TIGHTER,
        "skip": "'suffix', or 'early_exit:layers=3' where transformers runs the target",
        "hsd": "'block', which keeps the same tokens",
        "multipath": _TREES,
        "independent": _TREES,
        "adaptive": "num_speculative_tokens='auto', or tree='best_first,nodes=16'",
        "recursive": _JOINT,
        "traversal": _JOINT,
    }
)
"""What to use in the place of a name that is gone; docs/log.md says why it went, and which commit has it."""


_OURS = ("importance", "recurring")  # words that nobody else has


def replacement(name: str, *, shared: bool = False) -> str:
    """Return ``; it is gone: use …`` for a name that is gone, as an option or a Python name, else nothing.

    Where names are ``shared`` with somebody else, such as another plug-in of vLLM, everyday words are left to them.

    >>> replacement("--max-importance")
    '; it is gone: use protect (--protect digits), which needs no training'
    >>> replacement("cactus")
    ''
    >>> replacement("filter", shared=True)
    ''
    """
    plain = name.strip().lower().lstrip("-").replace("-", "_")
    found = None if shared and not any(word in plain for word in _OURS) else GONE.get(plain)
    return f"; it is gone: use {found}" if found else ""
