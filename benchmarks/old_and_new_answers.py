"""What one tree answers to the requests of `old_and_new.py`, in a process that finds no other tree.

    PYTHONPATH=TREE/src python old_and_new_answers.py PART TREE ASSETS REQUESTS ANSWERS

Trees are asked by public names only. Where such a name moves, `PATHS` lists where it was and where it is: the first
that can be imported is taken.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import io
import json
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PATHS = {
    "CactusLlama": (
        "cactus_decoding.integrations.llama_cpp:CactusLlama",
        "cactus_decoding.engines.llama_cpp:CactusLlama",
        "cactus_decoding:CactusLlama",
    ),
    "write_bundled": ("scripts.bundled_gguf:write_bundled",),
}
"""Where names are that the package itself does not have."""
SERVE = """
import sys
from pathlib import Path
from old_and_new_answers import entry_point
tree = Path(sys.argv.pop(1))
sys.exit(entry_point(tree, "scripts", "cactus")())
"""
CONTEXT = 512
COUNTS = (
    "steps", "drafted", "accepted", "relaxed", "recovered", "bonus", "generated", "metered", "nats", "fell_back",
    "protected",
)  # fmt: skip
OF_THE_MOMENT = ("id", "created", "seconds", "tokens_per_second", "pass_times", "system_fingerprint")
"""What is another number each time."""
Answer = dict[str, Any]


def named(name: str) -> Any:
    """Return a public name from wherever this tree has it."""
    for path in PATHS[name]:
        with contextlib.suppress(ImportError, AttributeError):
            return resolved(path)
    raise ImportError(f"no {name} in {', '.join(PATHS[name])}: say where it is, in PATHS")


def resolved(path: str) -> Any:
    """Return what a path such as ``module:name`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def entry_point(tree: Path, group: str, name: str) -> Any:
    """Return what a tree's project file names as a command or a plug-in."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    return resolved((project["scripts"] if group == "scripts" else project["entry-points"][group])[name])


def counts(metrics: Any) -> Answer:
    """Return what a `Metrics` counted, times left out."""
    return {name: getattr(metrics, name) for name in COUNTS}


def plain(value: Any) -> Any:
    """Return a value as JSON: tensors as lists, records by their fields, others as text."""
    import torch

    if isinstance(value, torch.Tensor):
        return plain([str(value.dtype), value.tolist()])
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items() if name not in OF_THE_MOMENT}
    if type(value).__name__ == "Request":
        names = ("rule", "verification", "num_speculative_tokens", "tree", "max_new_tokens", "stop", "seed", "sampling")
        return {name: plain(getattr(value, name)) for name in names} | {"budget": plain(value.budget)}
    if type(value).__name__ == "Budget":
        return [value.limit, value.expected_tokens, value.max_relaxed]
    if type(value).__name__ == "SamplingParams":
        return [value.temperature, value.top_k, value.top_p, value.min_p]
    if type(value).__name__ == "Audit":
        return {name: plain(each) for name, each in vars(value).items()}
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def safely(act: Callable[[], Any]) -> Answer:
    """Return what is answered, or that it is refused and how, or that it failed in another way."""
    try:
        return {"answer": act()}
    except (TypeError, ValueError) as error:
        kind = "TypeError" if isinstance(error, TypeError) else "ValueError"
        return {"refused": kind, "said": str(error)[:2000]}
    except Exception as error:
        return {"failed": type(error).__name__, "said": str(error)[:2000]}


def in_turn(asks: list[Callable[[], Any]]) -> list[Answer]:
    """Return what is answered to one after another."""
    return [safely(each) for each in asks]


class Side:
    """A tree, and the files of models that both trees read.

    Attributes:
        tree: the folder of its checkout.
        assets: folder of ``target``, ``worded`` and ``draft`` in Hugging Face's format, and of their GGUF files.
    """

    def __init__(self, tree: Path, assets: Path) -> None:
        self.tree, self.assets = tree, assets
        self.importance = str(next(assets.glob("*importance*")))

    def gguf(self, name: str) -> str:
        """Return a file's name with settings under which rows do not depend on how many tokens are read at once."""
        return f"{self.assets / name}.gguf:cache=float32,context_size={CONTEXT},threads=1"

    def settings(self, given: Answer) -> Answer:
        """Return settings with the file of importance in its place."""
        return given | ({"importance": self.importance} if given.get("importance") is True else {})


# --- the bundled pair, and GGUF files as a pair ---


@cache
def pair_of(target: str | None, draft: str | None, kept_prompts: int) -> Any:
    """Return a pair, once for all requests."""
    from cactus_decoding import load_pair

    return load_pair(target, draft, kept_prompts=kept_prompts)


def response_of(response: Any) -> Answer:
    """Return all of a finished response but its times."""
    told = {name: getattr(response, name) for name in ("token_ids", "text", "finish_reason", "budget_left")}
    return told | {"fates": [each.name for each in response.fates]} | counts(response.metrics)


def respond(pair: Any, turn: Answer, side: Side) -> Answer:
    """Return a response of a pair."""
    from cactus_decoding import generate

    return response_of(generate(pair, turn["prompt"], **side.settings(turn["settings"])))


def answer_generate(side: Side, ask: Answer) -> Any:
    """Answer by the bundled pair."""
    pair = pair_of(None, ask["draft"], ask["kept_prompts"])
    pair.forget()
    return in_turn([partial(respond, pair, turn, side) for turn in ask["turns"]])


def take_turns(pair: Any, turns: list[Answer], side: Side) -> list[Answer]:
    """Return two responses of twins, whose steps take turns."""
    from cactus_decoding import stream

    pairs = (pair, pair.twin())
    responses = [
        stream(p, turn["prompt"], **side.settings(turn["settings"])) for p, turn in zip(pairs, turns, strict=True)
    ]
    going = list(responses)
    while going:
        going = [each for each in going if next(each, None) is not None]
    return [response_of(each) for each in responses]


# --- CactusLlama ---


@cache
def llama_of(side: Side, draft: str, kept_prompts: int, logits_all: bool) -> Any:
    """Return a `CactusLlama`, once for all requests."""
    given = {"n_ctx": CONTEXT, "n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "verbose": False}
    by = draft if draft in ("suffix", "ngram") else side.gguf(draft)
    path = side.assets / "target.gguf"
    return named("CactusLlama")(path, draft=by, kept_prompts=kept_prompts, logits_all=logits_all, **given)


def no_digits(ids: Any, scores: Any) -> Any:
    """Forbid some tokens."""
    scores[20:30] = -1e9
    return scores


def call_llama(side: Side, llama: Any, kind: str, text: str, options: Answer) -> Answer:
    """Return what a call gives, and what it counted."""
    from llama_cpp import LlamaGrammar, LogitsProcessorList, StoppingCriteriaList

    given = side.settings(dict(options))
    if "grammar" in given:
        given["grammar"] = LlamaGrammar(_grammar=given["grammar"])
    if given.pop("processors", None):
        given["logits_processor"] = LogitsProcessorList([no_digits])
    if given.pop("criteria", None):
        given["stopping_criteria"] = StoppingCriteriaList([lambda ids, logits: len(ids) >= 50])
    given.pop("max_new_tokens", None)
    usual, format = llama.chat_format, given.pop("chat_format", None)
    llama.chat_format = format or usual
    try:
        if kind == "chat":
            said = llama.create_chat_completion([{"role": "user", "content": text}], **given)
        else:
            said = llama.create_completion(text, **given)
        whole = list(said) if given.get("stream") else said
    finally:
        llama.chat_format = usual
    return {"said": plain(without_moment(whole)), "usage": plain(llama.usage)} | counts(llama.metrics)


def answer_gguf(side: Side, ask: Answer) -> Any:
    """Answer by `CactusLlama`, or by `load_pair` on the same files."""
    if ask["kind"] in ("llama", "chat"):
        logits_all = any("logprobs" in call["options"] for call in ask["calls"])
        llama = llama_of(side, ask["draft"], ask["kept_prompts"], logits_all)
        llama.forget()
        calls = [partial(call_llama, side, llama, ask["kind"], call["text"], call["options"]) for call in ask["calls"]]
        return in_turn(calls)
    draft = ask["draft"] if ask["draft"] in ("suffix", "ngram") else side.gguf(ask["draft"])
    pair = pair_of(side.gguf("target"), draft, ask["kept_prompts"])
    pair.forget()
    if ask["kind"] == "twins":
        return take_turns(pair, ask["turns"], side)
    return in_turn([partial(respond, pair, turn, side) for turn in ask["turns"]])


# --- malformed arguments ---


def answer_arguments(side: Side, ask: Answer) -> Any:
    """Call public names; what is called is an expression of `old_and_new_requests`."""
    return eval(ask["call"], names_of_calls())


@cache
def names_of_calls() -> dict[str, Any]:
    """Return what expressions may name."""
    import numpy as np
    import torch

    import cactus_decoding as package

    def rows(*shape: int) -> Any:
        return torch.full((*shape, 4), 0.25)

    def drawn(seed: int, *shape: int) -> Any:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(-1)

    def ids(seed: int, *shape: int) -> Any:
        probs = drawn(seed + 9, *shape)
        flat = torch.multinomial(probs.flatten(0, -2), 1, generator=torch.Generator().manual_seed(seed))
        return flat.view(shape[:-1])

    def with_last(tensor: Any, value: float) -> Any:
        changed = tensor.clone()
        changed[..., -1] = value
        return changed

    ours = {name: getattr(package, name) for name in package.__all__}
    own = {"plain": plain, "said": response_of, "pair": partial(pair_of, None, None, 0), "rows": rows, "drawn": drawn}
    own |= {"ids": ids, "with_last": with_last, "nan": math.nan, "inf": math.inf, "np": np, "torch": torch}
    return ours | own | {"Decimal": Decimal, "Fraction": Fraction}


# --- transformers ---


@cache
def model_of(side: Side, name: str, number: int) -> Any:
    """Return a model: target (0) or draft (1), the bundled ones or random ones of 8 tokens in float64."""
    import torch
    import transformers

    if name == "bundled":
        path = side.assets / ("target", "worded")[number]
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    torch.manual_seed(number)
    shape = {"vocab_size": 8, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **shape)
    else:
        made = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[name]
        shape |= {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "max_position_embeddings": 64}
        config = made(num_attention_heads=2, num_key_value_heads=1, attn_implementation="eager", **shape)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # or rows would be nearly uniform
        model.get_output_embeddings().weight.mul_(6.0 if name != "gpt2" else 2.0)
    return model


@cache
def tokenizer_of(side: Side, name: str) -> Any:
    """Return a model's tokenizer."""
    import transformers

    if name == "bundled":
        return transformers.AutoTokenizer.from_pretrained(side.assets / "target")
    return small_tokenizer()


def small_tokenizer(words: str = "a < > 3 b 5 c d", **special: str) -> Any:
    """Return a tokenizer whose tokens are these words."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(words.split())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words.split()[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


class Tape:
    """A streamer that keeps what it gets."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def put(self, value: Any) -> None:
        """Keep tokens."""
        self.pieces.append(value.tolist())

    def end(self) -> None:
        """Keep that it ended."""
        self.pieces.append("end")


def not_second_last(input_ids: Any, scores: Any) -> Any:
    """Forbid the token before the last."""
    if input_ids.shape[1] > 1:
        scores[:, input_ids[0, -2]] = -math.inf
    return scores


def answer_transformers(side: Side, ask: Answer) -> Any:
    """Answer by `generate` with our `speculative_generate`."""
    import torch

    import cactus_decoding

    model, options = model_of(side, ask["model"], 0), side.settings(dict(ask["options"]))
    tokenizer, metrics = tokenizer_of(side, ask["model"]), cactus_decoding.Metrics()
    text = ask["prompt"]
    ids = torch.tensor([tokenizer(text).input_ids if isinstance(text, str) else text])
    padding = options.pop("padding", 0)
    options["attention_mask"] = torch.tensor([[0] * padding + [1] * ids.shape[1]])
    ids = torch.cat([torch.zeros(1, padding, dtype=torch.long), ids], 1)
    if "assistant" in options:
        options["assistant_model"] = model_of(side, ask["model"], options.pop("assistant"))
    if "drafter" in options:
        options["drafter"] = eval(options["drafter"], vars(cactus_decoding) | names_of_calls())
    if options.pop("processors", None):
        options["logits_processor"] = [not_second_last]
    if options.pop("criteria", None):
        options["stopping_criteria"] = [lambda ids, scores, **_: torch.tensor([ids.shape[1] >= 40])]
    if options.pop("prefix_allowed", None):
        options["prefix_allowed_tokens_fn"] = lambda _, ids: [int(ids[-1] + 1) % 8, int(ids[-1] + 2) % 8]
    if options.pop("streamer", None):
        options["streamer"] = Tape()
    stops = options.pop("stop_strings", None)
    if "max_length" in options:
        options.pop("max_new_tokens", None)
    custom = partial(cactus_decoding.speculative_generate, tokenizer=tokenizer, stop_strings=stops)
    torch.manual_seed(0)
    given = model.generate(ids, custom_generate=custom, metrics=metrics, **options)
    told = getattr(options.get("streamer"), "pieces", None)
    said = {"kind": type(given).__name__, "token_ids": getattr(given, "sequences", given).tolist(), "streamed": told}
    return said | counts(metrics)


# --- the server ---


def without_moment(value: Any) -> Any:
    """Return JSON without what is another number each time."""
    if isinstance(value, dict):
        return {
            name: re.sub(r"[0-9a-f]{16,}", "", each) if name == "id" and isinstance(each, str) else without_moment(each)
            for name, each in value.items()
            if name == "id" or (name not in OF_THE_MOMENT and not name.endswith("_seconds"))
        }
    return [without_moment(each) for each in value] if isinstance(value, list) else value


class Server:
    """`cactus serve` in a process of its own; its keys are ``one`` and ``other``."""

    def __init__(self, side: Side, *options: str) -> None:
        given = ["serve", side.gguf("target"), "--draft", side.gguf("worded"), "--engine", "llama-cpp"]
        given += ["--threads", "1", "--port", "0", "--num-speculative-tokens", "4", "--api-key", "one"]
        given += ["--api-key", "other", *options]
        here = str(Path(__file__).parent)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], here))}
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        command = [sys.executable, "-c", SERVE, str(side.tree), *given]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment)
        assert self.process.stdout is not None
        announced = self.process.stdout.readline()
        found = re.search(r"http://[^/ ]+:(\d+)", announced)
        if found is None:
            self.log.seek(0)
            raise RuntimeError(f"cactus serve does not say where it listens: {announced}{self.log.read()}")
        self.port = int(found[1])

    def ask(self, ask: Answer) -> Answer:
        """Return status, and what is said: parts of a stream, JSON, or a text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = ask["raw"] if "raw" in ask else json.dumps(ask.get("body", {}))
        headers = {"Content-Type": "application/json"}
        if (key := ask.get("key", "one")) is not None:
            headers["Authorization"] = f"Bearer {key}"
        method = ask.get("method", "POST")
        try:
            connection.request(method, ask["path"], data.encode() if method == "POST" else None, headers)
            response = connection.getresponse()
            kind, text = response.getheader("content-type") or "", response.read().decode()
        finally:
            connection.close()
        if "event-stream" in kind:
            lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
            said: Any = [json.loads(line) if line.startswith("{") else line for line in lines]
        elif "json" in kind:
            said = json.loads(text)
        else:
            said = counted(text) if ask["path"] == "/metrics" else text
        if response.status >= 400:
            return {"refused": f"status {response.status}", "said": json.dumps(said)[:2000]}
        return {"answer": plain(without_moment(said)), "status": response.status}

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def counted(text: str) -> dict[str, float]:
    """Return counters of our own, without times."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("cactus_")]
    return {name: round(float(value), 5) for name, _, value in lines if "seconds" not in name and "created" not in name}


@contextlib.contextmanager
def servers(side: Side) -> Iterator[dict[str, Server]]:
    """Run two servers: one that keeps no prompts, so that no request's answer depends on another, and one that does."""
    running: dict[str, Server] = {}
    try:
        running["alone"] = Server(side, "--kept-prompts", "0", "--parallel", "2")
        running["kept"] = Server(side, "--kept-prompts", "2", "--parallel", "2")
        yield running
    finally:
        for each in running.values():
            each.close()


def without_numbers(value: Any) -> Any:
    """Return JSON without what differs in its last digits with how many requests are read together."""
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in ("logprobs", "metrics")}
        return {name: without_numbers(each) for name, each in kept.items()}
    return [without_numbers(each) for each in value] if isinstance(value, list) else value


def answer_server(running: dict[str, Server], ask: Answer) -> Answer:
    """Ask a server, for several requests at once where they are together."""
    if "together" in ask:
        with ThreadPoolExecutor(len(ask["together"])) as pool:
            return {"answer": without_numbers(list(pool.map(running["alone"].ask, ask["together"])))}
    return running[ask.get("server", "alone")].ask(ask)


# --- the command line ---


def answer_commands(side: Side, ask: Answer) -> Answer:
    """Call the command line in this process; a text that is no JSON counts as wording."""
    import torch

    arguments = [each.replace("IMPORTANCE", side.importance) for each in ask["arguments"]]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = entry_point(side.tree, "scripts", "cactus")(arguments)
        except SystemExit as error:
            code = error.code
    torch.set_num_threads(1)
    if code:
        return {"refused": f"exit code {code}", "said": err.getvalue()[:2000]}
    try:
        told = plain(without_moment(json.loads(out.getvalue())))
        told.pop("arguments", None)  # what was asked
    except ValueError:
        told = None
    return {"answer": told, "said": out.getvalue()[:2000] if told is None else ""}


# --- vLLM's sampler ---


@cache
def seams_of(tree: Path) -> None:
    """Have a tree's plug-in install itself, and do what a CPU worker does before it samples."""
    from vllm.platforms import current_platform

    entry_point(tree, "vllm.general_plugins", "cactus_decoding")()
    current_platform.register_triton_kernel_overrides()


def answer_vllm(side: Side, ask: Answer) -> Any:
    """Take steps of vLLM's own V1 sampler, in which the plug-in relaxes the rows of requests that ask for it."""
    import torch
    import vllm.tokenizers
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample import logits_processor
    from vllm.v1.sample.logits_processor import BatchUpdate

    seams_of(side.tree)
    words = small_tokenizer("a < > 3 b 5 { } : c d e f g h i no") if ask["words"] else None
    vllm.tokenizers.cached_tokenizer_from_config = lambda *_, **__: words
    size, asked = 17, ask["requests"]
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(rejection_sample_method="standard", num_speculative_tokens=4),
        additional_config={"acceptance_metrics": False} | ask["default"],
        scheduler_config=SimpleNamespace(max_num_seqs=64),
        model_config=SimpleNamespace(skip_tokenizer_init=words is None, get_vocab_size=lambda: size),
    )
    processors = logits_processor.build_logitsprocs(config, torch.device("cpu"), False, False)
    written: list[list[int]] = [[] for _ in asked]
    params = [SamplingParams(temperature=each["temperature"], extra_args=each["keys"] or None) for each in asked]
    added = [(index, each, [1], written[index]) for index, each in enumerate(params)]
    for each in processors.argmax_invariant:
        each.update_state(BatchUpdate(len(added), removed=[], added=added, moved=[]))
    draws = torch.Generator().manual_seed(ask["seed"])
    generators = {index: torch.Generator().manual_seed(index) for index in range(len(asked))}
    torch.manual_seed(ask["seed"])
    for _ in range(ask["steps"]):
        tokens = sampled(ask, processors, draws, generators, written, size)
        for own, new in zip(written, tokens, strict=True):
            own += [token for token in new if token >= 0]
    own = [each.counted() for each in processors.argmax_invariant if hasattr(each, "counted")]
    return {"token_ids": written, "counted": plain(own)}


def sampled(
    ask: Answer, processors: Any, draws: Any, generators: Any, written: list[list[int]], size: int
) -> list[list[int]]:
    """Return the tokens that one step gives each request, -1 after the last."""
    import torch
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    requests, drafted = len(ask["requests"]), ask["drafted"]
    rows = drafted + 1
    logits = torch.randn(requests, rows, size, generator=draws) * 2
    probs = torch.randn(requests * drafted, size, generator=draws).softmax(-1)
    ids = torch.multinomial(probs, 1, generator=draws).flatten()
    temperature = torch.tensor([each["temperature"] for each in ask["requests"]])
    top_k = torch.tensor([each["top_k"] or size for each in ask["requests"]], dtype=torch.int32)
    none = torch.tensor([])
    sampling = SamplingMetadata(
        temperature=temperature,
        all_greedy=bool((temperature == 0).all()),
        all_random=bool((temperature > 0).all()),
        top_p=None,
        top_k=top_k if bool((top_k < size).any()) else None,
        generators=generators,
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=written,
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=processors,
    )
    places = torch.arange(requests * rows).view(requests, rows)
    number = torch.arange(1, requests + 1, dtype=torch.int32)
    step = SpecDecodeMetadata(
        draft_token_ids=ids.to(torch.int32),
        num_draft_tokens=[drafted] * requests,
        cu_num_draft_tokens=number * drafted,
        cu_num_sampled_tokens=number * rows,
        target_logits_indices=places[:, :-1].flatten(),
        bonus_logits_indices=places[:, -1],
        logits_indices=places.flatten(),
    )
    sampler = rejection_sampler.RejectionSampler(Sampler())
    given = sampler(step, None if ask["one_hot"] else probs, logits.view(-1, size), sampling)
    tokens: list[list[int]] = given.sampled_token_ids.tolist()
    return tokens


# --- the process ---


def write_assets(tree: Path, folder: Path) -> None:
    """Copy a tree's bundled models, and write them as float32 GGUF files."""
    import shutil

    sys.path.insert(0, str(tree))
    names = {each.parent.name: each.parent for each in tree.glob("src/**/word_problems/*/config.json")}
    folder.mkdir(parents=True)
    for name, path in names.items():
        shutil.copytree(path, folder / name)
        written = named("write_bundled")(name, folder / "written", "float32")
        shutil.move(written, folder / f"{name}.gguf")
    for path in tree.glob("src/**/word_problems/*importance*.safetensors"):
        shutil.copy(path, folder)


@contextlib.contextmanager
def answering(part: str, side: Side) -> Iterator[Callable[[Answer], Answer]]:
    """Return what answers the requests of a part."""
    if part == "server":
        with servers(side) as running:
            yield partial(answer_server, running)
        return
    answers: dict[str, Callable[[Side, Answer], Any]] = {
        "generate": answer_generate, "arguments": answer_arguments, "gguf": answer_gguf, "vllm": answer_vllm,
        "transformers": answer_transformers, "commands": answer_commands,
    }  # fmt: skip
    act = answers[part]

    def answer(ask: Answer) -> Answer:
        import torch

        torch.manual_seed(0)  # for what is given no generator
        return act(side, ask) if part == "commands" else safely(lambda: act(side, ask))

    yield answer


def main(part: str, tree: Path, assets: Path, requests: Path, answers: Path) -> None:
    """Write an answer to each request, a line each; say now and then how far it is."""
    warnings.simplefilter("ignore")
    logging.disable()
    if part == "assets":
        return write_assets(tree, assets)
    import cactus_decoding

    if tree not in Path(cactus_decoding.__file__).parents:
        raise RuntimeError(f"cactus_decoding comes from {cactus_decoding.__file__}, not from {tree}")
    asked = [json.loads(line) for line in requests.read_text().splitlines()]
    began = said = time.monotonic()
    with answering(part, Side(tree, assets)) as act, answers.open("w") as file:
        for number, ask in enumerate(asked, 1):
            file.write(json.dumps(act(ask)).replace(str(assets), "MODELS") + "\n")
            if time.monotonic() - said > 15 or number == len(asked):
                said = time.monotonic()
                print(f"  {part}: {number} of {len(asked)}, {said - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *(Path(each) for each in sys.argv[2:]))
