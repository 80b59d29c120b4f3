"""What grammars allow: schemas, patterns and grammars that people send, over several kinds of vocabularies."""

from __future__ import annotations

import json
import re

import pytest
import torch
from jsonschema import Draft202012Validator
from support.constraints import (
    BYTES,
    END,
    accepts,
    bundled_vocabulary,
    byte_vocabulary,
    random_answer,
    schema_of,
    small_vocabulary,
)
from support.tables import all_of
from support.tiny_tokenizers import TOKENIZERS, tiny_tokenizer

from cactus_decoding.core.constraints import compiling
from cactus_decoding.core.constraints.base import ConstraintError, Grammar
from cactus_decoding.core.constraints.matching import GrammarVocabulary, vocabulary_of

TEXT = {"type": "string"}
BASE = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
SCHEMAS = {
    "maxLength 2000": ({"type": "string", "maxLength": 2000}, ['"' + "a" * 2000 + '"', '""'], ['"' + "a" * 2001 + '"']),
    "maxLength 20000": ({"type": "string", "maxLength": 20_000}, ['"a"'], ["1"]),
    "repetitions": ({"type": "string", "pattern": "^a{0,20000}$"}, ['"aaa"'], ['"ab"']),
    "words": ({"type": "string", "pattern": r"^[\w-]+$"}, ['"a-b_1"'], ['"a b"']),
    "quotes": ({"enum": ['say "hi"']}, [r'"say \"hi\""'], ['"say "hi""']),
    "escapes": ({"enum": ["a\\b", "a\nb", "\t"]}, [r'"a\\b"', r'"a\nb"', r'"\t"'], ['"a\nb"', '"\t"']),
    "a character": ({"type": "string", "pattern": "^a.b$"}, ['"axb"', r'"a\"b"', r'"a\\b"'], ['"a"b"', '"a\nb"']),
    "a backslash": ({"type": "string", "pattern": r"^\\$"}, [r'"\\"'], ['"\\"']),
    "an emoji": ({"const": "go 😀"}, ['"go 😀"'], ['"go "', '"go \\ud83d\\ude00"']),
    "free texts": (TEXT, [r'"a\nb"', '"é😀"', '"/"'], ['"a\nb"', '"\x01"', '"\\u0061"', '"\\x"']),
    "closed objects": (
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^.*$"}}, "additionalProperties": False},
        ['{"a": "x"}', "{}"],
        ['{"a": "", "b": 1}', '{"b": 1}'],
    ),
    "true": (True, ["1", '{"a": [null, true]}'], ["{1}"]),
    "false in an object": ({"type": "object", "properties": {"a": False}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    "keys written otherwise": (BASE | {"additionalProperties": TEXT}, ['{"b": ""}'], ['{"\\u0061": ""}', '{"a": ""}']),
    "required and order": (
        {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}, "required": ["a"]},
        ['{"b": 1, "a": 2}', '{"a": 2}', '{"a": 2, "c": 3}'],
        ['{"a": 2, "b": 1}', '{"b": 1}', "{}"],
    ),
}  # fmt: skip
UNREADABLE = {
    "oneOf that overlaps": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "no answer fits two of its options"),
    "false": ({"allOf": [False]}, "schema is false"),
    "turned round": ({"type": "string", "minLength": 5, "maxLength": 2}, r"minLength \(5\) is greater than maxLength"),
    "a negative count": ({"type": "string", "maxLength": -1}, "'maxLength', got -1"),
    "an unknown type": ({"properties": {"a": {"type": "strin"}}}, "type at #/properties/a must be one of .*; did"),
    "nowhere": ({"$ref": "#/$defs/x"}, "'/\\$defs/x' does not exist"),
    "ahead": ({"type": "string", "pattern": "^(?=a).*$"}, "look-around"),
    "again": ({"type": "string", "pattern": r"^(a)\1$"}, "backreferences"),
    "too many patterns": (
        {"allOf": [{"type": "string", "pattern": f"{i}.*{i}"} for i in range(30)]}, "too hard to combine",
    ),
    "an example": ({"required": True}, "'required', got true"),
}  # fmt: skip
TEXTS = {
    "regex": (Grammar("regex", r"(yes|no)[.!]?", "it"), ["yes", "no!"], ["maybe", "yes.."]),
    "lark": (Grammar("lark", 'start: "a" start "b" | "c"', "it"), ["aacbb", "c"], ["aacb"]),
    "gbnf": (Grammar("gbnf", 'root ::= [0-9]+ (" " [a-z]+)* "!"', "it"), ["12 ab c!"], ["12 ab c", "!"]),
    "left recursion": (Grammar("gbnf", 'root ::= root "a" | "b"', "it"), ["baa"], ["ab"]),
    "characters": (Grammar("gbnf", 'root ::= [^"a-c] "é\\n"', "it"), ["dé\n", "😀é\n"], ["aé\n", "dé"]),
    "spaces": (Grammar("gbnf", 'root ::= ws* "a" ws+ "b"\nws ::= [ \\t]*', "it"), ["a b", "ab"], ["b"]),
    "repetitions": (Grammar("gbnf", 'root ::= "a"{2,20000}', "it"), ["aa"], ["a"]),
}


