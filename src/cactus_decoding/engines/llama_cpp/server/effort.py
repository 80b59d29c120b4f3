"""How much a model thinks, as requests ask for it and as its chat template knows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cactus_decoding.core.checks import check_choice, short_repr
from cactus_decoding.core.constraints.thinking import thinking_marks

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_SWITCHES = ("enable_thinking", "thinking")  # of chat templates


@dataclass(frozen=True)
class Effort:
    """What a ``reasoning_effort`` means to a model: names for its chat template, and perhaps a limit of tokens."""

    options: dict[str, Any] = field(default_factory=dict)
    budget: int | None = None

    @classmethod
    def of(cls, effort: str, template_kwargs: Mapping[str, Any], tokenizer: Any) -> Effort:
        """Return what a model knows of an effort.

        A template that has the word is told it. One that has a switch has it on, but for ``none``. With ``none`` a
        model that thinks and has no switch has a budget of 0. ``template_kwargs`` are what the request has for the
        template itself.

        Raises `ValueError` where the model knows nothing of the effort, or ``template_kwargs`` say otherwise.
        """
        check_choice("reasoning_effort", effort, _EFFORTS)
        template = getattr(tokenizer, "chat_template", None) or ""
        options: dict[str, Any] = {"reasoning_effort": effort} if "reasoning_effort" in template else {}
        for name in _SWITCHES:
            if re.search(rf"\b{name} is (not )?defined", template):
                options[name] = effort != "none"
        if differing := [name for name in options if template_kwargs.get(name, options[name]) != options[name]]:
            raise ValueError(
                f"reasoning_effort is {effort!r}, but {differing[0]} of chat_template_kwargs is "
                f"{short_repr(template_kwargs[differing[0]])}"
            )
        if options:
            return cls(options)
        thinks = thinking_marks(tokenizer) is not None
        if effort == "none":
            return cls(budget=0 if thinks else None)
        why = "knows no thinking. Leave it out, or say 'none'"
        if thinks:
            why = "always thinks, and knows no effort. Leave it out, or give a thinking_budget, in tokens"
        raise ValueError(f"reasoning_effort of {effort!r} is not served: the model's chat template {why}")


NO_EFFORT = Effort()
