"""One verification step of the V2 runner, all of it on the device: relaxed logits, budgets, and what is counted.

The host does not know the order of a step's rows there, so each rule in the batch is worked out for all rows, and those
of its requests are selected on the device. Row i holds the logits behind the drafted token ``draft_sampled[i + 1]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.integrations.vllm.meter import allowed_positions, nats_of_visited
from cactus_decoding.integrations.vllm.nats import Spending, spending
from cactus_decoding.integrations.vllm.relaxed_logits import Relaxed, changes_one_logit, relax_rows, relax_tokens
from cactus_decoding.integrations.vllm.slots import NO_RULE, SlotRules
from cactus_decoding.rules.base import Rule

_MOST_ELEMENTS = 1 << 25


@dataclass(frozen=True, eq=False)
class Rows:
    """A step's rows.

    Attributes:
        target_logits: processed, ``[rows, vocabulary]``.
        draft_logits: before temperature, ``[slots, num_speculative_tokens, vocabulary]``; None if deterministic.
        tokens: the drafted token that a row is about, 0 where there is none, ``[rows]``.
        codes: of the rule that applies to it, ``[rows]``; `NO_RULE` where there is no drafted token.
        slots: of its request, ``[rows]``.
        local_pos: its place among those of its request, ``[rows]``.
        temperature: by slot.
    """

    target_logits: Tensor
    draft_logits: Tensor | None
    tokens: Tensor
    codes: Tensor
    slots: Tensor
    local_pos: Tensor
    temperature: Tensor

    @property
    def width(self) -> int:
        """The shorter vocabulary, which is what the sampler looks at."""
        return min(x.shape[-1] for x in (self.target_logits, self.draft_logits) if x is not None)

    def draft_probs(self, some: Tensor) -> Tensor:
        """Return the draft's rows of some indices, float64; uniform where a row is about no drafted token."""
        assert self.draft_logits is not None
        slots, step = self.slots[some], self.local_pos[some].clamp(max=self.draft_logits.shape[1] - 1)
        warmth = self.temperature[slots].double()
        scaled = self.draft_logits[slots, step, : self.width].double()
        scaled = scaled / torch.where(warmth > 0, warmth, 1.0).unsqueeze(1)
        return torch.where((self.codes[some] >= 0).unsqueeze(1), scaled.softmax(-1), 1 / self.width)

    def draft_token_probs(self) -> Tensor | None:
        """Return p(n) of the drafted tokens, a part of the rows at a time; None for a deterministic draft."""
        if self.draft_logits is None:
            return None
        parts = torch.arange(len(self.tokens), device=self.tokens.device).split(max(1, _MOST_ELEMENTS // self.width))
        tokens = self.tokens.clamp(max=self.width - 1).unsqueeze(1)
        return torch.cat([self.draft_probs(part).gather(1, tokens[part]).squeeze(1) for part in parts])

    def both(self, some: Tensor) -> tuple[Tensor, Tensor]:
        """Return the target's logits and the draft's probabilities of some rows."""
        return self.target_logits[some, : self.width], self.draft_probs(some)


def rows_of_step(
    rules: SlotRules,
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    slots: Tensor,
    local_pos: Tensor,
    temperature: Tensor,
) -> Rows:
    """Return a step's rows; ``draft_sampled`` is the token fed in at each, negative where it is padding."""
    drafted = torch.nn.functional.pad(draft_sampled[1:].long(), (0, 1), value=-1)
    same = torch.nn.functional.pad(slots[1:] == slots[:-1], (0, 1), value=False)
    codes = torch.where(same & (drafted >= 0), rules.codes[slots], NO_RULE)
    return Rows(target_logits, draft_logits, drafted.clamp(min=0), codes, slots, local_pos, temperature)


@dataclass(frozen=True, eq=False)
class Paid:
    """What the budgets of a step pay for; one row a slot.

    Attributes:
        costs: nats of each position, ``[slots, num_speculative_tokens + 1]``; 0 where nothing is metered.
        allowed: which of them are relaxed.
    """

    costs: Tensor
    allowed: Tensor


class SlotStep:
    """A step that is relaxed: the logits to sample from, and afterwards what that came to.

    Args:
        rules: of the requests, by slot.
        rows: of the step.
        num_speculative_tokens: at most.

    Attributes:
        logits: relaxed, ``[rows, vocabulary]``; the given ones stay as they are.
    """

    def __init__(self, rules: SlotRules, rows: Rows, num_speculative_tokens: int) -> None:
        """Work everything out that does not depend on what is sampled."""
        self._rules, self._rows = rules, rows
        before = rows.target_logits.gather(1, rows.tokens.unsqueeze(1)).squeeze(1)
        totals = rows.target_logits.logsumexp(-1)
        one_logit = {rule: changes_one_logit(rule, rows.draft_logits) for rule in rules.present}
        whole = None if all(one_logit.values()) else rows.both(torch.arange(len(before), device=before.device))
        self._relaxed = {
            rule: relax_tokens(rule, before, totals) if one or whole is None else self._relax_rows(rule, *whole)
            for rule, one in one_logit.items()
        }
        self._spent: dict[Rule, Spending] = {}
        if rules.metered or rules.counters is not None:
            drafted = rows.draft_token_probs()
            self._spent = {rule: self._spend(rule, drafted) for rule in rules.present}
        self._paid = self._pay(num_speculative_tokens) if rules.metered else None
        self.logits = self._write(before)

    def settle(self, idx_mapping: Tensor, num_sampled: Tensor) -> None:
        """Charge and count what was looked at.

        Args:
            idx_mapping: slots of the step's requests, ``[requests]``.
            num_sampled: how many tokens each got, ``[requests]``.
        """
        rules, rows = self._rules, self._rows
        got = torch.zeros_like(rules.codes).index_copy_(0, idx_mapping.long(), num_sampled.long())
        if self._paid is not None:
            spent = nats_of_visited(self._paid.costs, self._paid.allowed, got)
            rules.meter.spent.index_add_(0, rules.places, spent)
        if rules.counters is not None:
            left = got[rows.slots] - 1 - rows.local_pos  # 0 at the rejected position, less after it
            fates = [torch.where(self._mask(rule), left, NO_RULE) for rule in self._spent]
            allowed = [self._allowed_rows()] * len(fates)
            rules.counters.add(list(self._spent), list(self._spent.values()), fates, allowed)

    def _mask(self, rule: Rule) -> Tensor:
        return self._rows.codes == self._rules.code(rule)

    def _relax_rows(self, rule: Rule, target_logits: Tensor, draft_probs: Tensor) -> Relaxed:
        return relax_rows(rule, target_logits, draft_probs, self._rows.tokens.clamp(max=self._rows.width - 1))

    def _spend(self, rule: Rule, drafted: Tensor | None) -> Spending:
        """Return what all rows cost under a rule; where that takes an audit, this waits for the device."""
        rules, rows, relaxed = self._rules, self._rows, self._relaxed[rule]
        sample = None if rules.counters is None else rules.counters.audited(len(rows.tokens))
        needed = None
        if drafted is not None and relaxed.logits.dim() == 1 and (rules.metered or sample is not None):
            wanted = self._metered_rows()
            if sample is not None:
                wanted[sample] = True
            needed = (wanted & self._mask(rule)).nonzero().squeeze(1)
        return spending(rule, relaxed, drafted, rows.both, needed, sample)

    def _metered_rows(self) -> Tensor:
        return self._rules.budgets[self._rows.slots].isfinite()

    def _pay(self, num_speculative_tokens: int) -> Paid:
        rules, rows = self._rules, self._rows
        costs = torch.zeros_like(rows.codes, dtype=torch.float64)
        for rule, spent in self._spent.items():
            costs = torch.where(self._mask(rule) & self._metered_rows(), spent.emitted, costs)
        table = costs.new_zeros(len(rules.codes), num_speculative_tokens + 1)
        table.index_put_((rows.slots, rows.local_pos), costs)
        return Paid(table, allowed_positions(table, rules.meter.spent[rules.places], rules.budgets))

    def _allowed_rows(self) -> Tensor | None:
        return None if self._paid is None else self._paid.allowed[self._rows.slots, self._rows.local_pos]

    def _write(self, before: Tensor) -> Tensor:
        rows, allowed = self._rows, self._allowed_rows()
        result, lifted = rows.target_logits.clone(), before
        for rule, relaxed in self._relaxed.items():
            mask = self._mask(rule) if allowed is None else self._mask(rule) & allowed
            if relaxed.logits.dim() == 1:
                lifted = torch.where(mask, relaxed.logits, lifted)
            else:
                part = result[:, : rows.width]
                result[:, : rows.width] = torch.where(mask.unsqueeze(1), relaxed.logits, part)
        changed = (lifted != before).unsqueeze(1)  # where whole rows are new, the drafted token's logit stays so
        token = rows.tokens.unsqueeze(1)
        return result.scatter_(1, token, torch.where(changed, lifted.unsqueeze(1), result.gather(1, token)))
