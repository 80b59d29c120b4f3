"""Pairs of models: loaded once, few of them kept, and no code of theirs run."""

from __future__ import annotations

import json

import pytest
from support.playground_server import QUESTION, asked, running, tokens

from cactus_decoding import stream
from cactus_decoding.lab.playground.runs import KEPT, PairStore
from cactus_decoding.zoo.word_problems import format_prompt

PROMPT = format_prompt(QUESTION)


def test_a_broken_checkpoint_is_a_sentence_too(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="cannot load"):
        PairStore().get(str(tmp_path), "ngram")


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}})
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\nclass M: pass\n")
    with pytest.raises(ValueError, match="cannot load"):
        PairStore().get(str(tmp_path), "ngram")
    assert not (tmp_path / "ran").exists()


def test_named_pairs_are_loaded_once_and_few_are_kept(monkeypatch):
    loaded = []
    monkeypatch.setattr("cactus_decoding.lab.playground.runs.load_pair", lambda *names: loaded.append(names) or names)
    pairs = PairStore()
    for name in (None, "a", "b", "a", None, "c", "a", "b"):
        pairs.get(name, None if name is None else "ngram")
    assert loaded == [(None, None), ("a", "ngram"), ("b", "ngram"), ("c", "ngram"), ("b", "ngram")]
    assert KEPT == 2
    assert pairs.has(None, None)


def test_twins_do_not_disturb_each_other(pair):
    whole = [stream(pair.twin(), PROMPT, seed=seed, max_new_tokens=30) for seed in (0, 1)]
    while any([next(response, None) for response in whole]):
        pass
    alone = [stream(pair, PROMPT, seed=seed, max_new_tokens=30) for seed in (0, 1)]
    assert [response.token_ids for response in whole] == [
        [token for step in response for token in step.token_ids] for response in alone
    ]
    assert pair.twin().target.model is pair.target.model


def test_visitors_may_name_files_for_llama_cpp(gguf):
    names = {name: f"{gguf(model)}:cache=float32" for name, model in (("target", "target"), ("draft", "worded"))}
    names["chat"] = False  # the prompt is one already
    with running() as server:
        whole = asked("cactus:delta=0.5", prompt=PROMPT, top_p=0.95)
        assert tokens(server.events(whole | names)) == tokens(server.events(asked("cactus:delta=0.5", top_p=0.95)))
        cut = gguf("draft").with_name("cut.gguf")
        cut.write_bytes(gguf("draft").read_bytes()[:5000])
        *_, last = server.events(whole | {"target": str(cut), "draft": "ngram"})
        assert last["event"] == "error"
        assert last["message"].startswith(f"cannot load the target {str(cut)!r}: ")
        assert tokens(server.events(asked()))  # the server goes on
