"""Relaxed greedy acceptance: at temperature 0, keep what is almost as likely as the most likely token."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.rules.base import Family, GreedyRule, Preset, needs_place, probability_of


@dataclass(frozen=True)
class RelaxedGreedy(GreedyRule):
    r"""Accept n iff its log-probability is at most ``margin`` nats below the most likely token's; recover the latter.

    .. math:: \log \max_i q(i) - \log q(n) \le margin

    with q *before* temperature. It is the rule for temperature 0, where q is one-hot and every rule of a divergence
    degenerates to an exact match. What it gives up is log-probability, not the distribution: at most ``margin`` per
    token, metered per token and per response. With a margin of 0 the tokens are those of greedy decoding.

    With ``per=remaining`` the i-th of K proposals, counted from 0, may give up K - i times as much, as in ASD, because
    the first proposals decide whether the others are kept at all. Tokens of equal probability are equally high in
    ``top``, but with a margin of 0 only the first of equals is kept.

    Source: design of this project; the margin per remaining proposal: arXiv 2608.03447.

    Raises:
        TypeError: for a parameter of the wrong type.
        ValueError: for one out of range.

    Example:
        >>> q = torch.tensor([0.5, 0.4, 0.1])
        >>> RelaxedGreedy(margin=0.3).judge(q, None, torch.tensor([0, 1, 2])).relaxed_prob.tolist()
        [1.0, 1.0, 0.0]
    """

    margin: Annotated[
        float, Setting("log-probability that a token may give up; 0 is greedy decoding", "nats", ge=0, lt=math.inf)
    ]
    top: Annotated[int, Setting("accept only among this many likeliest tokens; 0 sets no limit", "tokens", ge=0)] = 0
    per: Annotated[
        Literal["token", "remaining"], Setting("whether the margin is that of each token, or times the proposals left")
    ] = "token"

    name = "relaxed_greedy"
    title = "Relaxed greedy"
    kind = "truncation"
    summary = "At temperature 0, keep what is almost as likely as the most likely token."
    presets = (
        Preset(
            "relaxed_greedy:margin=0.5,top=3",
            "For temperature 0: no token gives up more than margin nats of log-probability.",
            "at temperature 0",
        ),
    )
    families = (Family("relaxed_greedy", "relaxed greedy", lambda x: f"relaxed_greedy:margin={x!r}", 0.02, 6.0),)

    def bind_position(self, remaining: int, greatest_logit: float) -> RelaxedGreedy:
        """Return the rule with the margin that holds where so many proposals are left.

        >>> RelaxedGreedy(margin=0.25, per="remaining").bind_position(4, 0.0)
        RelaxedGreedy(margin=1.0, top=0, per='token')
        """
        return replace(self, margin=self.margin * remaining, per="token") if self.per == "remaining" else self

    def keeps(self, target_probs: Tensor, token_ids: Tensor) -> Tensor:
        if self.per == "remaining":
            raise needs_place(self)
        kept = given_up(target_probs, token_ids) <= self.margin
        if self.top:
            likeliest = target_probs.topk(min(self.top, target_probs.shape[-1]), dim=-1).values
            kept &= target_probs.gather(-1, token_ids) >= likeliest[..., -1:]
        return kept & (self.margin > 0)  # else not even a token as likely as the first


def given_up(target_probs: Tensor, token_ids: Tensor) -> Tensor:
    """Return the log-probability that tokens give up against the most likely one, ``[..., tokens]`` in nats."""
    best = target_probs.amax(-1, keepdim=True).double()
    probs = probability_of(target_probs, token_ids)
    # the logarithms of close numbers may be equal
    return torch.where(2 * probs > best, torch.log1p((best - probs) / probs), best.log() - probs.log())
