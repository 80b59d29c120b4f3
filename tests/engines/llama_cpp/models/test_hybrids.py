"""Models with a recurrent state: rows, greedy tokens and laws are those of a model that never went back.

Each statistical test fails by chance with probability 1e-6 at most; its generator is fixed, so: always or never.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.gguf_files import opened
from support.hybrid_gguf import ARCHITECTURES, write_hybrid
from support.loop_runs import PROMPT, run, tokens

from cactus_decoding import Drafter, ModelDrafter, Proposal, SamplingParams
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppForward, side_by_side

VOCABULARY = 8
TEXT = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 5, 4]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("hybrids"), {}

    def file(architecture, seed=0):
        key = architecture, seed
        if key not in made:
            made[key] = write_hybrid(folder / f"{architecture}-{seed}.gguf", architecture, seed)
        return made[key]

    return file


def near(rows, expected):
    return torch.allclose(rows.softmax(-1), expected.softmax(-1), rtol=0, atol=2e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_behind_what_was_taken_back_are_those_of_a_fresh_model(files, architecture):
    model, fresh = opened(files(architecture)), opened(files(architecture))
    by_itself = architecture in ("lfm2", "qwen35") and model._text.context.max_undo > 0
    expected = fresh.append(TEXT, len(TEXT))
    model.append(TEXT[:4], 1)
    place = 4
    for accepted, wrong in ((2, 2), (0, 4), (1, 1), (1, 0)):  # of the proposals of a step
        settled = TEXT[model.length : place + 1]
        block = [*TEXT[place + 1 : place + 1 + accepted], *[0] * wrong]
        rows = model.append([*settled, *block], len(block) + 1)
        assert near(rows[: accepted + 1], expected[place : place + 1 + accepted])
        place += 1 + accepted
        model.rollback(place)
        assert model.length == place if by_itself or not wrong else model.length < place
        assert model._token_ids == TEXT[: model.length]


def test_a_state_that_does_not_go_back_is_noticed(files, monkeypatch):
    """The wrong variant of the test above: keys and values are forgotten, and the state is left as it is."""
    monkeypatch.setattr(LlamaCppForward, "restore_state", lambda self, state, length: None)
    model, fresh = opened(files("mamba")), opened(files("mamba"))
    model.append(TEXT[:4], 1)
    model.append([TEXT[4], 0, 0], 3)
    model.rollback(5)
    with pytest.raises(RuntimeError, match="could not read"):  # which knows where its state stands
        model.append(TEXT[4:6], 1)
    assert near(model.append(TEXT[:6], 1), fresh.append(TEXT[:6], 1))


class Guesses(Drafter):
    """Proposes a known text, and after some of its tokens others."""

    def __init__(self, text, right):
        self.text, self.right = text, right

    def propose(self, token_ids, limit, to_probs, generator):
        known = self.text[len(token_ids) :][: self.right]
        return Proposal(
            [*known, *[(token + 1) % VOCABULARY for token in self.text[len(token_ids) :][self.right :]]][:limit], None
        )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_stay_after_forced_rejections(files, architecture):
    fresh, text = opened(files(architecture)), [*PROMPT]
    while len(text) < 24:
        fresh.reset()
        text.append(int(fresh.append(text, 1).argmax()))
    model, greedy = opened(files(architecture)), SamplingParams(temperature=0)
    for right, count in ((0, 4), (1, 4), (2, 4), (3, 12)):  # of 12 llama.cpp itself takes none back
        steps = run(model, Guesses(text, right), "lossless", count, length=24, sampling=greedy)
        assert [*PROMPT, *tokens(steps)] == text
        assert steps[0].num_accepted == right
    draft = ModelDrafter(opened(files(architecture, 1), copies=False))
    assert [*PROMPT, *tokens(run(model, draft, "lossless", 4, length=24, sampling=greedy))] == text


@pytest.mark.parametrize("architecture", ["falcon-h1", "qwen35"])
def test_kept_texts_are_read_on_behind(files, architecture):
    model, fresh = opened(files(architecture)), opened(files(architecture))
    model.max_saved = 1
    long = [*TEXT * 3, 5]
    model.append([*long, 1, 2], 2)
    model.rollback(len(long) + 1)
    model.recall(TEXT)
    model.read_on(TEXT)
    model.append(TEXT[model.length :], 1)
    other = [*long, 7, 7]
    model.recall(other)
    assert 0 < model.read_on(other) <= len(long)
    assert near(model.append(other[model.length :], 1), fresh.append(other, 1))


@pytest.mark.parametrize("architecture", ["falcon-h1", "lfm2", "qwen35"])
def test_texts_that_share_a_context_go_back_alone(files, architecture):
    """Blocks of several lengths are read in one pass, of which each text takes something else back."""
    count, alone = 3, opened(files(architecture))
    passes, models = side_by_side([alone], count)

    def respond(number):
        with passes.response():
            (model,), rows = models[number], []
            for place in range(4, 10, 2):
                block = [*TEXT[model.length : place + 2], *[0] * number]
                rows.append(model.append(block, min(len(block), 2 + number))[-1 - number])
                model.rollback(place + 2)
        return torch.stack(rows)

    with ThreadPoolExecutor(count) as pool:
        found = [*pool.map(respond, range(count))]
    alone.reset()
    expected = alone.append(TEXT, len(TEXT))[5:10:2]
    for rows in found:
        assert near(rows, expected)


def test_trees_are_refused(files):
    model = opened(files("lfm2"))
    model.append([1, 2], 1)
    with pytest.raises(ValueError, match="models with a recurrent state read chains"):
        model.append([3, 4], 2, positions=[2, 2])
    assert model.length == 2
