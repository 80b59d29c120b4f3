"""The repairs of vLLM on the CPU: where it is broken, and only there."""

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from support.tables import all_of

from cactus_decoding.engines.vllm.patches import (
    is_replaced,
    repair_empty_steps,
    repair_expansion,
    repair_generators,
    replace,
    stock_of,
    with_generators_withheld,
)


def broken(x: torch.Tensor, ends: torch.Tensor, num_tokens: int, *_: int) -> torch.Tensor:
    return torch.full((num_tokens,), 0.25)  # whatever the memory held


def sound(x: torch.Tensor, ends: torch.Tensor, num_tokens: int, *_: int) -> torch.Tensor:
    return x.repeat_interleave(torch.tensor([ends[0], *ends.diff()]))


@all_of("function, device, replaced", [(broken, "cpu", True), (broken, "cuda", False), (sound, "cpu", False)])
def test_the_expansion_is_replaced_where_it_fails(function, device: str, replaced: bool) -> None:
    sampler = SimpleNamespace(expand_batch_to_tokens=function)
    for _ in range(2):
        repair_expansion(sampler, torch.device(device))
        assert is_replaced(sampler, "expand_batch_to_tokens") == replaced
    if replaced:
        values, ends = torch.tensor([0.0, 0.5]), torch.tensor([2, 3])
        assert sampler.expand_batch_to_tokens(values, ends, 3, 0, 1).tolist() == [1.0, 1.0, 0.5]


@all_of("device, fails", [("cpu", False), ("cuda", True)])
def test_a_step_without_proposals_is_not_cut(device: str, fails: bool) -> None:
    sampler = SimpleNamespace(apply_sampling_constraints=lambda logits, k: logits[: k.max()])
    repair_empty_steps(sampler, torch.device(device))
    assert len(sampler.apply_sampling_constraints(torch.zeros(3, 5), torch.tensor([2, 1, 1]))) == 2
    with pytest.raises(RuntimeError, match="max") if fails else nullcontext():
        assert sampler.apply_sampling_constraints(torch.zeros(0, 5), torch.tensor([])).shape == (0, 5)


class Sampler:
    def sample(self, tokens: int) -> int:
        return tokens


def plus_one(stock):
    return lambda *args: stock(*args) + 1


def test_what_others_wrap_between_two_engines_is_not_replaced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine of a process asks for the patches; a wrapper need not say what it wraps."""
    module, importer = ModuleType("vllm.sampler"), ModuleType("vllm.importer")
    module.sample = importer.sample = stock = lambda tokens: tokens
    owner = type("Own", (Sampler,), {})
    for each in (module, importer):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    functions = {module: (3,), importer: (3,), owner: (None, 3)}
    for each in (module, owner):
        replace(each, "sample", plus_one)
    for each in functions:
        each.sample = (lambda below: lambda *args: 10 * below(*args))(each.sample)
    for each in (importer, module, owner):
        replace(each, "sample", plus_one)
        assert is_replaced(each, "sample")
    assert [each.sample(*given) for each, given in functions.items()] == [40, 40, 40]
    assert stock_of(importer, "sample") is stock
    assert stock_of(Sampler, "sample") is None  # what a subclass has is not its parent's
    assert Sampler().sample(3) == 3


def test_what_was_put_back_is_replaced_again() -> None:
    owner = type("Own", (Sampler,), {})
    replace(owner, "sample", plus_one)
    del owner.sample
    assert not is_replaced(owner, "sample")
    replace(owner, "sample", plus_one)
    assert owner().sample(3) == 4


def runner(discarded: list[bool], seeded: list[int]) -> SimpleNamespace:
    """Return what a step sees of vLLM's runner; the mask is longer than the batch, as there."""
    generators = {index: torch.Generator().manual_seed(index) for index in seeded}
    batch = SimpleNamespace(generators=generators, num_reqs=len(discarded))
    mask = np.array([*discarded, True, True])
    return SimpleNamespace(input_batch=batch, discard_request_mask=SimpleNamespace(np=mask))


def step(runner: SimpleNamespace, fails: bool = False) -> list[int]:
    """Draw from each request's generator, and set back those of discarded requests, as vLLM does."""
    generators = runner.input_batch.generators
    drawn = {index: torch.rand(1, generator=generator) for index, generator in generators.items()}
    for index in runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0]:
        if (generator := generators.get(int(index))) is not None:
            generator.set_offset(generator.get_offset() - 4)
    if fails:
        raise KeyError("something else")
    return sorted(drawn)


def test_a_discarded_draw_leaves_its_generator_alone() -> None:
    with pytest.raises(RuntimeError, match="does not use offset"):  # the fault
        step(runner([True, False], [0, 1]))
    one = runner([True, False, True, False], [0, 1, 2])
    before = dict(one.input_batch.generators)
    assert with_generators_withheld(step)(one) == [1]
    assert one.input_batch.generators == before
    fresh = {index: torch.Generator().manual_seed(index).get_state() for index in (0, 1, 2)}
    assert [torch.equal(before[index].get_state(), fresh[index]) for index in fresh] == [True, False, True]


def test_generators_come_back_when_a_step_fails() -> None:
    one = runner([True, False], [0, 1])
    with pytest.raises(KeyError, match="something else"):
        with_generators_withheld(step)(one, fails=True)
    assert sorted(one.input_batch.generators) == [0, 1]


def test_on_a_gpu_nothing_of_vllm_is_even_imported() -> None:
    repair_generators(torch.device("cuda"))
    assert "vllm.v1.worker.cpu_model_runner" not in sys.modules
