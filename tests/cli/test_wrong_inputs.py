"""What a careless user types: exit code 2, one whole sentence, at once, and nothing that existed is damaged."""

from __future__ import annotations

import json
import os
import socket

import pytest
from support.command_line import process
from support.patience import PATIENCE
from support.result_files import several, write
from support.tables import groups_of

from cactus_decoding import zoo
from cactus_decoding.cli.app import app
from cactus_decoding.cli.help import commands_of

GENERATE = ("generate", "How many?")
FRONTIER = ("frontier", "--output", "new.json")
EVAL = ("eval", "--output", "new.jsonl")
WORDED = ("train-draft", "--target", "bundled", "--output", "new", "--draft", "bundled:worded")
TASK = ("--data", "word_problems:split=train")
SCHEMA = (*GENERATE, "--json-schema")
CHOICES = (*GENERATE, "--choices")
WIDE = ("--rule", "clamped:width=2")
RELAXED = (*GENERATE, "--rule", "cactus:delta=1", "--top-p", "0.9")

CASES = [
    # names
    (("evall",), "did you mean 'eval'?"),
    ((*GENERATE, "--num-spec", "3"), "did you mean '--num-speculative-tokens'?"),
    ((*GENERATE, "--max-new-tokens", "many"), "--max-new-tokens must be an integer, but is 'many'"),
    ((*EVAL, "--num-speculative-tokens", "0,4,x"), "unknown draft length 'x'"),
    ((*GENERATE, "--rul", "lossless"), "there is no option --rul; did you mean '--rule'?"),
    ((*GENERATE, "--rule", "cactos"), "did you mean 'cactus'?"),
    ((*GENERATE, "--rule", "cactus:dleta=1"), "did you mean 'delta'?"),
    ((*GENERATE, "--rule", "fly:window=3"), "'fly' is no rule, but a way to verify: --verification fly:window=3"),
    ((*GENERATE, "--verification", "cactus:delta=1"), "is no way to verify, but a rule: --rule cactus:delta=1"),
    ((*EVAL, "--verification", "fly"), "num_speculative_tokens is 6: give at least 7, or a smaller window"),
    ((*GENERATE, "--verification", "fly", "--trace", "new.jsonl"), "which under fly nobody knows"),
    (("serve", "some/model", "--shared-prompts"), "--shared-prompts is for --engine llama-cpp, but the engine is vllm"),
    (("serve", "big-q4_k_m.gguf", "--draft-sampling", "greedy"), "--draft-sampling is for --engine vllm, but"),
    ((*GENERATE, "--draft", "ngrm"), "did you mean 'ngram'?"),
    (("serve", "some/model", "--tree", "static=2.2"), "so there is no --tree: give --num-speculative-tokens"),
    ((*GENERATE, "--draft", "early_exit:layers=99"), "an early exit must be before layer 6"),
    ((*GENERATE, "--target", "ngram", "--draft", "ngram"), "'ngram' is a draft; give --draft ngram"),
    ((*GENERATE, "--target", "bundle"), "did you mean 'bundled'?"),
    ((*GENERATE, "--target", "./modle", "--draft", "ngram"), "did you mean 'model'?"),
    ((*GENERATE, "--target", "big-q4_0.gguf"), "there is no file 'big-q4_0.gguf'; did you mean 'big-q4_k_m.gguf'?"),
    ((*GENERATE, "--target", "./big-q4_k_m.ggu"), "did you mean 'big-q4_k_m.gguf'?"),
    ((*GENERATE, "--target", "./model", "--draft", "ngram"), "holds no model (there is no config.json)"),
    ((*GENERATE, "--target", "data.jsonl", "--draft", "ngram"), "is a file, but a model is a folder"),
    ((*GENERATE, "--target", "gpt22", "--draft", "ngram"), "'gpt22' was not fetched before"),
    # numbers
    ((*GENERATE, "--seed", "-1"), "--seed must be "),
    ((*GENERATE, "--budget", "1"), "the lossless rule spends nothing of a budget"),
    ((*GENERATE, "--rule", "relaxed_greedy:margin=1"), "temperature 0"),
    ((*GENERATE, "--stop", "\udcff"), "--stop must be UTF-8 text"),
    (("generate", "\udcff"), "the prompt must be UTF-8 text, but byte 0 is 0xff"),
    (("generate", " \n"), "the prompt must not be blank (with --raw it may)"),
    ((*GENERATE, "--budget", "nan", *WIDE), "--budget must be "),
    ((*GENERATE, "--budget", "1", "--max-shift", "0.1", *WIDE), "exclude each other"),
    ((*GENERATE, "--expected-tokens", "9", *WIDE), "give --budget or --max-shift too"),
    (("tune", "ngram"), "'ngram' is a draft"),
    ((*EVAL, *WIDE, "--verification", "block", "--num-speculative-tokens", "confidence"), "a fixed number of"),
    ((*EVAL, *WIDE, "--verification", "coupled", "--num-speculative-tokens", "auto"), "a fixed number of proposals"),
    ((*GENERATE, *WIDE, "--verification", "coupled", "--tree", "best_first"), "a fixed number of proposals"),
    (("demo", "--protect", "xyzzy", "--problems", "1"), "it would protect nothing"),
    (("conform",), "give an ENGINE"),
    (("conform", "--bad"), "there is no option --bad (see 'cactus conform --help')"),
    (("trace", "gone.jsonl"), "an interrupted response left"),
    (("trace", "data.jsonl"), "data.jsonl, line 1: this is not a trace of cactus generate --trace"),
    (("play", "--draft", "gpt2"), "--draft gpt2 needs --target"),
    (("play", "--port", "70000"), "--port"),
    ((*FRONTIER, "--protect-threshold", "0.1"), "give --protect too"),
    ((*FRONTIER, "--at", "nats=1"), "--at must be one of kl, acceptance, but is 'nats'"),
    ((*FRONTIER, "--at", "kl"), "--at must be kl=NATS or acceptance=P, such as kl=0.05, but is 'kl'"),
    (("calibrate", "--max-nats", "1"), "it is gone: use 'cactus frontier --at kl=0.05', which prints the rule to type"),
    (("demo", "--verbose"), "it is gone: use 'cactus eval', with --all"),
    (("report", "--output", "new.html"), "give result files of cactus eval, --frontier with one of cactus frontier"),
    (("generate",), "PROMPT is missing (see 'cactus generate --help')"),
    (("gen", "x"), "there is no command 'gen'; did you mean 'generate'?"),
    (("xyz",), "there is no command 'xyz'; commands are generate, "),
    (("--rule", "lossless"), "--rule must follow a command"),
    ((*GENERATE, "--rule"), "--rule needs a value"),
    (("generate", "two", "words"), "too many arguments: words; a text of several words needs quotes"),
    ((*EVAL, "--seeds", "0,1,x"), "but 'x' of '0,1,x' is not"),
    (("conform", "transformerz"), "did you mean 'transformers'?"),
    # answers of a form
    ((*SCHEMA, "garbage"), "must be a JSON schema, but is no JSON"),
    ((*SCHEMA, "none"), "cannot read"),
    ((*SCHEMA, "person.json"), "the JSON schema of person.json: type at #/properties/name must be one of array"),
    ((*SCHEMA, "garbage", "--regex", "a"), "--json-schema and --regex exclude each other"),
    ((*GENERATE, "--regex", "a", "--trace", "t"), "--trace goes neither with --json-schema nor with --regex"),
    ((*CHOICES, "a,b", "--trace", "t"), "--trace goes neither"),
    ((*CHOICES, "a,b", "--regex", "a"), "--choices goes neither with --json-schema nor with --regex"),
    ((*CHOICES, "a,,b"), "--choices must be 1 to 256 texts that are not empty"),
    ((*CHOICES, "[1]"), "--choices must be a list of texts, but is [1]"),
    ((*CHOICES, '["a"'), "--choices must be texts with commas between them, or a JSON list"),
    ((*GENERATE, "--chat", "--raw"), "--raw and --chat exclude each other: give one of them"),
    # where things are written
    ((*GENERATE, "--trace", "missing/trace.jsonl"), "its folder is missing"),
    ((*GENERATE, "--trace", "-"), "it would be a file of that name"),
    (("eval", "--output", "model"), "is a directory"),
    (("eval", "--output", "data.jsonl", "--task", "jsonl:path=data.jsonl,extract=none"), "is an input"),
    (("frontier", "--output", "data.jsonl", "--task", "jsonl:path=data.jsonl"), "is an input"),
    (("eval", "--output", "garbage"), "garbage, line 1: this is not JSON"),
    ((*FRONTIER, "--picture", "new.json"), "outputs must be different files"),
    ((*FRONTIER, "--rows", "garbage"), "is not a file of rows"),
    (("report", "results.jsonl", "--output", "link.jsonl"), "is an input; give another output"),
    ((*FRONTIER, "--picture", "p.png"), "--picture is written as .svg, but 'p.png' ends in '.png'"),
    (("trace", "data.jsonl", "--output", "new.pdf"), "--output is written as .html, but 'new.pdf' ends in '.pdf'"),
    # what is read
    (("report", "model", "--output", "new.html"), "Is a directory"),
    (("report", "results.jsonl", "link.jsonl", "--output", "new.html"), "link.jsonl, line 1: this run is also in"),
    (("report", "empty.jsonl", "--output", "garbage"), "empty.jsonl: there is no finished run in this file"),
    ((*EVAL, "--task", "jsonl:path=long.jsonl"), "'1': the prompt must be shorter than the target's 1024 positions"),
    ((*EVAL, "--lm-eval", "gsm9k"), "unknown task of lm-evaluation-harness: gsm9k; did you mean 'gsm8k'?"),
    ((*EVAL, "--lm-eval-path", "nowhere"), "'--lm-eval-path'"),
    ((*EVAL, "--task", "word_problem"), "did you mean 'word_problems'?"),
    ((*EVAL, "--task", "word_problems:splt=test"), "did you mean 'split'?"),
    ((*EVAL, "--task", "gsm8k:path=data.jsonl"), "'question' is missing"),
    ((*EVAL, "--task", "jsonl:path=data.jsonl"), "it is not said how it is read: add extract=last_number"),
    ((*EVAL, "--engine-args", "{}"), "--engine-args is for --engine vllm"),
    ((*EVAL, "--engine", "llama-cpp"), "reads GGUF files"),
    (("serve", "some/model", "--parallel", "2"), "--parallel is for --engine llama-cpp"),
    (("serve", "--rule", "typical"), "typical"),
    (("play", "--no-browser", "--draft", "bundled:wordy", "--port", "0"), "did you mean 'bundled:worded'?"),
    (("serve", "some/model", "--draft", "suffix"), "vLLM takes a draft model or 'ngram'"),
    (("serve", "some/model", "--api-key", ""), "--api-key must not be empty"),
    (("serve", "some.gguf", "--alias", " "), "--alias must not be empty"),
    (("serve", "--engine", "lama-cpp"), "did you mean 'llama-cpp'?"),
    (("serve", "--paralel", "2"), "there is no option --paralel; did you mean '--parallel'?"),
    (("play", "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
    (("rules", "cactus"), "too many arguments: "),
    # a draft that is trained
    ((*WORDED, *TASK, "--loss", "kll"), "did you mean 'kl'?"),
    ((*WORDED, "--data", "word_problems"), "held out for tests: learn from word_problems:split=train"),
    ((*WORDED, "--data", "missing.jsonl"), "missing.jsonl: No such file"),
    (
        ("train-draft", "--target", "x.gguf", "--output", "new", "--draft", "y", "--data", "word_problems:split=train"),
        "'x.gguf' is a GGUF file, which only llama.cpp reads",
    ),
    ((*WORDED, *TASK, "--output", "model2"), "is there already"),
    ((*WORDED, *TASK, "--output", "garbage/x"), "is no folder"),
]  # fmt: skip


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Go to a folder with what lies about on a user's machine, and return what is in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "Question: one", "answer": 1}\n')
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "word " * 3000}))
    (tmp_path / "person.json").write_text('{"type": "object", "properties": {"name": {"type": "strng"}}}')
    (tmp_path / "garbage").write_bytes(b"garbage\n")
    (tmp_path / "empty.jsonl").touch()
    write(tmp_path / "results.jsonl", several())
    (tmp_path / "gone.jsonl.cactus-part").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "big-q4_k_m.gguf").touch()
    (tmp_path / "model2").symlink_to(zoo.path("target"))
    for link, target in {"link.jsonl": "results.jsonl", "circle": "circle", "nowhere": "missing/x"}.items():
        (tmp_path / link).symlink_to(target)

    def contents():
        return {path.name: path.read_bytes() if path.is_file() else path.lstat().st_mode
                for path in sorted(tmp_path.iterdir())}  # fmt: skip

    return contents


BY_COMMAND: dict[str, list] = {}
for given, said in CASES:
    BY_COMMAND.setdefault(given[0], []).append((given, said))


@groups_of("arguments, words", BY_COMMAND)
def test_a_wrong_input_is_one_sentence_and_harms_nothing(run, desk, arguments, words):
    before = desk()
    code, out, err = run(*arguments)
    assert words in err
    assert (code, out) == (2, "")
    assert (err.startswith("cactus: "), err.count("\n")) == (True, 1)
    assert not err.rstrip().endswith((":", ",", "(", "…", "...")), "the message is cut off"
    assert desk() == before


def test_there_are_cases_for_every_command_that_takes_anything():
    assert {arguments[0] for arguments, _ in CASES} >= {*commands_of(app)}


def test_a_hub_that_does_not_answer_is_one_sentence_within_seconds(desk):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections and says nothing
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
        environment |= {"HF_ENDPOINT": address, "HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        run = process("generate", "x", "--target", "some/model", "--draft", "ngram", env=environment)
        out, err = run.communicate(timeout=PATIENCE)
    assert (run.returncode, out) == (2, "")
    assert err == (
        "cactus: cannot load the target: 'some/model' was not fetched before, and the hub cannot be reached within 1 "
        "seconds\n"
    )
