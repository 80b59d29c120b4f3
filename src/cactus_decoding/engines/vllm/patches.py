"""What the plug-in relies on in vLLM's sources, by version; how another version differs; repairs of its CPU engine.

Sources are parsed, not imported, so that vLLM need not be able to run.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_STOCK = "_cactus_decoding_stock"  # attribute of a module or class: the originals of what was replaced there, by name


def replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a function of a module or class by ``wrap(stock)``, once, also where vLLM imported it by name.

    What was replaced is remembered of the owner and not of the function, which others may wrap in their turn.
    """
    if is_replaced(owner, name):
        return
    stock = getattr(owner, name)
    wrapped = functools.wraps(stock)(wrap(stock))
    modules = [one for one in list(sys.modules.values()) if getattr(one, "__name__", "").startswith("vllm.")]
    for each in (owner, *(module for module in modules if vars(module).get(name) is stock)):
        setattr(each, _STOCK, vars(each).get(_STOCK, {}) | {name: stock})
        setattr(each, name, wrapped)


def stock_of(owner: Any, name: str) -> Any:
    """Return the original of a function that was replaced; None where none was."""
    return vars(owner).get(_STOCK, {}).get(name)


def is_replaced(owner: Any, name: str) -> bool:
    """Return whether a function was replaced, whatever others have made of it since, and its original not put back."""
    stock = stock_of(owner, name)
    return stock is not None and getattr(owner, name) is not stock


