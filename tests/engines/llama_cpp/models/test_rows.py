"""llama.cpp's rows beside those of transformers, and its cache after tokens were forgotten."""

from itertools import islice

import pytest
import torch
from support.gguf_files import opened, tiny_gguf, write_mixture
from support.tables import all_of
from support.tiny_models import tiny_llama, tiny_mixture
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import Pair, SuffixDrafter, load_pair, stream, zoo
from cactus_decoding.core.models.base import append_proposal
from cactus_decoding.core.types import Proposal
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.library import Batch
from cactus_decoding.zoo.word_problems import word_problems

PROBABLE = 0.01


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    return [tokenizer(f"{p.prompt} {p.solution}").input_ids for p in islice(word_problems("validation"), 8)]


@pytest.fixture(scope="module")
def expected(texts) -> list[torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32).eval()
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].double().log_softmax(-1) for ids in texts]


def largest_difference(rows: torch.Tensor, expected: torch.Tensor) -> float:
    probable = expected > torch.tensor(PROBABLE).log()
    return float((rows.double().log_softmax(-1) - expected)[probable].abs().max())


@all_of(
    "kind, settings, allowed",
    [
        ("float32", "cache=float32", 1e-4),  # measured: 3e-5
        ("float32", "", 0.02),  # keys and values in float16: 0.005
        ("float16", "", 0.03),  # 0.009
        ("q8_0", "", 1.0),  # 0.36
    ],
)
def test_rows_are_those_of_transformers(gguf, texts, expected, kind, settings, allowed):
    model = opened(gguf("target", kind), settings)
    for ids, rows in zip(texts, expected, strict=True):
        model.reset()
        assert largest_difference(model.append(ids, rows=len(ids)), rows) < allowed


def test_rows_of_a_mixture_of_experts_are_those_of_transformers(tmp_path):
    mixture, ids = tiny_mixture(0), torch.arange(20) * 7 % 60
    rows = opened(write_mixture(mixture, tmp_path / "mixture.gguf")).append(ids.tolist(), rows=len(ids))

    def off():
        with torch.no_grad():
            expected = mixture(ids[None]).logits[0].double().softmax(-1)
        return float((rows.double().softmax(-1) - expected).abs().max())

    assert off() < 1e-4  # measured: 1e-7
    for layer in mixture.model.layers:
        layer.mlp.gate.top_k = 1
    assert off() > 0.1, "the wrong variant: a token asks for one expert instead of two"


def test_quantised_rows_differ_from_exact_ones(gguf, texts, expected):
    """The wrong weights for the test above: it must be able to tell them."""
    assert largest_difference(opened(gguf("target", "q8_0")).append(texts[0], rows=len(texts[0])), expected[0]) > 0.005


def test_rows_do_not_depend_on_how_tokens_were_fed(gguf, texts, expected):
    model, ids = opened(gguf("target")), texts[0]
    model.append(ids[:5], rows=2)
    rows = [model.append(ids[start : start + 3], rows=len(ids[start : start + 3])) for start in range(5, len(ids), 3)]
    assert largest_difference(torch.cat(rows), expected[0][5:]) < 1e-4


def test_forgotten_tokens_leave_no_trace(gguf, texts, expected):
    model, ids = opened(gguf("target")), texts[0]
    model.append([*ids[:9], 5, 6, 7], rows=4)
    model.rollback(9)
    assert largest_difference(model.append(ids[9:], rows=len(ids) - 9), expected[0][9:]) < 1e-4
    model.reset()
    model.append([9, 8, 7], rows=1)
    model.reset()
    assert largest_difference(model.append(ids, rows=len(ids)), expected[0]) < 1e-4


