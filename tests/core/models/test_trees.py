"""Trees of tokens: every node has the logits of the chain that leads to it, and a path that is kept is that chain."""

from __future__ import annotations

import pytest
import torch
from support.tiny_architectures import perturbed, plain_logits, random_tokens, tiny_gemma3, tiny_mistral
from support.versions import since
from torch import Tensor
from transformers import (
    BloomConfig,
    FalconConfig,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    OPTConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from cactus_decoding.engines.transformers import forward, row_cache
from cactus_decoding.engines.transformers.cached_model import CachedModel

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 100,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
EAGER = {"attn_implementation": "eager"}
GPT2 = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 100}
OPT = {name: size for name, size in SIZES.items() if name != "intermediate_size"} | {"ffn_dim": 48, "pad_token_id": 1}
MODELS = {
    "llama": LlamaConfig(**GROUPED),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=12),
    "qwen3, a key head for each query head": Qwen3Config(**SIZES | {"num_key_value_heads": 4}),
    "llama with biases": LlamaConfig(**GROUPED, attention_bias=True),
    "gpt2": GPT2Config(**GPT2),
    "gpt2, eager": GPT2Config(**GPT2, **EAGER),
    "opt": OPTConfig(**OPT, word_embed_proj_dim=32),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "gpt_neox, eager": GPTNeoXConfig(**SIZES, **EAGER),
}
TREES = {
    "two children": [-1, -1],
    "three children": [-1, -1, -1],
    "a chain and its brother": [-1, 0, 1, -1],
    "seven nodes": [-1, -1, 0, 0, 1, 2, 5],
    "two trunks, grown in turn": [-1, -1, 0, 1, 2, 3, 4, 5, 6, 7],
}
# float32 with logits of about 3: rounding; see the test of wrong masks for what an error looks like
CLOSE = {"rtol": 0, "atol": 2e-5}


def path_to(node: int, parents: list[int]) -> list[int]:
    return [] if node < 0 else [*path_to(parents[node], parents), node]


def tree_inputs(start: int, parents: list[int]) -> tuple[list[int], Tensor]:
    paths = [path_to(node, parents) for node in range(len(parents))]
    mask = torch.zeros(len(parents), start + len(parents), dtype=torch.bool)
    mask[:, :start] = True
    for node, path in enumerate(paths):
        mask[node, [start + ancestor for ancestor in path]] = True
    return [start + len(path) - 1 for path in paths], mask


def expected(model: PreTrainedModel, prompt: list[int], tokens: list[int], parents: list[int]) -> Tensor:
    """Return the logits after each node when only the chain to it is read."""
    chains = [prompt + [tokens[i] for i in path_to(node, parents)] for node in range(len(parents))]
    return torch.stack([plain_logits(model, chain)[-1] for chain in chains])


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def cached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CachedModel:
    monkeypatch.setattr(forward, "_CHUNK", 6)
    monkeypatch.setattr(row_cache, "MIN_CAPACITY", 4)  # it grows several times
    cached, ids = CachedModel(perturbed(request.param)), random_tokens(20)
    cached.append(ids[:3], rows=1)
    cached.append(ids[3:], rows=1)
    return cached


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
def test_every_node_has_the_logits_of_its_chain_and_a_kept_path_is_one(cached: CachedModel, parents: list[int]) -> None:
    prompt, tokens = random_tokens(20), random_tokens(len(parents), seed=1)
    wanted = expected(cached.model, prompt, tokens, parents)
    for node in range(len(parents)):
        rows = cached.append(tokens, len(parents), *tree_inputs(20, parents))
        torch.testing.assert_close(rows, wanted, **CLOSE)
        assert cached.length == 20 + len(parents)
        path = path_to(node, parents)
        cached.keep([*range(20), *(20 + i for i in path)])
        assert cached.length == 20 + len(path)
        # the path is a chain now: what follows it, fed at once and one by one, and after a rollback into it
        text = prompt + [tokens[i] for i in path]
        further = random_tokens(5, seed=2)
        truth = plain_logits(cached.model, text + further)
        torch.testing.assert_close(cached.append(further, rows=5), truth[-5:], **CLOSE)
        cached.rollback(len(text))
        for token, row in zip(further, truth[-5:], strict=True):
            torch.testing.assert_close(cached.append([token], rows=1)[0], row, **CLOSE)
        cached.rollback(len(text) - 1)
        torch.testing.assert_close(cached.append([text[-1], *further], rows=5), truth[-5:], **CLOSE)
        cached.rollback(20)