V1_SAMPLER = "v1/sample/rejection_sampler.py::rejection_sample"
V2_SAMPLER = "v1/worker/gpu/spec_decode/rejection_sampler_utils.py::rejection_sample"
_FLY = ("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k")
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "v1/core/sched/scheduler.py::Scheduler.add_request": ("self", "request"),
    "v1/core/sched/scheduler.py::Scheduler.schedule": ("self", "throttle_prefills"),
    "v1/core/sched/scheduler.py::Scheduler.update_draft_token_ids": ("self", "draft_token_ids"),
    "v1/core/sched/scheduler.py::Scheduler.update_from_output": ("self", "scheduler_output", "model_runner_output"),
    "v1/engine/input_processor.py::InputProcessor._build_logits_processors_params_validator": ("self",),
    "v1/engine/output_processor.py::OutputProcessor.process_outputs": (
        "self", "engine_core_outputs", "engine_core_timestamp", "iteration_stats", "weight_version",
    ),
    "v1/metrics/stats.py::RequestSpecDecodeMetrics.new": ("cls", "num_spec_tokens"),
    "v1/metrics/stats.py::RequestSpecDecodeMetrics.observe": ("self", "num_draft_tokens", "num_accepted", "detailed"),
    "v1/metrics/stats.py::RequestSpecDecodeMetrics.to_dict": ("self",),
    "v1/sample/logits_processor/__init__.py::build_logitsprocs": (
        "vllm_config", "device", "is_pin_memory", "is_pooling_model", "custom_logitsprocs",
    ),
    "v1/sample/logits_processor/builtin.py::process_dict_updates": ("req_entries", "batch_update", "new_state"),
    "v1/sample/rejection_sampler.py::expand_batch_to_tokens": (
        "x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to",
    ),
    V1_SAMPLER: (
        "draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs", "target_logits",
        "bonus_token_ids", "sampling_metadata", "synthetic_mode", "synthetic_conditional_rates", "use_fp64_gumbel",
    ),
    "v1/worker/gpu_input_batch.py::InputBatch._make_sampling_metadata": ("self",),
    "v1/spec_decode/llm_base_proposer.py::SpecDecodeBaseProposer.build_model_inputs_first_pass": (
        "self", "num_tokens", "num_input_tokens", "mm_embed_inputs",
    ),
    "v1/spec_decode/llm_base_proposer.py::SpecDecodeBaseProposer.build_per_group_and_layer_attn_metadata": (
        "self", "common_attn_metadata", "draft_index",
    ),
    "v1/spec_decode/llm_base_proposer.py::SpecDecodeBaseProposer._determine_batch_execution_and_padding": (
        "self", "num_tokens", "use_cudagraphs",
    ),
    "v1/spec_decode/llm_base_proposer.py::SpecDecodeBaseProposer._get_slot_mapping": (
        "self", "num_tokens", "slot_mapping",
    ),
    "v1/spec_decode/llm_base_proposer.py::SpecDecodeBaseProposer._set_positions": ("self", "num_tokens", "positions"),
    "v1/structured_output/__init__.py::StructuredOutputManager.grammar_bitmask": (
        "self", "requests", "structured_output_request_ids", "scheduled_spec_decode_tokens",
    ),
    "v1/worker/gpu_model_runner.py::GPUModelRunner._copy_draft_token_ids_to_cpu": (
        "self", "scheduler_output", "zeros_only",
    ),
    "v1/worker/gpu_model_runner.py::GPUModelRunner.propose_draft_token_ids": (
        "self", "scheduler_output", "sampled_token_ids", "sampling_metadata", "hidden_states", "sample_hidden_states",
        "aux_hidden_states", "spec_decode_metadata", "common_attn_metadata", "slot_mappings",
    ),
    "v1/worker/gpu_model_runner.py::GPUModelRunner.sample_tokens": ("self", "grammar_output"),
    "v1/worker/gpu_worker.py::Worker.sample_tokens": ("self", "grammar_output"),
    "v1/worker/gpu/sample/logits_processor/interface.py::LogitsProcessor.add_request": (
        "self", "req_idx", "sampling_params",
    ),
    "v1/worker/gpu/sample/logits_processor/loader.py::build_custom_logits_processors": (
        "vllm_config", "req_states", "is_pooling_model", "custom_logitsprocs",
    ),
    V2_SAMPLER: (
        "target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos", "idx_mapping",
        "expanded_idx_mapping", "expanded_local_pos", "temperature", "seed", "num_speculative_steps",
        "synthetic_conditional_rates", "use_fp64", "use_block_verification", "contexts", "watermarking",
        "watermarking_skip_mask", "watermark_key",
    ),
}  # fmt: skip
"""Arguments of functions that are wrapped or called, all of them and in their order, in vLLM 0.32."""
_ATTRIBUTES: dict[str, frozenset[str]] = {
    "config/reasoning.py::ReasoningConfig": frozenset({"natural_reasoning_end_token_ids", "reasoning_start_token_ids"}),
    "config/speculative.py::SpeculativeConfig": frozenset({
        "method", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting",
        "rejection_sample_method",
    }),
    "config/vllm.py::VllmConfig": frozenset({
        "additional_config", "compilation_config", "model_config", "parallel_config", "reasoning_config",
        "scheduler_config", "speculative_config",
        "watermark_config",
    }),
    "v1/attention/backend.py::CommonAttentionMetadata": frozenset({
        "block_table_tensor", "max_query_len", "max_seq_len", "num_actual_tokens", "num_reqs", "query_start_loc",
        "query_start_loc_cpu", "replace", "seq_lens", "slot_mapping",
    }),
    "v1/core/sched/output.py::SchedulerOutput": frozenset({"num_scheduled_tokens", "num_spec_tokens_to_schedule"}),
    "v1/core/sched/scheduler.py::Scheduler": frozenset({
        "dynamic_sd_lookup", "max_num_running_reqs", "num_spec_tokens", "requests", "running", "use_v2_model_runner",
        "vllm_config",
    }),
    "v1/engine/__init__.py::EngineCoreOutput": frozenset({
        "finish_reason", "kv_transfer_params", "request_id", "spec_decode_metrics",
    }),
    "v1/metrics/stats.py::RequestSpecDecodeMetrics": frozenset({"per_step_accepted", "per_step_drafted"}),
    "v1/outputs.py::ModelRunnerOutput": frozenset({"req_ids"}),
    "v1/request.py::Request": frozenset({
        "is_finished", "is_prefill_chunk", "request_id", "sampling_params", "spec_decode_metrics", "spec_token_ids",
        "use_structured_output",
    }),
    "v1/sample/metadata.py::SamplingMetadata": frozenset({"logitsprocs"}),
    "v1/spec_decode/llm_base_proposer.py::SpecDecodeBaseProposer": frozenset({
        "block_size", "draft_attn_groups", "input_ids", "max_num_tokens", "model", "supports_mm_inputs", "vllm_config",
    }),
    "v1/worker/gpu_model_runner.py::AsyncGPUModelRunnerOutput": frozenset({"_model_runner_output"}),
    "v1/worker/gpu/async_utils.py::AsyncOutput": frozenset({"model_runner_output"}),
    "v1/worker/gpu_input_batch.py::InputBatch": frozenset({
        "logitsprocs", "logitsprocs_need_output_token_ids", "req_id_to_index", "token_ids_cpu_tensor",
    }),
    "v1/worker/gpu_model_runner.py::GPUModelRunner": frozenset({
        "_draft_prob_req_ids", "_draft_probs", "drafter", "kv_cache_config", "use_async_scheduling",
    }),
    "v1/worker/gpu/sample/sampler.py::Sampler": frozenset({"logits_processors"}),
    "v1/worker/gpu/states.py::RequestState": frozenset({
        "all_token_ids", "device", "max_num_reqs", "prefill_len", "prompt_len", "req_id_to_index", "total_len",
    }),
}  # fmt: skip
"""Attributes of objects that are read or written."""
RECORDED: dict[str, dict[str, tuple[str, ...] | frozenset[str]]] = {
    "0.32": _ARGUMENTS | _ATTRIBUTES,
    "0.33": _ARGUMENTS | _ATTRIBUTES | {place: _ARGUMENTS[place] + _FLY for place in (V1_SAMPLER, V2_SAMPLER)},
}
"""By version: what the plug-in was checked against, by path in the package and qualified name."""


