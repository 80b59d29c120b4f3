"""The patches that carry a request's report from the worker to its response: what its rule cost and gained.

The worker adds its counts to its output for the scheduler. The scheduler adds acceptance by position and puts both
into ``kv_transfer_params``, the one field of its messages that takes anything. The front end moves them beside vLLM's
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from cactus_decoding.core.counters import REPORT_KEY, report_of
from cactus_decoding.engines.vllm.extra_args import asks_for_report
from cactus_decoding.engines.vllm.patches import replace as replace_function
from cactus_decoding.engines.vllm.state import RequestRules

ATTRIBUTE = "cactus_decoding_counts"  # of vLLM's `ModelRunnerOutput`: counts by request, pickled with it


def install() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.output_processor import OutputProcessor

    replace_function(Scheduler, "add_request", with_positions)
    replace_function(Scheduler, "update_from_output", with_sent_reports)
    replace_function(OutputProcessor, "process_outputs", with_received_reports)


def install_worker() -> None:
    from vllm.v1.worker.gpu_worker import Worker

    replace_function(Worker, "sample_tokens", with_counts)


def with_counts(stock: Callable[..., Any]) -> Callable[..., Any]:
    def sample_tokens(worker: Any, *args: Any, **kwargs: Any) -> Any:
        output = stock(worker, *args, **kwargs)
        rules, indices = rules_of(worker.model_runner)
        if rules is not None and (counted := rules.counted()):
            handed_on = output  # or what it becomes once the worker has copied it from its device
            for name in ("_model_runner_output", "model_runner_output"):
                handed_on = getattr(handed_on, name, handed_on)
            places = {request: indices.get(request) for request in getattr(handed_on, "req_ids", ())}
            if here := {request: counted[place] for request, place in places.items() if place in counted}:
                setattr(handed_on, ATTRIBUTE, here)
        return output

    return sample_tokens


def rules_of(runner: Any) -> tuple[RequestRules | None, dict[str, int]]:
    if (states := getattr(runner, "req_states", None)) is not None:
        processors, indices = getattr(runner.sampler, "logits_processors", ()), states.req_id_to_index
    else:
        processors, indices = runner.input_batch.logitsprocs.argmax_invariant, runner.input_batch.req_id_to_index
    return next((one for one in processors if isinstance(one, RequestRules)), None), indices


@dataclass
class CountedPositions:
    """vLLM's metrics of a request, with proposals counted by position; the scheduler adds to it."""

    metrics: Any  # vLLM's own
    drafted: list[int]  # how often each position of a step had a proposal, ``[num_speculative_tokens]``
    accepted: list[int]  # how often that was accepted

    def observe(self, num_draft_tokens: int, num_accepted: int, **kwargs: Any) -> None:
        self.metrics.observe(num_draft_tokens=num_draft_tokens, num_accepted=num_accepted, **kwargs)
        for counts, number in ((self.drafted, num_draft_tokens), (self.accepted, num_accepted)):
            for position in range(number):
                counts[position] += 1


def with_positions(stock: Callable[..., None]) -> Callable[..., None]:
    def add_request(scheduler: Any, request: Any) -> None:
        request.sampling_params = copy(request.sampling_params)  # the answers of one request may share theirs
        stock(scheduler, request)
        if not scheduler.num_spec_tokens or not _asks(request.sampling_params):
            return
        from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

        length = scheduler.num_spec_tokens
        metrics = request.spec_decode_metrics or RequestSpecDecodeMetrics.new(length)
        request.spec_decode_metrics = CountedPositions(metrics, [0] * length, [0] * length)

    return add_request


def _asks(params: Any) -> bool:
    """Whether a request asks for a report; a bad value, which the front end has refused, must not end a server."""
    try:
        return params is not None and asks_for_report(params.extra_args)
    except TypeError:
        return False


def with_sent_reports(stock: Callable[..., dict[int, Any]]) -> Callable[..., dict[int, Any]]:
    def update_from_output(scheduler: Any, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        requests = (scheduler.requests.get(name) for name in scheduler_output.num_scheduled_tokens)
        counted = {
            request.request_id: request.spec_decode_metrics
            for request in requests
            if request is not None and isinstance(request.spec_decode_metrics, CountedPositions)
        }
        sent = stock(scheduler, scheduler_output, model_runner_output)
        if counted:
            ours = getattr(model_runner_output, ATTRIBUTE, {})
            for outputs in sent.values():
                for output in outputs.outputs:
                    if output.request_id in counted:
                        _add_report(output, counted[output.request_id], ours.get(output.request_id))
        return sent

    return update_from_output


def _add_report(output: Any, positions: CountedPositions, counts: Sequence[float] | None) -> None:
    report = report_of(counts, positions.drafted, positions.accepted)
    output.kv_transfer_params = {**(output.kv_transfer_params or {}), REPORT_KEY: report}
    metrics = positions.metrics
    if output.finish_reason is None:  # what is listed step by step grows, and is sent once
        metrics = replace(metrics, per_step_accepted=[], per_step_drafted=[])
    output.spec_decode_metrics = metrics


@dataclass(frozen=True)
class ReportedMetrics:
    metrics: Any  # vLLM's own
    report: dict[str, Any]  # as `report_of` returns it

    def to_dict(self) -> dict[str, Any]:
        """Return what the response holds under ``metrics.speculative_decoding``."""
        return {**self.metrics.to_dict(), REPORT_KEY: self.report}


def with_received_reports(stock: Callable[..., Any]) -> Callable[..., Any]:
    def process_outputs(processor: Any, engine_core_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        for output in engine_core_outputs:
            if output.kv_transfer_params and REPORT_KEY in output.kv_transfer_params:
                others = dict(output.kv_transfer_params)
                output.spec_decode_metrics = ReportedMetrics(output.spec_decode_metrics, others.pop(REPORT_KEY))
                output.kv_transfer_params = others or None
        return stock(processor, engine_core_outputs, *args, **kwargs)

    return process_outputs