@all_of("case", SCHEMAS)
def test_schemas_allow_what_is_valid_and_nothing_else(case):
    schema, valid, invalid = SCHEMAS[case]
    validator, constraint = Draft202012Validator(schema), byte_vocabulary().constraint(schema_of(schema))
    for text in valid:
        assert accepts(constraint, text), text
        assert validator.is_valid(json.loads(text))
    for text in invalid:
        assert not accepts(constraint, text), text


@all_of("case", UNREADABLE)
def test_a_schema_that_cannot_be_compiled_is_refused_by_a_sentence(case):
    schema, said = UNREADABLE[case]
    with pytest.raises(ValueError, match=f"^cannot read the JSON schema of response_format: .*{said}") as error:
        byte_vocabulary().constraint(schema_of(schema))
    assert len(str(error.value)) < 250
    assert "\n" not in str(error.value)


@all_of("case", TEXTS)
def test_expressions_and_grammars_allow_their_texts_and_nothing_else(case):
    grammar, valid, invalid = TEXTS[case]
    constraint = byte_vocabulary().constraint(grammar)
    assert [accepts(constraint, text) for text in (*valid, *invalid)] == [True] * len(valid) + [False] * len(invalid)


@pytest.mark.parametrize(
    "text",
    ["frob", 'root ::= "a', "root ::= foo", 'foo ::= "a"', r'root ::= "\q"', "root ::= <[10]>", 'root ::= "a\0b"',
     "root ::= " + "(" * 600 + '"a"' + ")" * 600],
)  # fmt: skip
def test_a_grammar_that_cannot_be_read_is_refused_by_a_sentence(text):
    with pytest.raises(ValueError, match=r"^cannot read the grammar: .") as error:
        byte_vocabulary().constraint(Grammar("gbnf", text, "the grammar"))
    assert len(str(error.value)) < 250


ANSWERED = {
    "texts": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "say": {"enum": ['say "hi"', "back\\slash", "new\nline", "tab\t", "😀"]},
            "code": {"type": "string", "pattern": r"^[A-Z]\d{2,4}-\w+$", "maxLength": 12},
            "any": {"type": "string", "pattern": "^a.b$"},
            "mail": {"type": "string", "format": "email", "maxLength": 16},
        },
        "required": ["name", "say", "code", "any", "mail"],
        "additionalProperties": False,
    },
    "numbers": {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 5},
            "x": {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
            "seven": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
            "maybe": {"type": ["null", "boolean"]},
        },
        "required": ["n", "x", "seven", "maybe"],
    },
    "a tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer", "minimum": 0, "maximum": 99},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                },
                "required": ["id"],
                "additionalProperties": False,
            }
        },
    },
    "options": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}, "v": {"type": each}}, "required": ["kind"]}
                for kind, each in (("int", "integer"), ("flag", "boolean"))
            ]
        },
    },
    "any object": {"type": "object"},
}  # fmt: skip


