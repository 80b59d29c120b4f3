"""One of several answers of a GGUF file: in how many batches they are read, and transformers' probabilities of them."""

import math

import pytest
import torch
from support.gguf_files import opened
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.core.choices import ChoiceTokens, choose
from cactus_decoding.core.sampling.params import SamplingFn, SamplingParams
from cactus_decoding.engines.llama_cpp.models.library import Batch
from cactus_decoding.engines.llama_cpp.models.model import side_by_side
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer

PROMPT = "Tom has 3 pens. Ann has"
ANSWERS = ("3 pens", "3 stamps", "no pens", "no", "4", *(f"{n} pens in all" for n in range(10, 22)))
"""More than a batch takes; some begin alike, and one is the beginning of another."""
FLOAT32 = 1e-4
"""How far two engines' log-probabilities of whole answers may be apart in float32."""


@pytest.fixture(scope="module")
def target(gguf):
    return opened(gguf("target"), "cache=float32,context_size=128")


@pytest.fixture
def batches(monkeypatch):
    read, counts = Batch.read, list[int]()
    monkeypatch.setattr(
        Batch, "read", lambda batch, context, count: counts.append(count) or read(batch, context, count)
    )
    return counts


@pytest.fixture(scope="module")
def expected():
    """Return the answers' log-probabilities by a plain pass of transformers over each of them."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    model = AutoModelForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32).eval()
    prompt, found = tokenizer(PROMPT).input_ids, list[float]()
    for text in ANSWERS:
        whole = [*prompt, *tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        with torch.inference_mode():
            rows = model(torch.tensor([whole[:-1]])).logits[0].double().log_softmax(-1)
        found.append(sum(rows[i - 1, whole[i]].item() for i in range(len(prompt), len(whole))))
    return found


def chosen(target, answers=ANSWERS, prompt=PROMPT):
    tokenizer, plain = GgufTokenizer(target.model), SamplingFn(SamplingParams())
    tokens = ChoiceTokens.of(answers, tokenizer, target.stop_token_ids)
    prompt_ids, generator = tokenizer(prompt).input_ids, torch.Generator().manual_seed(0)
    (outcome,) = choose(target, prompt_ids, tokens, plain, plain, generator, 99)
    return prompt_ids, tokens, outcome


def test_answers_are_branches_of_one_batch(target, expected, batches):
    target.reset()
    few = ANSWERS[:6]
    prompt_ids, tokens, outcome = chosen(target, few)
    nodes = {tuple(answer[: n + 1]) for answer in tokens.token_ids for n in range(len(answer))}
    assert batches == [len(prompt_ids) - 1, 1 + len(nodes)]
    assert [choice.logprob for choice in outcome.choices] == pytest.approx(expected[:6], abs=FLOAT32)
    total = math.fsum(map(math.exp, expected[:6]))
    shares = [math.exp(each) / total for each in expected[:6]]
    assert [choice.probability for choice in outcome.choices] == pytest.approx(shares, abs=FLOAT32)
    # what follows reads on after the prompt
    after = target.append([*prompt_ids[target.length :], 5], rows=1)
    target.reset()
    torch.testing.assert_close(after, target.append([*prompt_ids, 5], rows=1), rtol=0, atol=FLOAT32)


def test_more_answers_than_a_batch_takes_are_read_in_groups(target, expected, batches):
    target.reset()
    *_, outcome = chosen(target)
    assert [choice.logprob for choice in outcome.choices] == pytest.approx(expected, abs=FLOAT32)
    assert len(batches) < len(ANSWERS)


def test_answers_are_read_one_by_one_where_there_is_no_room_or_others_are_served(gguf, target, expected, batches):
    size = len(GgufTokenizer(target.model)(PROMPT).input_ids) + 8
    narrow = opened(gguf("target"), f"cache=float32,context_size={size}")
    _, ((beside,), _) = side_by_side([target], 2)
    for model in (narrow, beside):
        batches.clear()
        *_, outcome = chosen(model)
        assert [choice.logprob for choice in outcome.choices] == pytest.approx(expected, abs=FLOAT32)
        assert len(batches) >= len(ANSWERS)
