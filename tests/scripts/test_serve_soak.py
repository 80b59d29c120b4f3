"""The soak of our server: half a minute of it, and how it judges what comes back."""

from __future__ import annotations

import json
import random

import pytest

from cactus_decoding.engines.llama_cpp.server.completion import read_completion
from scripts.serve_soak import RULES, Answer, Soak, main, requests


@pytest.mark.slow
def test_half_a_minute_of_four_chats_with_a_kill_in_its_middle(gguf, tmp_path, capsys):
    """In float32, whose rows do not depend on what is read beside them: every seeded answer is what it is alone."""
    target, draft = (f"{gguf(name)}:cache=float32" for name in ("target", "worded"))
    found = tmp_path / "soak.json"
    given = [f"{target},context_size=1024", "--draft", draft, "--minutes", "0.5", "--requests", "14", "--growth", "64"]
    assert main([*given, "--exact", "--output", str(found)]) == 0, capsys.readouterr().out
    said = json.loads(found.read_text())
    assert said["wrong"] == []
    assert said["equal"] == said["seeded"] > 14
    assert all(said["counts"][name] > 0 for name in ("answered", "left", "malformed", "broken by the kill"))
    assert said["provenance"]["arguments"]["target"] == target.rpartition("/")[2] + ",context_size=1024"


def test_requests_differ_and_have_every_rule():
    made = requests(2 * len(RULES))
    assert len({json.dumps(each) for each in made}) == len({each["seed"] for each in made}) == len(made)
    assert {each.get("acceptance_rule") for each in made} == {each.get("acceptance_rule") for each in RULES}


def test_agents_begin_alike_and_have_tools_that_the_server_takes():
    made = requests(4, tools=30)
    assert len({json.dumps([each["messages"][0], each["tools"]]) for each in made}) == 1
    assert [len(each["tools"]) for each in made] == [30] * 4
    for body in made:
        asked = read_completion(body, {}, chat=True)
        assert asked.grammar is not None  # also where no call is required, for what one would hold
    texts = {each: {read_completion(body, {}, chat=True).grammar.text for body in made if body["tool_choice"] == each}
             for each in ("auto", "required")}  # fmt: skip
    assert not texts["auto"] & texts["required"]


@pytest.mark.parametrize(
    ("answer", "wrong", "differs"),
    [
        (Answer(status=200, text="as alone", finish_reason="stop", tokens=3), 0, 0),
        (Answer(status=200, text="another one's", finish_reason="stop", tokens=3), 0, 1),
        (Answer(status=200, text="as alone", finish_reason="length", tokens=300), 1, 0),
        (Answer(status=503), 1, 0),
    ],
    ids=["right", "mixed up", "too long", "refused"],
)
def test_answers_that_are_not_what_was_asked_for_are_told(answer, wrong, differs):
    class Says:
        def chat(self, body, leave_after=None):
            return answer if body.get("seed") == 0 and body["max_tokens"] == 16 else Answer(status=400)

    asked = requests(1)
    soak = Soak(Says(), asked, ["as alone"])
    soak.up.set()
    chance = random.Random(0)
    while not soak.counts["answered"]:
        soak.once(chance)
    assert (len([each for each in soak.wrong if "request 0" in each]), len(soak.differed)) == (wrong, differs)
