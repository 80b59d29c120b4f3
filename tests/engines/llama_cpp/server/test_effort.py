"""How much a model thinks, as clients ask for it: told to its template, or refused; and how many tokens it thought."""

from functools import partial
from types import SimpleNamespace

import pytest
from support.gguf_files import completions
from support.tables import all_of
from support.thinking_models import MAY_OPEN, OPENS, thinking_pair, thinking_tokenizer

from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.engines.llama_cpp.server.effort import Effort
from cactus_decoding.engines.openai.responses import ResponsesBody, ResponseWriter, chat_of
from scripts.bundled_gguf import write_gguf

CHAT = [{"role": "user", "content": "Tom has 3 pens"}]
FORM = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {"enum": [3, 4]}, "maxItems": 2}}}
KNOWS_EFFORT = "{{ reasoning_effort }}"
SWITCH = "{% if thinking is not defined %}{% endif %}"
WORDS = {"none": 0, "low": 1, "medium": 1, "high": 1}


def effort(word, template, **given):
    tokenizer = thinking_tokenizer(template) if "think>" in template else SimpleNamespace(chat_template=template)
    return Effort.of(word, given, tokenizer)


@all_of("word", WORDS)
def test_an_effort_is_told_to_the_template(word):
    assert effort(word, OPENS) == Effort({"enable_thinking": word != "none"})
    assert effort(word, SWITCH) == Effort({"thinking": word != "none"})
    assert effort(word, KNOWS_EFFORT) == Effort({"reasoning_effort": word})
    assert effort(word, KNOWS_EFFORT + OPENS) == Effort({"reasoning_effort": word, "enable_thinking": word != "none"})
    assert effort(word, OPENS, enable_thinking=word != "none") == effort(word, OPENS)


def test_none_is_also_kept_where_there_is_no_switch():
    assert effort("none", MAY_OPEN) == Effort({}, 0)
    assert effort("none", "{{ messages }}") == Effort()


@all_of(
    "word, template, said",
    [
        (
            "low",
            "{{ messages }}",
            "reasoning_effort of 'low' is not served: the model's chat template knows no thinking",
        ),
        ("high", MAY_OPEN, "always thinks, and knows no effort. Leave it out, or give a thinking_budget"),
        ("much", OPENS, "reasoning_effort must be one of none, minimal, low, medium, high, xhigh, but is 'much'"),
    ],
)
def test_what_no_template_knows_is_refused(word, template, said):
    with pytest.raises(ValueError, match=said):
        effort(word, template)


def test_two_words_that_say_different_things_are_refused():
    with pytest.raises(ValueError, match="is 'none', but enable_thinking of chat_template_kwargs is True"):
        effort("none", OPENS, enable_thinking=True)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    made = thinking_pair()
    path = tmp_path_factory.mktemp("thinking") / "thinks.gguf"
    write_gguf(made.target.model.float(), made.tokenizer, path, "float32")
    pair = load_gguf_pair(parse_gguf(f"{path}:cache=float32,context_size=512"), "suffix", kept_prompts=1)
    return partial(completions(pair, num_speculative_tokens=2), messages=CHAT)


@all_of("effort, budget", [("high", 6), ("none", None), ("high", 0)])
def test_tokens_of_thinking_are_counted(ask, effort, budget):
    """A budget is spent to the end by a random model, whose closing mark is rare."""
    same = {"reasoning_effort": effort, "thinking_budget": budget, "seed": 5, "response_format": FORM}
    whole = ask(**same).whole()
    usage = whole["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 6 if budget else 0}
    assert ("reasoning_content" in whole["choices"][0]["message"]) == bool(budget)
    assert usage["completion_tokens_details"]["reasoning_tokens"] <= usage["completion_tokens"]
    streamed = [*ask(**same, stream=True, stream_options={"include_usage": True}).chunks()][-1]["usage"]
    assert streamed["completion_tokens_details"] == usage["completion_tokens_details"]
    body = {"input": "Tom has 3 pens", "reasoning": {"effort": effort, "summary": "auto"}, "seed": 5}
    body |= {"thinking_budget": budget} if budget is not None else {}
    given = ResponsesBody.read(body | {"text": {"format": FORM["json_schema"] | {"type": "json_schema"}}})
    asked = ask(**chat_of(given, body))
    told = ResponseWriter(given).whole(asked.chunks())["usage"]
    assert told["output_tokens_details"] == usage["completion_tokens_details"]
    assert told["input_tokens_details"]["cached_tokens"] == told["input_tokens"] - 1


def test_a_thought_that_is_cut_is_all_of_the_answer(ask):
    usage = ask(max_tokens=5, seed=1).whole()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"] == 5


def test_tokens_that_were_in_the_cache_are_counted_once_for_each_prompt(ask):
    first = ask(messages=[{"role": "user", "content": "Nuts"}], max_tokens=4, seed=1).whole()["usage"]
    longer = [{"role": "user", "content": "Nuts"}, {"role": "user", "content": "and more"}]
    second = ask(messages=longer, max_tokens=4, seed=1, n=3).whole()["usage"]
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]
    again = ask(messages=longer, max_tokens=4, seed=1, n=2).whole()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1 > first["prompt_tokens"] // 2


def test_other_words_about_reasoning_are_refused_by_name():
    with pytest.raises(ValueError, match="reasoning may hold effort, but has summary"):
        ResponsesBody.read({"input": "Hi", "reasoning": {"summary": "detailed"}})