@all_of("case", ANSWERED)
def test_random_models_write_valid_answers_only(case):
    """At temperature 1.5, whatever the logits; most answers end."""
    schema, (vocabulary, decode) = ANSWERED[case], bundled_vocabulary()
    generator, ended, validator = torch.Generator().manual_seed(1), 0, Draft202012Validator(schema)
    for _ in range(20):
        ids = random_answer(vocabulary, vocabulary.constraint(schema_of(schema)), generator, 300)
        if ids is not None:
            validator.validate(json.loads(decode(ids)))
            ended += 1
    assert ended >= 10


def test_answers_are_a_function_of_the_tokens_whatever_was_asked_before():
    vocabulary, _ = bundled_vocabulary()
    grammar = schema_of(ANSWERED["texts"])
    constraint, generator = vocabulary.constraint(grammar), torch.Generator().manual_seed(3)
    texts = [random_answer(vocabulary, vocabulary.constraint(grammar), generator, 200) or [] for _ in range(4)]
    asked = [(text, n) for text in texts for n in range(len(text) + 1)]
    order = torch.randperm(len(asked), generator=generator).tolist()
    for text, n in (asked[i] for i in order[:60]):
        fresh = vocabulary.constraint(grammar)
        assert torch.equal(constraint.allowed(text[:n]), fresh.allowed(text[:n]))
        assert constraint.forced(text[:n], 99) == fresh.forced(text[:n], 99)
        assert constraint.may_end(text[:n]) == fresh.may_end(text[:n]) == (n == len(text))


def test_nothing_is_said_after_a_token_that_is_not_allowed_or_ends_the_response():
    constraint = byte_vocabulary().constraint(Grammar("regex", "ab?", "it"))
    assert constraint.allowed(b"a").nonzero().flatten().tolist() == [ord("b"), END]
    assert constraint.allowed(b"b") is None
    assert constraint.allowed([ord("a"), END]) is None
    assert constraint.allowed(b"abb") is None
    assert constraint.allowed([ord("a"), 999]) is None
    assert constraint.allowed(b"").nonzero().flatten().tolist() == [ord("a")]  # and it goes back
    assert constraint.allowed(b"ab").nonzero().flatten().tolist() == [END]


def test_forced_texts_are_spelled_by_the_model_s_own_tokens():
    tokens = [*BYTES, b'{"', b"na", b"name", b'": ']

    def encode(text: str) -> list[int]:
        """Know only the longest of a few words, and bytes."""
        ids = []
        while text:
            word = next(w for w in ("name", '": ', '{"', text[0]) if text.startswith(w))
            ids.append(tokens.index(word.encode()))
            text = text[len(word) :]
        return ids

    schema = {
        "type": "object",
        "properties": {"name": {"const": 1}},
        "required": ["name"],
        "additionalProperties": False,
    }
    vocabulary = small_vocabulary(tokens, encode)
    constraint = vocabulary.constraint(schema_of(schema))
    expected = [*(tokens.index(word) for word in (b'{"', b"name", b'": ', b"1", b"}")), len(tokens)]  # the end too
    assert constraint.forced([], 99) == expected
    assert constraint.forced([], 2) == expected[:2]
    assert constraint.allowed([256]).nonzero().flatten().tolist() == [258]
    assert constraint.allowed([256, ord("n")]) is None
    # a tokenizer that puts a space before texts, as SentencePiece does, does not spell them
    spaced = small_vocabulary([*tokens, b" name"], lambda text: [260, *encode(text)])
    assert spaced.constraint(schema_of(schema)).forced([], 5) == expected[:5]


