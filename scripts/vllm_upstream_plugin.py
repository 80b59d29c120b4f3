"""What `vllm_upstream_tests.py` loads into pytest: the plug-in in one of its modes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

from cactus_decoding.engines.vllm import v1
from cactus_decoding.engines.vllm.extra_args import ServerConfig
from cactus_decoding.engines.vllm.patches import repair_expansion
from cactus_decoding.engines.vllm.plugin import register

MODE = os.environ["UPSTREAM_MODE"]
CPU = torch.device("cpu")
SERVER = ServerConfig()

current_platform.register_triton_kernel_overrides()
repair_expansion(rejection_sampler, CPU)
if MODE != "repaired":
    register()
    v1.replace(rejection_sampler, "rejection_sample", v1.with_relaxation)


def every_request_at_delta_0(metadata) -> v1.BatchRules:
    """Return a batch in which each request that is not greedy has the rule, whatever the test has set up."""
    rules = v1.BatchRules(SERVER, CPU, max_num_requests=1)
    temperatures = [] if metadata.temperature is None else metadata.temperature.tolist()
    for index, temperature in enumerate(temperatures):
        asked = {"acceptance_rule": "cactus:delta=0"}
        entry = rules.admit(SimpleNamespace(temperature=temperature, extra_args=asked), begun=False)
        if entry is not None and not metadata.all_greedy:
            rules.requests[index] = entry
    return rules


if MODE == "delta-0":
    v1.batch_rules = every_request_at_delta_0
