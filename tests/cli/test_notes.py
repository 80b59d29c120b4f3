"""What a user may not know is said in a line on stderr, once the models are there."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import zoo

STORY = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
SHORT = ("--max-new-tokens", "3", "--seed", "1", "--json")
TEMPLATE = "{% for message in messages %}Question: {{ message.content }}\nAnswer:{% endfor %}"


@pytest.fixture(autouse=True)
def _times_are_known(monkeypatch):
    """Have no line say that passes are timed."""
    monkeypatch.setattr("cactus_decoding.core.pair.Pair.pass_times", lambda *_: {"source": "given"})


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """The bundled target as anybody's model, with a chat template or without one."""

    def save(template: str | None) -> str:
        folder = tmp_path_factory.mktemp("model")
        AutoModelForCausalLM.from_pretrained(zoo.path("target"), dtype="float32").save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        return str(folder)

    return {"base": save(None), "chat": save(TEMPLATE)}


def test_a_target_that_is_named_alone_drafts_by_look_up_and_says_so(run, target):
    code, out, err = run("generate", "a b a b a b", "--target", target["base"], *SHORT)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("cactus: note: no --draft is given, so proposals are looked up in the text (suffix)")
    assert json.loads(out)["arguments"]["draft"] == "suffix"
    assert run("generate", "a b a b a b", "--target", target["base"], "--draft", "ngram", *SHORT)[2] == ""


def test_a_chat_model_that_continues_plain_text_says_so(run, target):
    ask = ("generate", STORY, "--target", target["chat"], "--draft", "ngram", *SHORT)
    code, _, err = run(*ask)
    assert (code, err.count("\n")) == (0, 1)
    assert "the target has a chat template" in err
    assert "--chat" in err
    assert [run(*ask, how)[2] for how in ("--chat", "--raw")] == ["", ""]


@pytest.mark.parametrize(
    ("question", "unlike"),
    [
        ("Why is the sky blue?", "no story has 'why', 'sky', 'blue'"),
        ("How many pens does Tom have?", "it has no number"),
        ("Tom has 4000 pens and gives away 3 pens. How many pens does he have left?", "no story has 4000"),
    ],
)
def test_the_bundled_models_say_when_a_question_is_not_of_their_kind(run, question, unlike):
    code, _, err = run("generate", question, *SHORT)
    assert (code, err.count("\n")) == (0, 1)
    assert f"this is none ({unlike})" in err
    assert run("generate", question, "--raw", *SHORT)[2] == ""
    assert run("generate", STORY, *SHORT)[2] == ""
