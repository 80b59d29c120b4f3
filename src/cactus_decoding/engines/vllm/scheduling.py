"""The patches of vLLM's scheduler: how many proposals the target verifies, and which of a constrained request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cactus_decoding.engines.vllm.extra_args import PROPOSALS_KEY
from cactus_decoding.engines.vllm.patches import replace

FORBIDDEN = "cactus_decoding_forbidden"  # of vLLM's `Request`: the place of the proposal that its grammar forbids
FILLER = -1  # what vLLM schedules where nothing is proposed


def install() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    replace(Scheduler, "schedule", with_fewer_proposals)
    replace(Scheduler, "update_draft_token_ids", with_rejected_proposals)
    replace(StructuredOutputManager, "grammar_bitmask", with_forbidden_masked)


def with_fewer_proposals(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Drop the proposals that a request does not want verified, before the scheduler makes room for them.

    How many are kept is known before they are drawn, so what is kept has the draft's distribution. Where all requests
    of a step want fewer proposals than the server's number, the draft makes fewer, if it can.
    """

    def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        most = scheduler.num_spec_tokens
        if not most:
            return stock(scheduler, *args, **kwargs)
        for request in scheduler.running:
            limit = proposals_of(request, most)
            if len(request.spec_token_ids) > limit:
                request.spec_token_ids = request.spec_token_ids[:limit]
        if not scheduler.use_v2_model_runner:
            keep_first_steps_short(scheduler, most)
        output = stock(scheduler, *args, **kwargs)
        if output.num_scheduled_tokens and may_draft_fewer(scheduler):
            wanted = max(proposals_of(scheduler.requests[name], most) for name in output.num_scheduled_tokens)
            output.num_spec_tokens_to_schedule = min(output.num_spec_tokens_to_schedule, wanted)
        return output

    return schedule


def proposals_of(request: Any, most: int) -> int:
    """Return how many proposals of a request are verified; a bad value, refused by the front end, is no limit."""
    asked = getattr(request.sampling_params, "extra_args", None) or {}
    value = asked.get(PROPOSALS_KEY)
    return min(value, most) if isinstance(value, int) and value >= 0 else most


def keep_first_steps_short(scheduler: Any, most: int) -> None:
    """Keep vLLM from filling a request's first step with proposals that no draft made.

    It does so to keep steps alike, unless numbers go by batch size; here they do, and are all the same. The fillers
    would be counted as proposals, and take the draft's probabilities from all other requests of the step.
    """
    if scheduler.dynamic_sd_lookup is None:
        scheduler.dynamic_sd_lookup = [most] * (scheduler.max_num_running_reqs + 1)


def may_draft_fewer(scheduler: Any) -> bool:
    """Whether the draft can make fewer proposals in a step than the server's number.

    Other drafts insist on that number, data-parallel workers must agree on one, and captured graphs are for one.
    """
    config = scheduler.vllm_config
    speculation, graphs = config.speculative_config, config.compilation_config.cudagraph_mode
    return bool(
        not scheduler.use_v2_model_runner
        and speculation.method in ("ngram", "draft_model", "eagle", "eagle3", "mtp")
        and not speculation.parallel_drafting
        and config.parallel_config.data_parallel_size == 1
        and (speculation.num_speculative_tokens_per_batch_size or not (graphs and graphs.has_full_cudagraphs()))
    )


def with_rejected_proposals(stock: Callable[..., None]) -> Callable[..., None]:
    """Let the first proposal that a grammar forbids be rejected, where vLLM would leave it out.

    A position whose proposal is left out draws from the target's q, as if nothing had been proposed there. But whether
    it is left out depends on what the draft drew. So it must draw in proportion to :math:`(q - p)^+`, what is left of q
    after the draft's p. The grammar's mask makes q(n) = 0 of a forbidden n, so that verification does exactly that.
    """

    def update_draft_token_ids(scheduler: Any, draft_token_ids: Any) -> None:
        stock(scheduler, draft_token_ids)
        for name, proposed in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True):
            request = scheduler.requests.get(name)
            if request is None or request.is_finished() or not request.use_structured_output:
                continue
            kept = len(request.spec_token_ids)
            forbids = not request.is_prefill_chunk and kept < len(proposed) and proposed[kept] >= 0
            if forbids:
                request.spec_token_ids = [*request.spec_token_ids, proposed[kept]]
            setattr(request, FORBIDDEN, kept if forbids else None)

    return update_draft_token_ids


def with_forbidden_masked(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Show a grammar no proposal that it forbids, which some take for an error, but a filler in its place."""

    def grammar_bitmask(manager: Any, requests: Any, names: Any, scheduled: Mapping[str, list[int]]) -> Any:
        places = {name: getattr(requests[name], FORBIDDEN, None) for name in names}
        shown = {
            name: tokens if (place := places.get(name)) is None else [*tokens[:place], *[FILLER] * len(tokens[place:])]
            for name, tokens in scheduled.items()
        }
        return stock(manager, requests, names, shown)

    return grammar_bitmask
