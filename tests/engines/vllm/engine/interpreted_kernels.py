"""The V2 runner's own sampling kernels, behind the plug-in and under Triton's interpreter: results go to a file.

A process of its own, because Triton and vLLM settle what they run on when they are imported. Triton asks a driver for
the device; the one here answers for a CPU. The interpreter cannot call device libraries, so log1p is written out.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

REQUESTS, VOCABULARY = 160, 6
METERED, DEPTH, STEPS, BUDGET = 12, 2, 3, 0.4
METERED_RULES = ("cactus:delta=1", "clamped:width=1")
GREEDY, GREEDY_RULES = 48, ("relaxed_greedy:margin=0.6,per=remaining", "mars:ratio=0.2,logits=raw")
CASES = [(None, True), (None, False), ("cactus:delta=1", True), ("cactus:delta=1", False), ("clamped:width=1", False)]


class CpuDriver:
    """Says that there is a device, and that it is the CPU."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def __getattr__(self, name: str):
        return lambda *args, **kwargs: 0


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(VOCABULARY, generator=generator) * 1.5
    return target, target * 0.5 + torch.randn(VOCABULARY, generator=generator)


def states(slots: int) -> SimpleNamespace:
    """Return what the runner keeps of its slots: lengths, of empty prompts."""
    lengths = (SimpleNamespace(np=torch.zeros(slots, dtype=torch.int32).numpy()) for _ in range(2))
    prompt_len, prefill_len = lengths
    return SimpleNamespace(
        device=torch.device("cpu"), max_num_reqs=slots, prompt_len=prompt_len, prefill_len=prefill_len
    )


def sampled(
    rules, target, draft, slots, drafted, seed: int = 0, temperature: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a step of requests in these slots samples, whose tokens were drafted, ``[requests, depth]``.

    Temperatures are those of the slots, 1 if there are none.
    """
    import triton.language as tl
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils as kernels

    from cactus_decoding.engines.vllm import v2

    kernels.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1 + x))
    requests, depth = drafted.shape
    rows = requests * (depth + 1)
    rules.apply(target, SimpleNamespace(idx_mapping_np=slots.numpy()))
    return v2.with_relaxation(kernels.rejection_sample)(
        target.repeat(rows, 1),
        None if draft is None else draft.repeat(requests, depth, 1),
        torch.nn.functional.pad(drafted, (1, 0)).flatten().int(),
        torch.arange(0, rows + 1, depth + 1, dtype=torch.int32),
        torch.arange(rows),
        slots.int(),
        slots.repeat_interleave(depth + 1).int(),
        torch.arange(depth + 1, dtype=torch.int32).repeat(requests),
        torch.ones(requests) if temperature is None else temperature,
        torch.arange(requests) * 977 + 13 + seed,
        depth,
    )


def asking(asked: dict | None, temperature: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(temperature=temperature, extra_args=asked)


def run(rule: str | None, one_hot: bool) -> list[list[int]]:
    """Return drafted and emitted first tokens of requests, every other of them with the rule, and how many they got."""
    from cactus_decoding.engines.vllm.extra_args import ServerConfig
    from cactus_decoding.engines.vllm.v2 import SlotRules

    target, draft = problem()
    torch.manual_seed(5)
    slots = torch.randperm(REQUESTS)
    drafted = torch.multinomial(draft.softmax(-1), REQUESTS, replacement=True)
    if one_hot:
        drafted = target.argsort(descending=True)[1].expand(REQUESTS)
    rules = SlotRules(ServerConfig(), states(REQUESTS))
    for place, slot in enumerate(slots.tolist()):
        rules.add_request(slot, asking(None if rule is None or place % 2 else {"acceptance_rule": rule}))
    tokens, num_sampled = sampled(rules, target, None if one_hot else draft, slots, drafted.unsqueeze(1))
    return [drafted.tolist(), tokens[:, 0].tolist(), num_sampled.tolist()]


def run_greedy(rule: str, one_hot: bool) -> list[list]:
    """Return drafted and emitted tokens of requests: every other one samples, and of the rest half have the rule."""
    from cactus_decoding.engines.vllm.extra_args import ServerConfig
    from cactus_decoding.engines.vllm.v2 import SlotRules

    target, draft = problem()
    torch.manual_seed(11)
    slots, temperature = torch.randperm(GREEDY), torch.zeros(GREEDY)
    temperature[slots[1::2]] = 1.0
    rules = SlotRules(ServerConfig(), states(GREEDY))
    asked = [{"acceptance_rule": rule}, {"acceptance_rule": "cactus:delta=1"}, None, None]
    for place, slot in enumerate(slots.tolist()):
        rules.add_request(slot, asking(asked[place % 4], temperature[slot].item()))
    drafted = torch.randint(VOCABULARY, (GREEDY, DEPTH))
    tokens, lengths = sampled(rules, target, None if one_hot else draft, slots, drafted, temperature=temperature)
    return [drafted.tolist(), [own[:length] for own, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]]


def run_metered(rule: str) -> dict[str, list]:
    """Return what requests with a budget spent in a few steps on one problem, and what was drafted and emitted.

    Every other request has no budget. After the first step one of them leaves and comes back with tokens.
    """
    from prometheus_client import REGISTRY

    from cactus_decoding import parse_rule
    from cactus_decoding.core.counters import COUNTERS, RuleCounters
    from cactus_decoding.engines.vllm.counters import DeviceCounters
    from cactus_decoding.engines.vllm.extra_args import ServerConfig
    from cactus_decoding.engines.vllm.v2 import SlotRules

    target, draft = problem()
    torch.manual_seed(7)
    slots = torch.randperm(METERED)
    rules = SlotRules(ServerConfig(), kept := states(METERED), DeviceCounters(RuleCounters(), 1.0, torch.device("cpu")))
    params = [asking({"acceptance_rule": rule} | ({} if place % 2 else {"budget": BUDGET})) for place in range(METERED)]
    for slot, one in zip(slots.tolist(), params, strict=True):
        rules.add_request(slot, one)
    got = []
    for step in range(STEPS):
        if step == 1:
            kept.prefill_len.np[int(slots[0])] = 1  # longer than its prompt
            rules.add_request(int(slots[0]), asking(params[0].extra_args))
        drafted = torch.multinomial(draft.softmax(-1), METERED * DEPTH, replacement=True).view(METERED, DEPTH)
        got.append(sampled(rules, target, draft, slots, drafted, 10_007 * step)[1].tolist())
    rules.counters.flush()
    label = {"rule": str(parse_rule(rule))}
    return {
        "got": got,
        "spent": rules.meter.spent[rules.meter_slots[slots]].tolist(),
        "counted": {name: REGISTRY.get_sample_value(f"{name}_total", label) for name in COUNTERS},
    }


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    from triton.backends import backends
    from triton.runtime import driver

    backends["cpu"] = SimpleNamespace(driver=CpuDriver, compiler=None)
    driver.set_active(CpuDriver())
    laws = [run(rule, one_hot) for rule, one_hot in CASES]
    results = {
        "laws": laws,
        "metered": [run_metered(rule) for rule in METERED_RULES],
        "greedy": [run_greedy(rule, one_hot) for rule in GREEDY_RULES for one_hot in (True, False)],
    }
    Path(sys.argv[1]).write_text(json.dumps(results))