def test_a_tree_grows_level_by_level_and_paths_are_kept_one_after_another(cached: CachedModel) -> None:
    parents = TREES["seven nodes"]
    prompt, tokens = random_tokens(20), random_tokens(7, seed=1)
    for step in range(3):
        start = len(prompt)
        assert cached.length == start
        wanted, (positions, mask) = expected(cached.model, prompt, tokens, parents), tree_inputs(start, parents)
        for level in ([0, 1], [2, 3, 4], [5], [6]):
            begin, end = level[0], level[-1] + 1
            level_mask = mask[begin:end, : start + end]
            rows = cached.append(tokens[begin:end], end - begin, positions[begin:end], level_mask)
            torch.testing.assert_close(rows, wanted[begin:end], **CLOSE)
        path = path_to((6, 4, 3)[step], parents)
        cached.keep([*range(start), *(start + i for i in path)])
        prompt = prompt + [tokens[i] for i in path]
    torch.testing.assert_close(cached.append([7], rows=1), plain_logits(cached.model, [*prompt, 7])[-1:], **CLOSE)


def test_a_prompt_can_lose_tokens_of_its_middle(cached: CachedModel) -> None:
    """Places that are left out need not be behind the last chain; positions then stay as they were."""
    cached.keep([0, 1, *range(3, 20)])
    cached.rollback(2)
    truth = plain_logits(cached.model, [*random_tokens(2), 5, 6])
    torch.testing.assert_close(cached.append([5, 6], rows=2), truth[-2:], **CLOSE)
    cached.keep([])
    assert cached.length == 0
    torch.testing.assert_close(cached.append([5, 6], rows=2), plain_logits(cached.model, [5, 6]), **CLOSE)


@pytest.mark.parametrize("count", [1, 3, 4, 20])
def test_a_chain_that_is_spelled_out_is_the_default(cached: CachedModel, count: int) -> None:
    tokens = random_tokens(count, seed=1)
    chain = cached.append(tokens, rows=count)
    positions, mask = tree_inputs(20, list(range(-1, count - 1)))
    for given in ({"positions": positions}, {"mask": mask}, {"positions": torch.tensor(positions), "mask": mask}):
        cached.rollback(20)
        torch.testing.assert_close(cached.append(tokens, count, **given), chain, **CLOSE)


def test_wrong_masks_positions_and_paths_are_noticed(cached: CachedModel) -> None:
    parents, prompt = TREES["seven nodes"], random_tokens(20)
    tokens = random_tokens(7, seed=1)
    wanted = expected(cached.model, prompt, tokens, parents)
    positions, mask = tree_inputs(20, parents)
    sees_its_brother, blind = mask.clone(), mask.clone()
    sees_its_brother[3, 20 + 2] = True
    blind[3, 4] = False
    shifted = [position + (node == 3) for node, position in enumerate(positions)]
    for wrong in ((positions, sees_its_brother), (positions, blind), (shifted, mask)):
        rows = cached.append(tokens, 7, *wrong)
        errors = (rows - wanted).abs().amax(-1)
        assert errors[3] > 1e-3  # fifty times what is allowed
        assert errors[[0, 1, 2, 4, 5, 6]].max() < 2e-5  # nobody sees that node
        cached.rollback(20)
    cached.append(tokens, 7, positions, mask)
    cached.keep([*range(20), 20, 22, 25])  # nodes 0, 2, 5
    other_path = [*prompt, tokens[0], tokens[3], tokens[5], 7]
    assert (cached.append([7], rows=1)[0] - plain_logits(cached.model, other_path)[-1]).abs().max() > 1e-3


