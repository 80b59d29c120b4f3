"""The patch of V1's drafting: the draft does not run where nobody wants a proposal, and reads what it missed later.

Where a step wants no proposals, stock vLLM runs the draft all the same, once, so that its keys and values stay
complete. With a draft of a third of the target's size that is a quarter of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from cactus_decoding.engines.vllm.patches import replace


def install() -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    replace(GPUModelRunner, "propose_draft_token_ids", with_rests)


class Span(NamedTuple):
    """Tokens of a request, from ``begin`` up to ``end``, that the draft has to read."""

    row: int  # of the request in the batch
    begin: int
    end: int


def with_rests(stock: Callable[..., Any]) -> Callable[..., Any]:
    known: WeakKeyDictionary[Any, MissedTokens] = WeakKeyDictionary()

    def propose_draft_token_ids(
        runner: Any,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Tensor,
        sample_hidden_states: Tensor,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> Any:
        propose = partial(
            stock, runner, scheduler_output, sampled_token_ids, sampling_metadata, hidden_states, sample_hidden_states,
            aux_hidden_states, spec_decode_metadata, common_attn_metadata, slot_mappings,
        )  # fmt: skip
        if not may_rest(runner):
            return propose()
        step = common_attn_metadata
        if (missed := known.get(runner)) is None:
            missed = known[runner] = MissedTokens(
                runner.kv_cache_config.num_blocks * runner.drafter.block_size, runner.drafter.block_size, runner.device
            )
        own = step.slot_mapping[: step.num_actual_tokens].long()
        if scheduler_output.num_spec_tokens_to_schedule == 0:
            missed.add(own)
            runner._draft_probs = runner._draft_prob_req_ids = None
            return torch.empty(step.num_reqs, 0, dtype=torch.int64, device=runner.device)
        if missed.some:
            before = step.seq_lens - step.query_start_loc.diff()
            for spans in portions(missed.spans(step.block_table_tensor, before), runner.drafter.max_num_tokens):
                read(runner, step, spans, missed)
            missed.remove(own)
        return propose()

    return propose_draft_token_ids


def may_rest(runner: Any) -> bool:
    """Whether the draft is a model of its own that keeps in step with nobody else.

    Other drafts need the target's hidden states of every step. Where vLLM schedules ahead, it takes the tokens that it
    feeds in next from what prepares the draft's pass.
    """
    parallel = runner.parallel_config
    return bool(
        runner.speculative_config.uses_draft_model()
        and not runner.use_async_scheduling
        and not runner.speculative_config.disable_padded_drafter_batch
        and not runner.drafter.supports_mm_inputs
        and parallel.data_parallel_size == parallel.pipeline_parallel_size == 1
    )


class MissedTokens:
    """Which slots of the cache hold tokens that the target has read and the draft has not.

    Slots are told apart, and not requests, because the blocks that a request leaves may serve another one that begins
    with the same text.
    """

    def __init__(self, slots: int, block_size: int, device: torch.device) -> None:
        self._missed = torch.zeros(slots, dtype=torch.bool, device=device)
        self._block_size = block_size
        self.some = False

    def add(self, slots: Tensor) -> None:
        self._missed[slots] = True
        self.some = True

    def remove(self, slots: Tensor) -> None:
        self._missed[slots] = False

    def slots(self, blocks: Tensor, begin: int, end: int) -> Tensor:
        """Return the slots of the positions from ``begin`` up to ``end`` of a request with these blocks."""
        positions = torch.arange(begin, end, device=blocks.device)
        return blocks[positions // self._block_size].long() * self._block_size + positions % self._block_size

    def spans(self, block_table: Tensor, lengths: Tensor) -> list[Span]:
        """Return what the draft lacks of the first tokens of each request, ``lengths`` of them.

        A span ends where the request's tokens end, because later keys and values depend on the earlier ones.
        """
        if not lengths.any():
            return []
        blocks = block_table[:, : -(int(lengths.max()) // -self._block_size)].long()
        missed = self._missed.view(-1, self._block_size)[blocks].flatten(1)
        missed &= torch.arange(missed.shape[1], device=missed.device) < lengths.unsqueeze(1)
        rows = missed.any(1).nonzero().squeeze(1)
        firsts = missed[rows].int().argmax(1)
        return [Span(*span) for span in zip(rows.tolist(), firsts.tolist(), lengths[rows].tolist(), strict=True)]


def portions(spans: Sequence[Span], most: int) -> Iterator[list[Span]]:
    """Divide spans into passes of at most ``most`` tokens, in order.

    Example:
        >>> [[tuple(span) for span in each] for each in portions([Span(0, 2, 5), Span(3, 0, 4)], 4)]
        [[(0, 2, 5), (3, 0, 1)], [(3, 1, 4)]]
    """
    here: list[Span] = []
    room = most
    for row, begin, end in spans:
        while begin < end:
            part = Span(row, begin, min(end, begin + room))
            here.append(part)
            room, begin = room - (part.end - part.begin), part.end
            if not room:
                yield here
                here, room = [], most
    if here:
        yield here


def read(runner: Any, step: Any, spans: Sequence[Span], missed: MissedTokens) -> None:
    """Let the draft read tokens that it missed, as it reads those of a step; what it would say next is not asked."""
    from vllm.forward_context import set_forward_context

    drafter, device = runner.drafter, runner.device
    rows = torch.tensor([span.row for span in spans], device=device)
    table = step.block_table_tensor[rows]
    slots = torch.cat([missed.slots(blocks, *span[1:]) for blocks, span in zip(table, spans, strict=True)])
    texts = runner.input_batch.token_ids_cpu_tensor
    tokens = torch.cat([texts[row, begin:end] for row, begin, end in spans]).to(device)
    if drafter.use_heterogeneous_vocab:
        tokens = drafter.vocab_mapping.map_target_to_draft_ids(tokens)
    ends = [0]
    for span in spans:
        ends.append(ends[-1] + span.end - span.begin)
    count, starts = ends[-1], torch.tensor(ends, dtype=torch.int32)
    lengths = torch.tensor([span.end for span in spans], dtype=torch.int32)
    positions = torch.cat([torch.arange(span.begin, span.end) for span in spans]).to(device)
    own = step.replace(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=lengths.to(device),
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(spans),
        num_actual_tokens=count,
        max_query_len=max(end - begin for begin, end in pairwise(ends)),
        max_seq_len=max(span.end for span in spans),
        block_table_tensor=table,
        slot_mapping=slots.to(step.slot_mapping.dtype),
        positions=None,
        is_prefilling=None,
        req_idx=None,
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )
    _, by_layer = drafter.build_per_group_and_layer_attn_metadata(own)
    mode, padded, across = drafter._determine_batch_execution_and_padding(count)
    drafter.input_ids[:count] = tokens
    drafter._set_positions(count, positions)
    inputs, size = drafter.build_model_inputs_first_pass(count, padded, None)
    with set_forward_context(
        by_layer,
        drafter.vllm_config,
        num_tokens=padded,
        num_tokens_across_dp=across,
        cudagraph_runtime_mode=mode,
        slot_mapping=drafter._get_slot_mapping(size, own.slot_mapping),
    ):
        drafter.model(**inputs)
    missed.remove(slots)
