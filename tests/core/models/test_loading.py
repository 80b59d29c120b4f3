"""In which precision weights are read where nobody says it: in what the processor multiplies fastest, within memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.tiny_architectures import LLAMA_CONFIGS, perturbed, plain_logits, random_tokens
from support.tiny_models import tiny_llama
from transformers import AutoTokenizer, LlamaForCausalLM

from cactus_decoding import load_pair, zoo
from cactus_decoding.core.models import loading
from cactus_decoding.core.models.loading import MEMORY_SHARE, SMALL, fastest_dtype
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.loader import faster_dtype, lay_out_for_small_products, stored_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LARGE = SMALL + 1
HALF = torch.bfloat16


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch):
    return lambda *names: monkeypatch.setattr(loading, "instructions", lambda: frozenset(names))


def test_large_models_stay_in_16_bits_where_the_processor_knows_them(flags) -> None:
    room = 4 * LARGE / MEMORY_SHARE
    flags("avx2")
    assert fastest_dtype(HALF, LARGE, CPU, room) == torch.float32
    assert fastest_dtype(HALF, LARGE, CPU, room - 9) == HALF  # memory is short
    flags("avx512_bf16")
    assert fastest_dtype(HALF, LARGE, CPU, room) == HALF
    assert fastest_dtype(torch.float16, LARGE, CPU, room) == torch.float32  # of which it knows nothing
    assert fastest_dtype(HALF, SMALL, CPU, room) == torch.float32


def test_what_is_wide_or_on_a_gpu_stays_what_it_is(flags) -> None:
    flags()
    for dtype in (torch.float32, torch.float64, torch.float8_e4m3fn):
        assert fastest_dtype(dtype, 1, CPU, 1e12) == dtype
    assert fastest_dtype(HALF, 1, GPU, 1e12) == HALF


def test_this_machine_is_asked() -> None:
    assert isinstance(loading.instructions(), frozenset)
    assert loading.free_memory() > 0


@pytest.fixture
def stored_in_bfloat16(tmp_path: Path) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    tiny_llama(0, len(tokenizer), positions=128).to(HALF).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    return tmp_path / "model"


def test_auto_reads_a_small_model_in_float32_and_says_so(stored_in_bfloat16, caplog) -> None:
    with caplog.at_level("INFO", logger="cactus_decoding.engines.transformers"):
        pair = load_pair(stored_in_bfloat16, stored_in_bfloat16, device="cpu")
    assert pair.target.model.dtype == pair.drafter.model.dtype == torch.float32
    assert [each.getMessage().split(",")[0] for each in caplog.records] == [
        "the target is read in float32",
        "the draft is read in float32",
    ]
    assert load_pair(stored_in_bfloat16, "ngram", device="cpu", dtype="bfloat16").target.model.dtype == HALF
    assert stored_dtype(stored_in_bfloat16) == HALF


def test_what_cannot_be_read_is_left_to_its_loader(tmp_path: Path) -> None:
    assert faster_dtype(tmp_path, CPU) is None


def test_the_command_line_says_it_once_for_each_model(run, stored_in_bfloat16) -> None:
    given = ("--target", str(stored_in_bfloat16), "--max-new-tokens", "2", "--raw")
    for _ in range(2):
        code, _, err = run("generate", "Finn has 22 nuts.", *given)
        assert code == 0, err
        assert err.count("cactus: note: the target is read in float32, which is faster on this processor") == 1


def test_the_layout_changes_no_value_and_can_be_saved(tmp_path):
    model, ids = perturbed(LLAMA_CONFIGS["llama, one key head, tied"]), random_tokens(40)
    expected, before = plain_logits(model, ids), {name: p.clone() for name, p in model.named_parameters()}
    lay_out_for_small_products(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not model.model.layers[0].mlp.up_proj.weight.is_contiguous()
    assert model.lm_head.weight.is_contiguous()  # it is the embedding
    torch.testing.assert_close(plain_logits(model, ids), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(CachedModel(model).append(ids, rows=40), expected, rtol=0, atol=2e-5)
    model.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in loaded.named_parameters())


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (1, 1)])
def test_matrices_of_one_row_or_column_stay_as_they_are(shape):
    model = torch.nn.Sequential(torch.nn.Linear(*shape))
    before = model[0].weight.clone()
    lay_out_for_small_products(model)
    assert torch.equal(model[0].weight, before)
