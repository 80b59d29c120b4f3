"""Chat templates: where they are used, what a prompt becomes, and what files say of it."""

from __future__ import annotations

import json

import pytest
from support.result_files import config_of
from transformers import AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.lab.evaluation.chat import Chat, choose_chat
from cactus_decoding.lab.evaluation.engines.engine import Answer, AuditedCosts, Conversation, Problem
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.tasks.task import Task, ask

TEMPLATE = (
    "{% for each in messages %}[{{ each.role }}]{{ each.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def model(tmp_path):
    """Save the bundled tokenizer with another template, or none; return the folder."""

    def save(template: str | None):
        tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / "model")
        (tmp_path / "model" / "config.json").write_bytes((zoo.path("target") / "config.json").read_bytes())
        return str(tmp_path / "model")

    return save


def test_a_chat_is_the_default_where_there_is_a_template(model):
    name = model(TEMPLATE)
    assert choose_chat(None, None, name) == Chat()
    assert choose_chat(True, "Be brief.", name) == choose_chat(None, "Be brief.", name) == Chat("Be brief.")
    assert choose_chat(False, None, name) is None


def test_the_bundled_target_has_a_template_that_must_be_asked_for():
    assert choose_chat(None, None, "bundled") is None
    assert choose_chat(True, None, "bundled") == Chat()


def test_what_cannot_be_is_said_before_any_work(model):
    name = model(None)
    assert choose_chat(None, None, name) is None
    with pytest.raises(ValueError, match="the target has no chat template: leave out --chat"):
        choose_chat(True, None, name)
    with pytest.raises(ValueError, match="the target has no chat template"):
        choose_chat(None, "Be brief.", name)
    for chat, target in ((False, name), (None, "bundled")):
        with pytest.raises(ValueError, match="--system is the system message of a chat"):
            choose_chat(chat, "Be brief.", target)
    with pytest.raises(ValueError, match="no place for a system message"):
        choose_chat(True, "Be brief.", "bundled")


def test_a_conversation_is_written_as_the_template_says(model):
    tokenizer = AutoTokenizer.from_pretrained(model(TEMPLATE))
    asked = as_chat_prompt(tokenizer, "How?", "So.", "And?", system="Be brief.")
    assert asked == "[system]Be brief.[user]How?[assistant]So.[user]And?[assistant]"


class Parrot:
    """An engine that counts its answers, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def check_prompt(self, prompt, request):
        self.asked.append(prompt)

    def answer(self, prompt, request):
        self.asked.append((prompt, request.seed))
        reason = "length" if len(self.asked) == 2 else "stop"
        count = len(self.asked)
        costs, unknown = AuditedCosts(1, 0.5, 0.1, count), frozenset({"relaxed"} if count == 2 else ())
        return Answer(f"a{count}", reason, Metrics(generated=count), costs, unknown, (count,))


def test_every_turn_has_all_before_it_and_its_own_seed():
    engine, problem = Parrot(), Problem("1", "q1", follow_ups=("q2", "q3"))
    config = RunConfig("t", "target", "draft", problems=1, request=config_of(seed=4).request, chat=Chat("s"))
    answer = ask(engine, problem, config, 0, ())
    seed = seed_of(4, 0)
    assert engine.asked == [
        (Conversation(("q1",), "s"), seed),
        (Conversation(("q1", "a1", "q2"), "s"), seed_of(seed, 1)),
        (Conversation(("q1", "a1", "q2", "a2", "q3"), "s"), seed_of(seed, 2)),
    ]
    assert (answer.text, answer.turns, answer.finish_reason) == ("a1\n\na2\n\na3", ("a1", "a2", "a3"), "length")
    assert (answer.metrics.generated, answer.token_ids) == (6, (1, 2, 3))
    assert answer.audited == AuditedCosts(3, 1.5, pytest.approx(0.3), 3)
    assert answer.unknown == {"relaxed"}


def test_an_answer_that_is_begun_goes_on():
    engine, config = Parrot(), RunConfig("t", "a", "b", problems=1, chat=Chat())
    task = Task("t", (Problem("1", "q", begun="def f():"),))
    task.check(engine, config)
    (found,) = task.answer(engine, config)
    assert engine.asked[0] == engine.asked[1][0] == Conversation(("q",), None, "def f():")
    assert found[1].turns == ()


def test_without_a_chat_the_prompt_is_continued_and_no_more_is_asked():
    engine = Parrot()
    ask(engine, Problem("1", "q1", follow_ups=("q2",)), RunConfig("t", "a", "b", problems=1), 0, ())
    assert [prompt for prompt, _ in engine.asked] == ["q1"]


def test_a_chat_is_part_of_a_run_s_key_and_plain_text_has_the_key_that_it_had():
    plain, chat, system = (config_of(**more) for more in ({}, {"chat": True}, {"chat": True, "system": "Be brief."}))
    assert "chat" not in plain.key
    assert len({plain.key, chat.key, system.key}) == len({each.comparable for each in (plain, chat, system)}) == 3
    for config in (plain, chat, system):
        assert RunConfig.from_dict(json.loads(config.key)) == config
    assert system.chat == Chat("Be brief.")
