"""Chat templates of files: programs of strangers, which run elsewhere and take what they are allowed and no more."""

import pytest
from support.tables import all_of
from transformers.utils.chat_template_utils import render_jinja_template

from cactus_decoding.core.models import tokenizers
from cactus_decoding.engines.llama_cpp.models.tokenizer import _worker, render

SAID = [{"role": "user", "content": "Hi é😀 \ud83d"}, {"role": "assistant", "content": None}]
DOUBLED = "{% set ns = namespace(it=START) %}{% for i in range(70) %}{% set ns.it = MORE %}{% endfor %}{{ ns.it }}"
MEMORY = {
    "a text many times": "{{ 'x' * 10**10 }}",
    "a list many times": "{{ ([1] * 10**10)|length }}",
    "texts that double": DOUBLED.replace("START", "'x'").replace("MORE", "ns.it ~ ns.it"),
    "lists that double": DOUBLED.replace("START", "[1]").replace("MORE", "ns.it + ns.it"),
    "lists in lists": DOUBLED.replace("START", "[1]").replace("MORE", "[ns.it, ns.it]"),
    "a filter": "{{ 'x'|center(10**10) }}",
    "a wide number": "{{ '%9999999999d' % 1 }}",
    "a method": "{{ 'x'.ljust(10**10) }}",
}


@all_of("case", MEMORY)
def test_a_template_that_wants_too_much_memory_is_refused_and_the_next_is_not(case, monkeypatch):
    """A list of lists is written slowly, and ends by its time; what is asked for at once ends by the memory."""
    monkeypatch.setattr(tokenizers, "TEMPLATE_SECONDS", 1.0 if case == "lists in lists" else 5.0)
    said = "it (needs more memory|takes longer)" if case == "lists in lists" else "it needs more memory than is allowed"
    with pytest.raises(ValueError, match=f"^{said}"):
        render(MEMORY[case], SAID, {})
    assert render("{{ messages[0].role }}", SAID, {}) == "user"


def test_what_a_template_writes_is_what_it_writes_here():
    template = "{{ bos_token }}{% for m in messages %}{{ m.content or '' }}|{% endfor %}{{ tools|tojson }}{{ day }}"
    options = {"bos_token": "<s>", "tools": [{"type": "function", "function": {"name": "é"}}], "day": 3}
    assert render(template, SAID, options) == render_jinja_template([SAID], chat_template=template, **options)[0][0]


@all_of(
    "template, said",
    [
        ("{{ raise_exception('no') }}", "^no$"),
        ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__'"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "recursion"),
        ("{% if %}", "Expected an expression"),
        ("{{ range(10**6)|list }}", "Range too big"),
        ("{{ 'x' * 2**26 }}", "it writes 67,108,864 characters, of which 33,554,432 are allowed"),
    ],
)
def test_a_template_that_fails_says_why(template, said):
    with pytest.raises(ValueError, match=said):
        render(template, SAID, {})


def test_a_template_that_never_ends_is_ended(monkeypatch):
    """One of them is a single power, which no look at the clock between two lines would end."""
    monkeypatch.setattr(tokenizers, "TEMPLATE_SECONDS", 0.5)
    for template in ("{{ 9**(9**9) }}", "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3):
        with pytest.raises(ValueError, match=r"it takes longer than 0.5 seconds"):
            render(template, SAID, {})
    monkeypatch.undo()
    assert render("{{ messages|length }}", SAID, {}) == "2"


def test_a_process_that_was_killed_is_replaced():
    _worker().start()
    process = _worker()._process
    process.kill()
    process.wait()
    assert render("it", SAID, {}) == "it"
