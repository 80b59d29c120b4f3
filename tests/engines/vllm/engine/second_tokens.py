"""The exact law of the second token of answers: by rows of both models after the likeliest first token."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import torch
from support.chi_square import rejects
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import audit, zoo

OPENING = "Question: Ben reads 12 pages a day for 5 days. How many pages does he read?\nAnswer: To begin"
"""A comma follows for certain, and then many tokens are possible, of which the draft's choice is no sure one."""


@cache
def prompt_of(text: str) -> list[int]:
    return AutoTokenizer.from_pretrained(zoo.path("target"))(text).input_ids


@cache
def rows_after(opening: str) -> tuple[int, torch.Tensor, int]:
    """Return the likeliest first token after an opening, the target's row after that, and the draft's choice there."""
    prompt = prompt_of(opening)
    target, draft = (
        AutoModelForCausalLM.from_pretrained(zoo.path(role), dtype=torch.float32) for role in ("target", "draft")
    )
    with torch.no_grad():
        first = int(target(torch.tensor([prompt])).logits[0, -1].argmax())
        row, drafted = (model(torch.tensor([[*prompt, first]])).logits[0, -1] for model in (target, draft))
    return first, row.double().softmax(-1), int(drafted.argmax())


def follow(sequences: Sequence[Sequence[int]], rule: str | None, opening: str = OPENING, proposed: int | None = None):
    """Say whether second tokens have the law of a rule that judges the draft's choice, or what else was proposed."""
    first, target, drafted = rows_after(opening)
    assert Counter(each[0] for each in sequences).most_common(1)[0][0] == first
    seconds = [each[1] for each in sequences if each[0] == first]
    assert len(seconds) > 0.9 * len(sequences)
    token = torch.tensor([drafted if proposed is None else proposed])
    law = audit(rule or "lossless", target.unsqueeze(0), draft_token_ids=token).output_probs[0]
    return not rejects(torch.tensor(seconds), law / law.sum())