def test_a_model_without_the_needed_bytes_is_told_so():
    vocabulary = small_vocabulary([bytes([i]) for i in range(128)])
    constraint = vocabulary.constraint(Grammar("regex", "ab?😀", "it"))
    with pytest.raises(
        ConstraintError, match="cannot go on after 2 tokens: the model has no token for what must follow"
    ):
        constraint.allowed([97, 98])
    with pytest.raises(
        ConstraintError, match="cannot go on after 0 tokens: the model has no token for what must follow"
    ):
        vocabulary.constraint(Grammar("regex", "😀", "it")).allowed([])
    with pytest.raises(ValueError, match="a constrained response needs a model with an end token"):
        GrammarVocabulary.of(tiny_tokenizer("byte_level"), 400, [])


def test_a_mask_that_takes_too_long_ends_the_response_by_a_sentence():
    schema = {"type": "object", "properties": {f"p{i}": TEXT for i in range(2000)}}
    constraint = byte_vocabulary().constraint(schema_of(schema))
    with pytest.raises(ConstraintError, match=r"the constraint gave up after [0-9]+ tokens: .*max is 2000"):
        constraint.allowed(list(b'{"p1": "x"'))


def test_limits_are_those_of_one_response():
    """A matcher's copies share their states: the responses of a server must not use up each other's."""
    vocabulary = byte_vocabulary()
    constraint = vocabulary.constraint(Grammar("regex", "(a|b|é){0,3000}", "it"))
    first = [each for each in "abé" * 300 for each in each.encode()]
    for copy in (constraint, constraint.copy()):
        assert copy.allowed(first) is not None
    assert constraint.copy()._matcher is not constraint._matcher


@all_of("kind", [kind for kind in TOKENIZERS if kind != "word_piece"])
def test_tokenizers_of_transformers_of_each_kind_are_read(kind):
    tokenizer = tiny_tokenizer(kind)
    text = "a cat has 3 cats"
    ids = tokenizer(text).input_ids
    vocabulary = GrammarVocabulary.of(tokenizer, len(tokenizer) + 5, [tokenizer.eos_token_id])
    constraint = vocabulary.constraint(Grammar("regex", f" ?{re.escape(text)}|b", "it"))
    for n in range(len(ids)):
        allowed = constraint.allowed(ids[:n])
        assert allowed is not None
        assert len(allowed) == len(tokenizer) + 5
        assert not allowed[len(tokenizer) :].any()
    assert constraint.allowed(ids).nonzero().flatten().tolist() == [tokenizer.eos_token_id]
    assert GrammarVocabulary.of(tokenizer, len(tokenizer) + 5, [tokenizer.eos_token_id]) is vocabulary


def test_a_tokenizer_whose_tokens_are_not_known_in_bytes_is_refused():
    with pytest.raises(ValueError, match=r"cannot constrain responses of a .*: it does not tell its tokens' bytes"):
        GrammarVocabulary.of(tiny_tokenizer("word_piece"), 400, [0])


def test_a_tokenizer_that_spells_as_sentence_piece_does_is_read_without_tokenizers_own_form():
    class Slow:
        all_special_ids = (0,)
        names = ("</s>", "▁yes", "▁", "n", "o", "<0x0A>")

        def __len__(self):
            return len(self.names)

        def convert_ids_to_tokens(self, token_id):
            return self.names[token_id]

    made = vocabulary_of(Slow(), [0])
    assert made.tokens == [b"</s>", b" yes", b" ", b"n", b"o", b"\n"]
    constraint = GrammarVocabulary(made.llguidance(), 6, [0]).constraint(Grammar("regex", " yes\n| no", "it"))
    assert constraint.allowed([]).nonzero().flatten().tolist() == [1, 2]
    assert constraint.forced([1], 99) == [5, 0]


def test_json_is_written_in_one_way():
    """What the pages say of spaces and escapes."""
    assert compiling.JSON_OPTIONS["item_separator"] == ", "
    constraint = byte_vocabulary().constraint(schema_of({"type": "object"}))
    given = {"a": [1, {"b": None}], "c": 'x"\\\n\tä😀', "d": -1.5}
    text = json.dumps(given, ensure_ascii=False)
    assert accepts(constraint, text)
    assert not accepts(constraint, json.dumps(given, indent=1, ensure_ascii=False))
    assert not accepts(constraint, text + " ")
