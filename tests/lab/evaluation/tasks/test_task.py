"""Tasks: what an engine is asked, as plain text or as a chat, in which order, and what its answers are worth."""

from __future__ import annotations

import pytest
from support.bundled_target import save_target
from support.result_files import config_of

from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.lab.evaluation.chat import Chat, choose_chat, tokenizer_of
from cactus_decoding.lab.evaluation.engines.engine import Answer, AuditedCosts, Conversation, Problem
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.tasks.task import Task, ask

PROBLEMS = tuple(Problem(str(place), f"prompt {place}", f"a{place}") for place in range(4))


class Parrot:
    """An engine that counts its answers, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def check_prompt(self, prompt, request):
        if prompt == "prompt 2":
            raise ValueError("the prompt is too long")

    def answer(self, prompt, request):
        self.asked.append((prompt, request))
        count = len(self.asked)
        costs, unknown = AuditedCosts(1, 0.5, 0.1, count), frozenset({"relaxed"} if count == 2 else ())
        reason = "length" if count == 2 else "stop"
        return Answer(f"a{count}", reason, Metrics(generated=count), costs, unknown, (count,))


def test_an_answer_is_asked_for_with_a_seed_of_its_own_and_the_task_s_stop_strings():
    engine, task = Parrot(), Task("echo", PROBLEMS, extract=lambda text: text, stop=("\n",))
    config = config_of(problems=3, seed=5, top_k=9)
    found = list(task.answer(engine, config, start=1))
    assert [(each.id, answer.text, right) for each, answer, right in found] == [("1", "a1", True), ("2", "a2", True)]
    assert [request.seed for _, request in engine.asked] == [seed_of(5, 1), seed_of(5, 2)]
    assert {(request.stop, request.sampling.top_k) for _, request in engine.asked} == {(("\n",), 9)}


def test_every_turn_has_all_before_it_and_its_own_seed():
    engine, problem = Parrot(), Problem("1", "q1", follow_ups=("q2", "q3"))
    config = RunConfig("t", "target", "draft", problems=1, request=config_of(seed=4).request, chat=Chat("s"))
    answer = ask(engine, problem, config, 0, ())
    seed = seed_of(4, 0)
    assert [(prompt, request.seed) for prompt, request in engine.asked] == [
        (Conversation(("q1",), "s"), seed),
        (Conversation(("q1", "a1", "q2"), "s"), seed_of(seed, 1)),
        (Conversation(("q1", "a1", "q2", "a2", "q3"), "s"), seed_of(seed, 2)),
    ]
    assert (answer.text, answer.turns, answer.finish_reason) == ("a1\n\na2\n\na3", ("a1", "a2", "a3"), "length")
    assert (answer.metrics.generated, answer.token_ids) == (6, (1, 2, 3))
    assert answer.audited == AuditedCosts(3, 1.5, pytest.approx(0.3), 3)
    assert answer.unknown == {"relaxed"}


def test_an_answer_that_is_begun_goes_on_and_plain_text_has_no_turns():
    begun, two_turns = Problem("1", "q", begun="def f():"), Problem("1", "q1", follow_ups=("q2",))
    for problem, chat, asked in ((begun, Chat(), Conversation(("q",), None, "def f():")), (two_turns, None, "q1")):
        engine, config, task = Parrot(), RunConfig("t", "a", "b", problems=1, chat=chat), Task("t", (problem,))
        task.check(engine, config)
        ((_, answer, _),) = task.answer(engine, config)
        assert [prompt for prompt, _ in engine.asked] == [asked]
        assert answer.turns == ()


def test_answers_are_right_wrong_or_unknown_and_other_problems_have_another_digest():
    assert Task("a", PROBLEMS).is_right(PROBLEMS[0], "a0") is None
    assert Task("a", PROBLEMS, extract=str).is_right(Problem("x", "y"), "a0") is None
    assert Task("a", PROBLEMS, extract=str).is_right(PROBLEMS[0], "a1") is False
    assert Task("a", PROBLEMS).digest_of(3) == Task("b", PROBLEMS[:3]).digest_of(3)
    assert Task("a", PROBLEMS).digest_of(3) != Task("a", PROBLEMS[::-1]).digest_of(3)


def test_the_problem_that_does_not_fit_is_named():
    task = Task("echo", PROBLEMS)
    task.check(Parrot(), config_of(problems=2))
    with pytest.raises(ValueError, match="task echo, problem '2': the prompt is too long"):
        task.check(Parrot(), config_of(problems=3))


TEMPLATE = (
    "{% for each in messages %}[{{ each.role }}]{{ each.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_a_chat_is_the_default_where_there_is_a_template_and_what_cannot_be_is_said(tmp_path):
    name = save_target(tmp_path / "chat", TEMPLATE)
    assert choose_chat(None, None, name) == Chat()
    assert choose_chat(True, "Be brief.", name) == choose_chat(None, "Be brief.", name) == Chat("Be brief.")
    assert choose_chat(False, None, name) is None
    assert choose_chat(None, None, "bundled") is None  # whose template must be asked for
    assert choose_chat(True, None, "bundled") == Chat()
    system = "--system is the system message of a chat"
    wrong = [(False, "Be brief.", name, system), (None, "Be brief.", "bundled", system),
             (True, "Be brief.", "bundled", "no place for a system message")]  # fmt: skip
    name = save_target(tmp_path / "plain", None)
    assert choose_chat(None, None, name) is None
    wrong += [(True, None, name, "the target has no chat template: leave out --chat"),
              (None, "Be brief.", name, "the target has no chat template")]  # fmt: skip
    for chat, text, target, said in wrong:
        with pytest.raises(ValueError, match=said):
            choose_chat(chat, text, target)


def test_a_conversation_is_written_as_the_template_of_a_tokenizer_says(tmp_path):
    chat = tokenizer_of(save_target(tmp_path / "chat", TEMPLATE))
    asked = as_chat_prompt(chat, "How?", "So.", "And?", system="Be brief.")
    assert asked == "[system]Be brief.[user]How?[assistant]So.[user]And?[assistant]"
    assert tokenizer_of("bundled").eos_token == "<eos>"
    with pytest.raises(ValueError, match="cannot load a tokenizer for the target"):
        tokenizer_of(str(tmp_path))