def test_an_interruption_leaves_an_empty_cache(gguf, monkeypatch):
    """llama.cpp has read the tokens by then, and Python has not counted them."""
    model = opened(gguf("draft"))
    model.append([1, 5, 6], rows=1)
    read = Context.read

    def interrupted(*given):
        read(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Context, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.append([7, 8], rows=1)
    assert model.length == 0
    assert torch.equal(model.append([1, 9], rows=1), opened(gguf("draft")).append([1, 9], rows=1))


def test_longer_than_one_batch(tmp_path):
    """llama.cpp takes 2,048 tokens at once; here the last rows come from two batches."""
    tokens, whole = (torch.arange(2100) ** 2 % 8).tolist(), tiny_gguf(tiny_llama(0, positions=2200), tmp_path)
    parts = whole.twin()
    rows = whole.append(tokens, rows=60)
    parts.append(tokens[:2040], rows=1)
    torch.testing.assert_close(rows, parts.append(tokens[2040:], rows=60), rtol=0, atol=1e-3)


def test_kept_rows_are_those_of_their_own_step(gguf):
    """A target's rows go out with the step's outcome; a draft's are llama.cpp's own memory."""
    target, draft = opened(gguf("draft")), opened(gguf("draft"), copies=False)
    kept, lent = target.append([1, 5, 6], rows=1), draft.append([1, 5, 6], rows=1)
    before = kept.clone()
    assert torch.equal(lent, before)
    target.append([7], rows=1)
    draft.append([7], rows=1)
    assert torch.equal(kept, before)
    assert not torch.equal(lent, before)


def test_twins_share_weights_and_no_cache(gguf):
    model = opened(gguf("draft"))
    first = model.append([1, 5, 6], rows=1)
    twin = model.twin()
    assert twin.model is model.model
    assert torch.equal(twin.append([1, 5, 6], rows=1), first)
    assert (model.length, twin.length) == (3, 3)
    twin.append([9], rows=1)
    fresh = opened(gguf("draft")).append([1, 5, 6, 7], rows=1)
    torch.testing.assert_close(model.append([7], rows=1), fresh, rtol=0, atol=1e-4)


def test_a_tree_is_read_in_one_batch_and_leaves_no_trace(gguf, texts, monkeypatch):
    model, ids, passes = opened(gguf("target"), "cache=float32"), texts[0], list[int]()
    read = Batch.read
    monkeypatch.setattr(
        Batch, "read", lambda batch, context, count: passes.append(count) or read(batch, context, count)
    )
    # two tokens after the text, of which the first has two children, one of these another one
    token_ids, parents = [ids[9], 5, ids[10], 6, ids[11]], [-1, -1, 0, 0, 2]
    paths = {-1: [], 0: [0], 1: [1], 2: [0, 2], 3: [0, 3], 4: [0, 2, 4]}
    model.append(ids[:8], rows=1)
    rows = append_proposal(model, ids[:9], Proposal(token_ids, None, parents))
    assert passes == [8, 6]
    for node, path in paths.items():
        model.rollback(8)
        chain = model.append([ids[8], *(token_ids[each] for each in path)], rows=1)
        assert largest_difference(rows[node + 1 : node + 2], chain.double().log_softmax(-1)) < 1e-4
    other = rows[[1]].double().log_softmax(-1)
    assert largest_difference(rows[[2]], other) > 0.1, "rows of different places can be told apart"


def chain_after(gguf, text, token):
    model = opened(gguf("draft"))
    model.append(text, rows=1)
    return model.append([token], rows=1)


@all_of(
    "positions, sees",
    [
        ([3, 3], None),
        ([3, 4], None),
        (None, [[1, 0], [0, 1]]),
        ([3, 4, 4], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),  # a sibling
        ([3, 4, 5], [[1, 0, 0], [1, 1, 0], [0, 1, 1]]),  # not its parent's parent
        ([3] * 17, torch.eye(17).tolist()),
    ],
)
def test_what_is_no_tree_of_few_leaves_is_refused_and_the_cache_stays(gguf, positions, sees):
    model = opened(gguf("draft"))
    model.append([1, 5, 6], rows=1)
    mask = None if sees is None else torch.cat([torch.ones(len(sees), 3), torch.tensor(sees)], dim=1).bool()
    count = len(positions or sees)
    with pytest.raises(ValueError, match="GGUF files are read as chains"):
        model.append([7] * count, rows=1, positions=positions, mask=mask)
    with pytest.raises(ValueError, match="GGUF files are read as chains"):
        model.keep([0, 2])
    assert model.length == 3
    assert torch.equal(model.append([9], rows=1), chain_after(gguf, [1, 5, 6], 9))


def test_trees_are_refused_before_anything_is_written(gguf):
    pair = Pair(opened(gguf("draft")), SuffixDrafter(), load_pair().tokenizer)
    with pytest.raises(ValueError, match="GGUF files are read as chains"):
        stream(pair, "How many?", tree="static=2.2")