def differences(package: Path, version: str) -> list[str]:
    """Return how the sources of a vLLM differ from a recorded version in what the plug-in relies on."""
    found = (_difference(package, place, expected) for place, expected in RECORDED[version].items())
    return [difference for difference in found if difference]


def _difference(package: Path, place: str, expected: tuple[str, ...] | frozenset[str]) -> str:
    path, _, name = place.partition("::")
    source = package / path
    node = definition(ast.parse(source.read_text()), name.split(".")) if source.is_file() else None
    if node is None:
        return f"{place} is not there"
    if isinstance(expected, frozenset):
        missing = expected - set(_attributes(node))
        return f"{place} has no {', '.join(sorted(missing))}" if missing else ""
    found = argument_names(node)
    return "" if found == expected else f"{place} takes {found}, not {expected}"


def definition(node: ast.AST, names: list[str]) -> ast.AST | None:
    """Return a function or class of a module, which may be nested; None if it is not there."""
    for name in names:
        here = ast.walk(node) if isinstance(node, ast.Module) else ast.iter_child_nodes(node)
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = next((one for one in here if isinstance(one, kinds) and one.name == name), None)
        if found is None:
            return None
        node = found
    return node


def argument_names(node: ast.AST | None) -> tuple[str, ...]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ()
    given = node.args
    return tuple(one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def _attributes(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef):
            yield one.name
        elif isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            yield one.attr
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id


def closest_version(version: str) -> str:
    """Return the recorded version to compare with: the same minor version, or else the newest one."""
    return next((known for known in RECORDED if f"{version}.".startswith(f"{known}.")), [*RECORDED][-1])


# --- repairs of three faults of vLLM 0.32 on the CPU: one samples from wrong distributions, two end the server ---


def repair_generators(device: torch.device) -> None:
    """Keep seeded requests' generators out of steps that read a part of a prompt; on the CPU only.

    vLLM discards what such a step draws and sets the generator back by its offset, which generators on the CPU do not
    have. The exception ends the engine, and with it every request. Without a generator nothing is set back.
    """
    if torch.device(device).type != "cpu":
        return
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    replace(CPUModelRunner, "sample_tokens", with_generators_withheld)


def with_generators_withheld(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Withhold the generators of requests whose draws the step discards.

    Those requests draw from the common generator instead. Their own begins at the first token that counts, as on a GPU,
    where vLLM sets it back.
    """

    def sample_tokens(runner: Any, *args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        discarded = np.flatnonzero(runner.discard_request_mask.np[: batch.num_reqs]).tolist()
        withheld = {index: batch.generators.pop(index) for index in discarded if index in batch.generators}
        try:
            return stock(runner, *args, **kwargs)
        finally:
            batch.generators.update(withheld)

    return sample_tokens


def repair_expansion(rejection_sampler: Any, device: torch.device) -> None:
    """Replace `expand_batch_to_tokens` where it does not work.

    vLLM 0.32 on the CPU first converts the arguments of the kernel to other types, so that what the kernel writes is
    lost: temperatures, top-k and top-p of speculated positions are then uninitialized memory (vLLM issue 55005). The
    function is tried out, so that a version without the fault keeps its own.
    """
    if torch.device(device).type != "cpu" or is_replaced(rejection_sampler, "expand_batch_to_tokens"):
        return
    for values in ([0.25, 1.5], [2.5, 0.75]):
        given, ends = torch.tensor(values), torch.tensor([1, 3], dtype=torch.int32)
        expected = torch.tensor([values[0], values[1], values[1]])
        if not torch.equal(rejection_sampler.expand_batch_to_tokens(given, ends, 3), expected):
            replace(rejection_sampler, "expand_batch_to_tokens", lambda stock: expand_batch_to_tokens)
            return


def repair_empty_steps(rejection_sampler: Any, device: torch.device) -> None:
    """Skip top-k and top-p where no request of a step has a proposal, as at the end of ``max_tokens``; on the CPU only.

    vLLM takes the largest top-k of the speculated positions, which fails where there is none, and ends the engine.
    """
    if torch.device(device).type == "cpu":
        replace(
            rejection_sampler,
            "apply_sampling_constraints",
            lambda stock: lambda logits, *args, **kwargs: stock(logits, *args, **kwargs) if len(logits) else logits,
        )


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).to(x.dtype).repeat_interleave(counts, output_size=num_tokens)