def test_chains_copy_nothing_and_compute_no_masks_of_trees(
    cached: CachedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(row_cache.RowLayer, "keep", never)
    monkeypatch.setattr(forward.GeneralForward, "_tree_inputs", never)
    monkeypatch.setattr(forward.GeneralForward, "_check_takes_trees", never)
    cached.append([1, 2, 3], rows=3)
    cached.keep(range(21))
    cached.rollback(20)
    assert cached.length == 20
    truth = plain_logits(cached.model, [*random_tokens(20), 4, 5])
    torch.testing.assert_close(cached.append([4, 5], rows=2), truth[-2:], **CLOSE)


def test_what_does_not_fit_is_refused(cached: CachedModel) -> None:
    positions, mask = tree_inputs(20, [-1, -1])
    for wrong in ([20], [20, 22], [-1, 20]):
        with pytest.raises(ValueError, match="positions must be 2 numbers from 0 to 21"):
            cached.append([1, 2], 2, wrong, mask)
    for wrong_mask in (mask[:, :-1], mask[:1], mask.float()):
        with pytest.raises(ValueError, match=r"mask must be boolean, \[2, 22\]"):
            cached.append([1, 2], 2, positions, wrong_mask)
    for indices in ([0, 2, 1], [0, 0], [0, 1, 1], [0, 1, 20], [-1], range(21), [1, 0]):
        with pytest.raises(ValueError, match="indices must ascend from 0 to at most 19"):
            cached.keep(indices)
    assert cached.length == 20
    truth = plain_logits(cached.model, [*random_tokens(20), 4])
    torch.testing.assert_close(cached.append([4], rows=1), truth[-1:], **CLOSE)


def with_flash_attention() -> PreTrainedModel:
    """Return a model that says so; it is only ever asked for what the model would do."""
    model = perturbed(GPT2Config(**GPT2))
    model.config._attn_implementation = "flash_attention_2"
    return model


def with_an_indexer() -> PreTrainedModel:
    model = perturbed(GPT2Config(**GPT2))
    model.config.layer_types = ["indexed_attention"] * 2
    return model


REFUSED = {
    "MistralForCausalLM .* slides over a window": lambda: tiny_mistral(0),
    "Gemma3ForCausalLM .* slides over a window": lambda: tiny_gemma3(0),
    "GPTNeoForCausalLM .* slides over a window": lambda: perturbed(
        GPTNeoConfig(
            vocab_size=50, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
        )
    ),
    "BloomForCausalLM .* counts positions itself": lambda: perturbed(
        BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4)
    ),
    "FalconForCausalLM .* counts positions itself": lambda: perturbed(
        FalconConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True)
    ),
}


@pytest.mark.parametrize("named", REFUSED)
def test_models_that_cannot_read_trees_are_refused_by_name_and_go_on_with_chains(named: str) -> None:
    model = REFUSED[named]()
    ids = [token % model.config.vocab_size for token in random_tokens(12)]
    cached = CachedModel(model)
    cached.append(ids[:6], rows=1)
    cached.keep(range(5))  # a prefix is a rollback, also for them
    positions, mask = tree_inputs(5, [-1, -1])
    for given in ({"positions": positions}, {"mask": mask}):
        with pytest.raises(ValueError, match=f"{named}.*"):
            cached.append([1, 2], 2, **given)
    with pytest.raises(ValueError, match=named):
        cached.keep([0, 1, 3])
    assert cached.length == 5
    torch.testing.assert_close(cached.append(ids[5:], rows=7), plain_logits(model, ids)[-7:], **CLOSE)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (with_flash_attention, "GPT2LMHeadModel cannot read trees .* flash_attention_2, takes no mask .*'sdpa'"),
        pytest.param(
            with_an_indexer,
            r"GPT2LMHeadModel cannot read trees .* other things .*\(DynamicIndexedLayer\)",
            marks=since("5.19.0"),
        ),
    ],
)
def test_attention_and_caches_of_other_kinds_are_refused_by_name(model, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CachedModel(model()).append([1, 2], 2, *tree_inputs(0, [-1, -1]))
