"""The seam to vLLM's V2 model runner: the same idea as for V1, with all that depends on a request kept on the device.

The host does not know the order of a step's rows there, so each rule in the batch is worked out for all rows, and those
of its requests are selected on the device. Row i holds the logits behind the drafted token ``draft_sampled[i + 1]``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.adapters.vllm.patching import replace
from cactus_decoding.adapters.vllm.relaxed_logits import changes_one_logit, lifted_logits, relaxed_rows
from cactus_decoding.adapters.vllm.request import Relaxation, relaxation
from cactus_decoding.adapters.vllm.server_config import ServerConfig
from cactus_decoding.adapters.vllm.state import GREEDY_BELOW
from cactus_decoding.rules.base import Rule

logger = logging.getLogger("vllm.cactus_decoding")
NO_RULE = -1


class SlotRules:
    """The rules of the requests by the runner's slots; vLLM keeps it up to date as one of its logits processors.

    Args:
        default: what a request gets that asks for nothing.
        device: of the logits.
        max_num_requests: number of slots.
    """

    def __init__(self, default: Relaxation | None, device: torch.device, max_num_requests: int) -> None:
        """Begin with empty slots."""
        self.codes = torch.full((max_num_requests,), NO_RULE, dtype=torch.int64, device=device)
        self.present: set[Rule] = set()
        self._default = default
        self._by_slot: dict[int, Rule] = {}
        self._known: dict[Rule, int] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take note of a request's rule; say whether it has one."""
        rule = self._rule_of(sampling_params)
        if rule is None:
            self._by_slot.pop(req_idx, None)
        else:
            self._by_slot[req_idx] = rule
        self.codes[req_idx] = NO_RULE if rule is None else self.code(rule)
        return rule is not None

    def code(self, rule: Rule) -> int:
        """Return the number that stands for a rule on the device."""
        return self._known.setdefault(rule, len(self._known))

    def _rule_of(self, params: Any) -> Rule | None:
        """Return a request's rule; a bad value, which the front end has refused, must not end the worker."""
        if params.temperature < GREEDY_BELOW:
            return None
        try:
            asked = relaxation(params.extra_args, self._default)
        except (TypeError, ValueError) as error:
            logger.error("a request is verified losslessly: %s", error)
            return None
        return None if asked is None or asked.lossless else asked.rule

    def apply_staged_writes(self) -> None:
        """Do nothing: a slot's number is written when its request is added."""

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Note which rules this step's requests have, and return the logits as they are."""
        global _current
        self.present = {self._by_slot[slot] for slot in ctx.idx_mapping_np.tolist() if slot in self._by_slot}
        _current = self
        return logits


_current: SlotRules | None = None
"""Whose `apply` ran last: vLLM calls the sampler next, and does not hand it the processors. Which rows are relaxed does
not depend on it, for the slots say that."""


def install() -> None:
    """Hook into the V2 runner's logits processors and its sampler."""
    from vllm.v1.worker.gpu.sample import logits_processor

    replace(logits_processor, "build_custom_logits_processors", with_slot_rules)


def with_slot_rules(stock: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return `build_custom_logits_processors` with our state added, and see to the sampler that will look for it."""

    def build(vllm_config: Any, req_states: Any, *args: Any, **kwargs: Any) -> list[Any]:
        processors = stock(vllm_config, req_states, *args, **kwargs)
        config = ServerConfig.of(vllm_config)
        if not config.speculates:
            return processors
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler

        replace(rejection_sampler, "rejection_sample", with_relaxation)
        return [*processors, SlotRules(config.default, req_states.device, req_states.max_num_reqs)]

    return build


def with_relaxation(stock: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return `rejection_sample` that relaxes the rows of requests with a rule; without any it is the stock one."""

    def rejection_sample(
        target_logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        cu_num_logits: Tensor,
        pos: Tensor,
        idx_mapping: Tensor,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        temperature: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        rules = _current
        relaxed = target_logits
        if rules is not None and rules.present:
            relaxed = relaxed_step(
                rules,
                target_logits,
                draft_logits,
                draft_sampled,
                expanded_idx_mapping.long(),
                expanded_local_pos.long(),
                temperature,
            )
        return stock(
            relaxed,
            draft_logits,
            draft_sampled,
            cu_num_logits,
            pos,
            idx_mapping,
            expanded_idx_mapping,
            expanded_local_pos,
            temperature,
            *args,
            **kwargs,
        )

    return rejection_sample


def relaxed_step(
    rules: SlotRules,
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    slots: Tensor,
    local_pos: Tensor,
    temperature: Tensor,
) -> Tensor:
    """Return a step's logits with the rows of requests with a rule relaxed; the given ones stay as they are.

    Args:
        rules: of the requests, by slot.
        target_logits: processed, ``[rows, vocabulary]``.
        draft_logits: before temperature, ``[slots, num_speculative_tokens, vocabulary]``; None if deterministic.
        draft_sampled: the token fed in at each row, ``[rows]``; negative where it is padding.
        slots: of each row's request, ``[rows]``.
        local_pos: each row's place among those of its request, ``[rows]``.
        temperature: by slot.
    """
    drafted = torch.nn.functional.pad(draft_sampled[1:].long(), (0, 1), value=-1)
    same = torch.nn.functional.pad(slots[1:] == slots[:-1], (0, 1), value=False)
    codes = torch.where(same & (drafted >= 0), rules.codes[slots], NO_RULE)
    tokens = drafted.clamp(min=0).unsqueeze(1)
    result = target_logits.clone()
    one_logit = [rule for rule in rules.present if changes_one_logit(rule, draft_logits)]
    if one_logit:
        before, totals = target_logits.gather(1, tokens).squeeze(1), target_logits.logsumexp(-1)
        after = before
        for rule in one_logit:
            after = torch.where(codes == rules.code(rule), lifted_logits(rule, before, totals), after)
        result.scatter_(1, tokens, after.unsqueeze(1))
    if draft_logits is None or len(one_logit) == len(rules.present):
        return result
    width = min(target_logits.shape[1], draft_logits.shape[-1])  # the shorter vocabulary is what the sampler looks at
    step = local_pos.clamp(max=draft_logits.shape[1] - 1)
    warmth = temperature[slots].double()
    scaled = draft_logits[slots, step, :width].double() / torch.where(warmth > 0, warmth, 1.0).unsqueeze(1)
    chosen = codes >= 0
    probs = torch.where(chosen.unsqueeze(1), scaled.softmax(-1), 1 / width)  # rows of bonus tokens hold anything
    for rule in rules.present:
        if not changes_one_logit(rule, draft_logits):
            mask = (codes == rules.code(rule)).unsqueeze(1)
            result[:, :width] = torch.where(
                mask, relaxed_rows(rule, target_logits[:, :width], probs), result[:, :width]
            )
    return result
