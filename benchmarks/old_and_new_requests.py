"""The requests of `old_and_new.py`, part by part, as plain JSON: nothing here imports a tree that is compared.

What a request may not combine is left for both trees to refuse. What goes by measured times is left out (`BY_TIME`),
because no two runs of it need be equal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Ask = dict[str, Any]
BY_TIME = ("auto", "adaptive", "tree:adaptive")
"""Draft lengths and trees that go by measured times; every request below names another one."""
BODIES = Path(__file__).with_name("old_and_new_bodies.json")
"""Bodies of requests to servers, as clients send them and as they must not be."""

RULES = (
    "lossless", "cactus:delta=0.01", "cactus:delta=1", "cactus:delta=1,max_ratio=1.5", "cactus:delta=0.3,solver=exact",
    "cactus:delta=0.1,divergence=chi_square", "ensemble:weight=0.3", "lenience:lenience=0.6", "clamped:width=0.1",
    "clamped:width=2", "clamped:max_kl=0.1", "typical", "typical:recovery=sample", "top_k:k=2",
    "top_k:k=2,residual=mask", "cascade:alpha=0.1", "cascade:alpha=0.4,defer=chow", "fuzzy:threshold=0.3",
    "token_cascade:alpha=0.5", "fuzzy:threshold=0.1,divergence=kl", "kl_gate:threshold=0.1",
)  # fmt: skip
GREEDY_RULES = ("relaxed_greedy:margin=1", "big_little:rollback=2", "mars:ratio=0.9")
BATCHED_RULES = (
    "lossless", "cactus:delta=0.01", "cactus:delta=1", "cactus:delta=0.5,solver=exact", "clamped:width=1",
    "clamped:max_kl=0.1", "ensemble:weight=0.5", "lenience:lenience=0.5", "fuzzy:threshold=0.1",
    "kl_gate:threshold=0.1",
)  # fmt: skip
SAMPLINGS: tuple[Ask, ...] = (
    {},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 0},
)
BUDGETS: tuple[Ask, ...] = (
    {}, {}, {"budget_nats": 0.05}, {"budget_nats": 1.0}, {"max_shift": 0.3},
    {"budget_nats": 1.0, "expected_tokens": 24},
)  # fmt: skip
POLICIES: tuple[Ask, ...] = (
    {}, {}, {"protect": "digits"}, {"protect": "digits", "protect_threshold": 0.2}, {"lossless_tokens": 6},
    {"importance": True, "max_importance": 0.3}, {"importance": True, "importance_scale": True},
)  # fmt: skip
CHAINS = (0, 1, 2, 4, 7, "confidence")
TREES = ("static=2.2.1", "static=3.2.1,drawn=0", "static=2.2.2", "best_first,nodes=12", "best_first,nodes=6")
TREE_SCHEMES = ("token", "token", "token", "joint", "recursive", "traversal")
DRAFTS = ("bundled:worded",) * 8 + ("bundled:draft", "ngram", "suffix", "early_exit:layers=1")

NAMES, THINGS = ("Anna", "Tom", "Finn", "Sara", "Max", "Lily"), ("stamps", "pens", "nuts", "apples", "shells", "cards")
STORIES = (
    "{a} has {m} {t}. She gives away {n} {t}. How many {t} does {a} have left?",
    "{a} has {n} {t}. {b} owns 3 times as many {t} as {a}. How many {t} do they have together?",
    "{a} has {m} {t}. He gives away {n} {t}. He is given 6 more {t}. How many {t} does he have in the end?",
    "{a} buys {n} {t} that cost 3 dollars apiece. She gives the clerk {m} dollars. How much change does she get?",
)


def question(draw: random.Random) -> str:
    """Return a story such as the bundled models know, which ends in a question."""
    a, b = draw.sample(NAMES, 2)
    return draw.choice(STORIES).format(a=a, b=b, t=draw.choice(THINGS), n=draw.randint(2, 20), m=draw.randint(30, 99))


def prompt(draw: random.Random) -> str:
    """Return a question as the bundled models are asked."""
    return f"Question: {question(draw)}\nAnswer:"


INDEPENDENT = ("lossless", "ensemble", "lenience", "clamped")
"""Rules whose relaxed target does not depend on the drafted token, which steps that are judged jointly need."""
SCALED = ("cactus:delta=1", "clamped:width=2", "ensemble:weight=0.3")
"""Rules with a knob that importance can multiply."""


def settings(draw: random.Random, tokens: int, trees: bool = True) -> Ask:
    """Return settings of a `Request` by their flat names; one in ten may combine what does not go together."""
    return consistent({}, any_settings(draw, tokens, trees), draw)


def consistent(more: Ask, given: Ask, draw: random.Random) -> Ask:
    """Return settings with some more, as a rule changed so that they go together."""
    given = given | more
    if draw.random() < 0.1:
        return given
    if given.get("importance_scale"):
        given["rule"] = draw.choice(SCALED)
    if given.get("temperature") == 0 and given["rule"] in GREEDY_RULES:
        given["verification"] = "token"
        for name in ("max_shift", "expected_tokens"):
            given.pop(name, None)
    scheme, relaxes = given["verification"], given["rule"] != "lossless"
    if "expected_tokens" in given:
        given |= {"rule": "clamped:width=2", "verification": "token"}
    elif scheme == "fly":
        for name in ("budget_nats", "max_shift", *(name for each in POLICIES for name in each)):
            given.pop(name, None)
    elif scheme != "token" and relaxes:
        if not given["rule"].startswith(INDEPENDENT):
            given["rule"] = draw.choice(("clamped:width=2", "ensemble:weight=0.3", "lenience:lenience=0.6"))
        if scheme == "block":
            given["num_speculative_tokens"] = draw.choice((1, 2, 4, 7))
        else:
            given.pop("tree", None)
            given["tree"] = "static=2.2.2"
    return given


def any_settings(draw: random.Random, tokens: int, trees: bool = True) -> Ask:
    """Return random settings of a `Request`."""
    given: Ask = {**draw.choice(SAMPLINGS), **draw.choice(BUDGETS), **draw.choice(POLICIES), "rule": draw.choice(RULES)}
    if draw.random() < 0.1:
        given |= {"rule": draw.choice(GREEDY_RULES), "temperature": 0}
    if given["rule"] in GREEDY_RULES and draw.random() < 0.5:
        given |= {"budget_nats": 2.0, "max_relaxed": 2}
    given |= proposals(draw, trees)
    if draw.random() < 0.1:
        given["stop"] = draw.choice((["####"], [" left", "."], ["\n"]))
    return given | {"seed": draw.randrange(10**6), "max_new_tokens": tokens}


def proposals(draw: random.Random, trees: bool = True) -> Ask:
    """Return how much is proposed, and how it is verified."""
    if trees and draw.random() < 0.4:
        shape = draw.choice(TREES)
        by = {"tree": shape}
        return by | {"verification": draw.choice(TREE_SCHEMES)}
    if draw.random() < 0.05:
        return {"num_speculative_tokens": 7, "verification": "fly", "rule": "lossless"}
    return {"num_speculative_tokens": draw.choice(CHAINS), "verification": draw.choice(["token"] * 3 + ["block"])}


# --- the bundled pair ---


def generate_requests(draw: random.Random, count: int, tokens: int) -> Iterator[Ask]:
    """Yield responses of the bundled target with its drafts; now and then several in turn on kept prompts."""
    prompts = [prompt(draw) for _ in range(64)]
    for _ in range(count):
        draft = draw.choice(DRAFTS)
        trees = draft.startswith("bundled")
        turns = 1 if draw.random() < 0.95 else 3
        yield {
            "draft": draft,
            "kept_prompts": 0 if turns == 1 else draw.choice((1, 2)),
            "turns": [
                {"prompt": draw.choice(prompts), "settings": settings(draw, tokens, trees)} for _ in range(turns)
            ],
        }


# --- malformed arguments of public functions ---

NO_NUMBERS = (
    "None", "'1'", "b'1'", "True", "np.True_", "[1]", "(1,)", "{}", "1j", "np.array([0.5])", "torch.tensor(0.5)",
    "Decimal(1)", "object()",
)  # fmt: skip
OUT_OF_RANGE = (
    "nan", "-inf", "inf", "-1", "-0.5", "np.float32('nan')", "Fraction(-1, 3)", "-10**400", "10**400", "np.float64(-1)",
)  # fmt: skip
NUMBERS = (
    "0", "1", "2", "0.5", "1.0", "np.int64(1)", "np.int32(1)", "np.uint8(1)", "np.float64(1)", "np.float32(0.5)",
    "np.float16(1)", "Fraction(1)", "Fraction(1, 2)",
)  # fmt: skip
VALUES = (*NO_NUMBERS, *OUT_OF_RANGE, *NUMBERS)
TEXTS = (
    "''", "' '", "'x'", "'none'", "'cactis'", "'digits'", "'auto_'", "'-5'", "'++5'", "'5.5'", "'1e3'", "'6'",
    "'\\ud800'", "'9' * 5000", "['x']", "['']", "['x', 3]", "[]", "('<a>', '</a>')", "['<a>', '<a>']", "[5, 6]",
    "[5, -6]",
)  # fmt: skip
KNOBS = {
    "Cactus": {"delta": "1", "solver": None, "divergence": None, "max_ratio": None},
    "ClampedRatio": {"width": None, "max_kl": None},
    "Ensemble": {"weight": "1"},
    "Lenience": {"lenience": "1"},
    "Typical": {"threshold": None, "alpha": None, "recovery": None},
    "TopK": {"k": "1", "residual": None},
    "RelaxedGreedy": {"margin": "1", "top": None, "per": None},
    "Cascade": {"alpha": "1", "defer": None, "temperature": None},
    "TokenCascade": {"alpha": "1", "version": None, "coupling": None, "temperature": None},
    "Fuzzy": {"threshold": "1", "divergence": None, "top": None, "closed": None, "temperature": None},
    "KLGate": {"threshold": "1", "confidence": None},
    "BigLittle": {"rollback": "1"},
    "Mars": {"ratio": "1", "logits": None},
}
"""Classes of rules by their knobs, with a value for each that must be given."""
FLAT = (
    "rule", "budget", "budget_nats", "max_shift", "expected_tokens", "max_relaxed", "protect", "protect_threshold",
    "importance", "max_importance", "importance_scale", "lossless_tokens", "relax_within", "num_speculative_tokens",
    "tree", "verification", "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "stop", "seed", "unknown",
)  # fmt: skip
"""Settings of a `Request`."""
MADE = (
    ("FixedLength({})", ".max_draft_tokens"),
    ("ConfidenceStop(max_draft_tokens={})", ".max_draft_tokens"),
    ("ConfidenceStop(threshold={})", ".threshold"),
    ("NgramDrafter(max_ngram_size={})", ".max_ngram_size"),
    ("NgramDrafter(min_ngram_size={})", ".min_ngram_size"),
    ("SamplingParams(temperature={})", ".temperature"),
    ("SamplingParams(top_k={})", ".top_k"),
    ("SamplingParams(top_p={})", ".top_p"),
    ("SamplingParams(min_p={})", ".min_p"),
    ("Budget(nats={})", ".limit"),
    ("Budget(max_shift={})", ".limit"),
    ("Budget(nats=1, expected_tokens={})", ".expected_tokens"),
    ("Budget(nats=1, max_relaxed={})", ".max_relaxed"),
    ("Request(rule={})", ".rule"),
    ("Request(budget={})", ".budget"),
    ("Request(verification={})", ".verification"),
    ("Request(num_speculative_tokens={})", ".num_speculative_tokens"),
    ("Request(tree={})", ".tree"),
    ("Request(sampling={})", ".sampling"),
    ("Request(max_new_tokens={})", ".max_new_tokens"),
    ("Request(stop={})", ".stop"),
    ("Request(seed={})", ".seed"),
    ("Request(policy={})", ".seed"),
)
TENSORS = {
    "target_probs": "rows(2, 4)",
    "draft_probs": "rows(2, 3)",
    "draft_token_ids": "torch.zeros(2, 3, dtype=torch.long)",
    "num_draft_tokens": "torch.full((2,), 3)",
    "generator": "torch.Generator().manual_seed(0)",
    "rule": "'lossless'",
}
CHANGES = (
    "None", "1.0", "3", "'rows'", "x.tolist()", "x.numpy()", "x.long()", "x.float()", "x.to(torch.int8)", "x.bool()",
    "x.to(torch.complex64)", "x.to(torch.uint16)", "x.flatten()[0]", "x.flatten()[:4]", "x[..., :0]", "x[:1]",
    "x[:, :1]",
    "torch.nn.functional.pad(x, (0, 1))", "x.unsqueeze(0)", "x.to('meta')", "with_last(x, nan)", "with_last(x, inf)",
    "with_last(x, -0.25)", "with_last(x, 0.75)", "x * 0", "x + 4", "x - 1", "x + 2**62", "torch.cat([x, x[:1]])",
    "np.random.default_rng(0)", "x.half()", "x.double()", "x.clone().requires_grad_()",
)  # fmt: skip


def argument_requests(draw: random.Random, count: int, tokens: int) -> Iterator[Ask]:
    """Yield calls of public names with every value of a table; the number of requests does not matter."""
    for made, read in MADE:
        for value in (*VALUES, *TEXTS, "Lossless()", "SamplingParams(0.5)"):
            yield {"call": f"plain(({made}){read})".format(value)}
    for rule, knobs in KNOBS.items():
        for knob in knobs:
            needed = {name: value for name, value in knobs.items() if value is not None and name != knob}
            for value in (*VALUES, *TEXTS, "'exact'", "'chi_square'", "'draw'", "'mask'", "'kl'", "'raw'", "'v1'"):
                given = ", ".join(f"{name}={each}" for name, each in (needed | {knob: value}).items())
                yield {"call": f"str({rule}({given}))"}
    for name in FLAT:
        for value in (*VALUES, *TEXTS):
            yield {"call": f"plain(Request.from_dict({{{name!r}: {value}}}))"}
            if name != "importance":
                base = {"max_new_tokens": "2", "seed": "1", "num_speculative_tokens": "2"}
                base |= {"temperature": "0"} if name == "seed" else {}  # None draws one
                given = ", ".join(f"{key}={each}" for key, each in (base | {name: value}).items())
                yield {"call": f"said(generate(pair(), 'Question: Tom has', {given}))"}
    for text in (
        *TEXTS,
        "'cactus'",
        "'cactus:delta'",
        "'cactus:delta=1,delta=2'",
        "'cactus:dleta=1'",
        "'lossless:x=1'",
    ):
        yield {"call": f"str(parse_rule({text}))"}
    for function in ("verify", "verify_block", "audit"):
        names = list(TENSORS) if function != "audit" else ["rule", "target_probs", "draft_probs", "draft_token_ids"]
        for name in names:
            for change in CHANGES:
                given = TENSORS | ({"target_probs": "rows(2, 3)"} if function == "audit" else {})
                kept = [each for each in names if function != "audit" or each != "draft_token_ids" or each == name]
                kept = [
                    each for each in kept if function != "audit" or (each, name) != ("draft_probs", "draft_token_ids")
                ]
                if "x" in change and name in ("rule", "generator"):
                    continue
                changed = f"(lambda x: {change})({given[name]})"
                called = ", ".join(f"{each}={changed if each == name else given[each]}" for each in kept)
                yield {"call": f"plain({function}({called}))"}
    for rule in (*RULES, *GREEDY_RULES):
        for seed in range(4):
            for function in ("verify", "verify_block"):
                given = f"{rule!r}, drawn({seed}, 3, 4, 9), drawn({seed + 9}, 3, 3, 9), ids({seed}, 3, 3, 9)"
                yield {"call": f"plain({function}({given}, torch.Generator().manual_seed({seed})))"}
            yield {"call": f"plain(audit({rule!r}, drawn({seed}, 3, 3, 9), drawn({seed + 9}, 3, 3, 9)))"}
            yield {"call": f"plain(audit({rule!r}, drawn({seed}, 3, 3, 9), draft_token_ids=ids({seed}, 3, 3, 9)))"}


# --- GGUF files ---

GRAMMARS = ('root ::= [0-9a-z ,.]+ "!"', 'root ::= [0-9]+ (" " [a-z]+)*', 'root ::= "#### " [0-9]+', "frob")
TOOL = {
    "type": "function",
    "function": {"name": "answer", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
PENS = {"type": "object", "properties": {"pens": {"enum": [3, 4]}}, "required": ["pens"]}
FORM = {"type": "json_schema", "json_schema": {"name": "pens", "strict": True, "schema": PENS}}
LLAMA_POLICIES: tuple[Ask, ...] = (
    {}, {}, {"budget": 0.05}, {"budget": 1.0}, {"protect": "digits"}, {"protect": "digits", "protect_threshold": 0.2},
    {"lossless_tokens": 6}, {"budget": 0.5, "protect": "digits|json", "lossless_tokens": 2},
    {"importance": True, "max_importance": 0.3}, {"relax_within": ["has", "."]},
)  # fmt: skip


def llama_options(draw: random.Random, tokens: int) -> Ask:
    """Return arguments of a completion of `CactusLlama`, sampling in llama.cpp's order."""
    given: Ask = {"max_tokens": tokens, "seed": draw.randrange(10**6), "rule": draw.choice(RULES)}
    given |= draw.choice(
        ({"temperature": 0}, {}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"temperature": 1.7},
         {"temperature": 1.2, "top_k": 8, "top_p": 0.8, "min_p": 0.01})
    )  # fmt: skip
    if draw.random() < 0.1:
        given |= {"rule": draw.choice(GREEDY_RULES), "temperature": 0}
    given |= draw.choice(LLAMA_POLICIES)
    given = consistent(proposals(draw, trees=draw.random() < 0.05), given, draw)
    if draw.random() < 0.3:
        given |= {"repeat_penalty": draw.choice((1.0, 1.2)), "frequency_penalty": 0.3, "presence_penalty": 0.1}
    if draw.random() < 0.2:
        given["logit_bias"] = draw.choice(({"20": 3.0}, {"20": -30.0, "25": 1.5}, {"x": 1}))
    if draw.random() < 0.2:
        given["grammar"] = draw.choice(GRAMMARS)
    if draw.random() < 0.2:
        given["stop"] = draw.choice((["stamps"], ["####"], [" left", "."]))
    for name, chance in (("stream", 0.2), ("echo", 0.05)):
        if draw.random() < chance:
            given[name] = True
    if draw.random() < 0.15:
        given["logprobs"] = 2
    if draw.random() < 0.1:
        given["processors"] = ["no_digits"]
    if draw.random() < 0.05:
        given["criteria"] = "long"
    if draw.random() < 0.03:
        given |= draw.choice(({"typical_p": 0.5}, {"mirostat_mode": 2}, {"rules": "lossless"}, {"budget": -1}))
    return given


def gguf_requests(draw: random.Random, count: int, tokens: int) -> Iterator[Ask]:
    """Yield calls of `CactusLlama`, conversations on kept prompts, responses of `load_pair`, and two taking turns."""
    for _ in range(count):
        kind = draw.choice(("llama", "llama", "llama", "chat", "pair", "pair", "kept", "twins"))
        ask: Ask = {"kind": kind, "draft": draw.choice(("worded", "worded", "draft", "suffix", "ngram"))}
        trees = draw.random() < 0.05  # which are refused
        if kind in ("llama", "chat"):
            given = llama_options(draw, tokens)
            if kind == "chat":
                for name in ("echo", "logprobs", "processors", "criteria"):
                    given.pop(name, None)
                if draw.random() < 0.3:
                    given.pop("grammar", None)
                    given["response_format"] = draw.choice(
                        ({"type": "json_object"}, {"type": "json_object", "schema": PENS})
                    )
                elif draw.random() < 0.2:
                    given.pop("grammar", None)
                    choice = {"type": "function", "function": {"name": "answer"}}
                    given |= {"tools": [TOOL], "tool_choice": choice, "chat_format": "chatml-function-calling"}
            asked = question(draw) if kind == "chat" else prompt(draw)
            ask |= {"calls": [{"text": asked, "options": given}], "kept_prompts": 1}
        elif kind == "kept":
            head = question(draw).partition(". ")[0]
            texts = [f"Question: {head}. {question(draw)}\nAnswer:" for _ in range(draw.randint(2, 4))]
            ask |= {"kind": "llama", "kept_prompts": draw.choice((0, 1, 2, 3))}
            ask["calls"] = [{"text": text, "options": llama_options(draw, 12)} for text in [*texts, texts[0]]]
        else:
            turns = 2 if kind == "twins" else draw.choice((1, 1, 3))
            given = [settings(draw, tokens, trees) for _ in range(turns)]
            ask |= {
                "kept_prompts": draw.choice((0, 1, 2)),
                "turns": [{"prompt": prompt(draw), "settings": g} for g in given],
            }
        yield ask


# --- transformers ---

OPTIONS: tuple[Ask, ...] = (
    {"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2}, {"bad_words_ids": [[5], [6, 4]]},
    {"min_new_tokens": 9, "eos_token_id": [4, 6]}, {"eos_token_id": 4}, {"forced_eos_token_id": 2},
    {"suppress_tokens": [5]}, {"begin_suppress_tokens": [5]}, {"sequence_bias": [[[2], 3.0]]}, {"typical_p": 0.6},
    {"epsilon_cutoff": 0.1}, {"eta_cutoff": 0.1}, {"exponential_decay_length_penalty": [1, 9.0], "eos_token_id": 7},
    {"return_dict_in_generate": True}, {"renormalize_logits": True}, {"processors": True}, {"criteria": "long"},
    {"prefix_allowed": True}, {"max_length": 40}, {"streamer": True}, {"padding": 3}, {"stop_strings": [".", "b"]},
    {"max_time": 0.0},
)  # fmt: skip
REFUSED_OPTIONS: tuple[Ask, ...] = (
    {"num_beams": 2}, {"num_return_sequences": 2}, {"output_scores": True}, {"penalty_alpha": 0.6, "top_k": 4},
    {"guidance_scale": 2.0}, {"use_cache": False}, {"token_healing": True}, {"unknown": 1}, {"rule": "cactis"},
    {"num_speculative_tokens": -1}, {"budget": "much"}, {"assistant": 1, "drafter": "NgramDrafter()"}, {"drafter": "3"},
    {"budget": -1.0}, {"lossless_tokens": 1.5}, {"relax_within": "x"}, {"protect_threshold": 2},
)  # fmt: skip
ASSISTANTS: tuple[Ask, ...] = (
    {"assistant": 1}, {"assistant": 1}, {"assistant": 1}, {"assistant": 0}, {"drafter": "NgramDrafter()"},
    {"drafter": "SuffixDrafter()"}, {"prompt_lookup_num_tokens": 4},
    {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 3}, {"assistant_early_exit": 1},
    {"assistant": 1, "num_assistant_tokens": 3},
    {"assistant": 1, "num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic_transient"},
    {"assistant": 1, "assistant_confidence_threshold": 0.5}, {"num_speculative_tokens": 0},
)  # fmt: skip


def transformers_requests(draw: random.Random, count: int, tokens: int) -> Iterator[Ask]:
    """Yield calls of `generate` with `speculative_generate`, on random models and on the bundled ones."""
    for _ in range(count):
        model = draw.choice(("llama", "llama", "gpt2", "qwen2", "bundled", "bundled"))
        options: Ask = {"max_new_tokens": tokens, "do_sample": draw.random() < 0.7, "pad_token_id": 0}
        if options["do_sample"]:
            options |= draw.choice(({"top_k": 0}, {}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9}, {"min_p": 0.05}))
        given = settings(draw, tokens, trees=draw.random() < 0.5)
        names = (
            "rule",
            "verification",
            "num_speculative_tokens",
            "tree",
            "protect",
            "protect_threshold",
            "lossless_tokens",
        )
        options |= {name: given[name] for name in names if name in given}
        options |= {name: given[name] for name in ("importance", "max_importance", "importance_scale") if name in given}
        if "budget_nats" in given:
            options["budget"] = given["budget_nats"]
        if options.get("rule") in GREEDY_RULES:
            options["do_sample"] = False
        assistant = draw.choice(ASSISTANTS)
        if any(name.startswith(("num_assistant", "prompt_lookup", "assistant_conf")) for name in assistant):
            for name in ("num_speculative_tokens", "tree", "verification"):
                options.pop(name, None)
        for _ in range(draw.choice((0, 1, 1, 2))):
            options |= draw.choice(OPTIONS)
        if "importance" in options and model != "bundled":  # which was learned for other tokens
            for name in ("importance", "max_importance", "importance_scale"):
                options.pop(name, None)
        if model != "bundled":  # words of random models are not strings to end at
            options.pop("stop_strings", None)
        if draw.random() < 0.15:
            options |= draw.choice(REFUSED_OPTIONS)
        if "assistant" not in assistant and draw.random() < 0.9:
            options |= {"verification": "token"} if "verification" in options else {}
            if "tree" in options or str(options.get("num_speculative_tokens")).startswith("tree"):
                options |= {"tree": None, "num_speculative_tokens": 4}
        text = prompt(draw) if model == "bundled" else [draw.randrange(8) for _ in range(draw.randint(1, 12))]
        yield {"model": model, "prompt": text, "options": options | assistant | {"seed": draw.randrange(10**6)}}


# --- the server of GGUF files ---

RAW = (
    "null", "true", "false", "0", "1", "-1", "2", "16", "17", "0.5", "-0.5", "2.5", "1e400", "-1e400", "NaN",
    "Infinity",
    "1" + "0" * 400, '""', '"1"', '"x"', '"none"', '"\\ud800"', "[]", "[1]", '["a"]', "[[1]]", '[""]', "{}", '{"a": 1}',
    '{"1": 1}', '{"include_usage": true}', '"digits"', '["<a>", "</a>"]', '"auto"', '"lossless"', '{"type": "text"}',
)  # fmt: skip
KEYS = (
    "model", "max_tokens", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
    "repeat_penalty", "logit_bias", "stop", "seed", "stream", "stream_options", "grammar", "n", "user", "service_tier",
    "safety_identifier", "prompt_cache_key", "store", "parallel_tool_calls", "metadata", "acceptance_rule", "budget",
    "protect", "protect_threshold", "max_importance", "lossless_tokens", "relax_within", "acceptance_report",
    "best_of", "suffix", "importance", "importance_scale", "typical_p", "mirostat_mode", "logprobs", "unknown",
    "num_speculative_tokens", "verification",
)  # fmt: skip
COMPLETION_KEYS = (*KEYS, "prompt", "echo", "messages")
CHAT_KEYS = (
    *KEYS, "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "functions", "function_call",
    "response_format", "chat_template_kwargs", "prediction", "modalities", "reasoning_effort", "verbosity",
    "prompt_cache_retention", "prompt",
)  # fmt: skip
RULE_KNOBS = {
    "cactus": ("delta", "solver", "divergence", "max_ratio"), "clamped": ("width", "max_kl"), "ensemble": ("weight",),
    "lenience": ("lenience",), "typical": ("threshold", "alpha", "recovery"), "top_k": ("k", "residual"),
    "relaxed_greedy": ("margin", "top", "per"), "fuzzy": ("threshold", "divergence", "top", "closed", "temperature"),
    "kl_gate": ("threshold", "confidence"), "mars": ("ratio", "logits"),
}  # fmt: skip
MALFORMED_JSON = (
    "", "[1]", "3", "null", '"x"', "{", '{"prompt": "Hi"', '{"prompt": "Hi",}', "{'prompt': 'Hi'}", "[" * 2000, "\x00",
    '{"prompt": "\\ud800 has", "max_tokens": 2, "seed": 1}', '{"prompt": "Hi", "a": ' + "[" * 5000 + "]" * 5000 + "}",
)  # fmt: skip
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


def with_key(body: Ask, key: str, raw: str) -> str:
    """Return a body's JSON with one more key, whose value is JSON already."""
    return f"{json.dumps(body)[:-1]}, {json.dumps(key)}: {raw}}}"


def body(draw: random.Random, tokens: int) -> Ask:
    """Return an ask with a random body."""
    chat = draw.random() < 0.4
    given: Ask = {"messages": [{"role": "user", "content": question(draw)}]} if chat else {"prompt": prompt(draw)}
    given |= {"max_tokens": tokens, "seed": draw.randrange(10**6), "acceptance_report": True}
    given |= draw.choice(({}, {"temperature": 0}, {"temperature": 0.7, "top_p": 0.8, "top_k": 20}, {"min_p": 0.05}))
    given["acceptance_rule"] = draw.choice(RULES)
    given |= {name: value for name, value in draw.choice(LLAMA_POLICIES).items() if not name.endswith("importance")}
    for chance, more in (
        (0.3, {"stream": True}), (0.1, {"stream": True, "stream_options": {"include_usage": True}}), (0.2, {"n": 2}),
        (0.2, {"repeat_penalty": 1.2, "presence_penalty": 0.1}), (0.2, {"frequency_penalty": 0.4}),
        (0.1, {"logit_bias": {"20": 3.0}}), (0.2, {"stop": ["####", "."]}), (0.1, {"stop": " left"}),
        (0.2, {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}),
        (0.15, {"grammar": GRAMMARS[0]}), (0.1, {"echo": True} if not chat else {"reasoning_effort": "low"}),
        (0.15 * chat, {"response_format": FORM}), (0.15 * chat, {"tools": [TOOL], "tool_choice": "required"}),
    ):  # fmt: skip
        if draw.random() < chance:
            given |= more
    if "grammar" in given and ("response_format" in given or "tools" in given):
        del given["grammar"]
    return {"path": CHATS if chat else COMPLETIONS, "body": given}


def server_requests(draw: random.Random, count: int, tokens: int) -> Iterator[Ask]:
    """Yield bodies: the recorded ones, every key with every value, random ones, conversations, and several at once."""
    said = [{"role": "user", "content": "Tom has 4 pens. He buys 2 more pens. How many pens does he have now?"}]
    bases: dict[str, Ask] = {COMPLETIONS: {"prompt": "Tom has"}, CHATS: {"messages": said}}
    few = {"max_tokens": 3, "temperature": 0, "seed": 1}
    recorded = json.loads(BODIES.read_text())
    for path, bodies in ((COMPLETIONS, recorded["completions"]), (CHATS, recorded["chats"])):
        for each in bodies:
            limit = {} if path == COMPLETIONS or "max_completion_tokens" in each else {"max_tokens": 24}
            seeded = {"seed": 1} | {name: value for name, value in each.items() if (name, value) != ("seed", None)}
            yield {"path": path, "body": bases[path] | limit | seeded}
    for method, path in (
        ("GET", "/health"), ("GET", "/v1/models"), ("GET", "/v1/models/meta/any"), ("GET", COMPLETIONS), ("GET", "/"),
        ("POST", "/v1/embeddings"), ("POST", "/v1/models"), ("DELETE", CHATS), ("GET", "/version"), ("GET", "/docs"),
    ):  # fmt: skip
        yield {"method": method, "path": path, "body": {}}
        yield {"method": method, "path": path, "body": {}, "key": None}
    for key in ("wrong", "other", None, ""):
        yield {"path": COMPLETIONS, "body": bases[COMPLETIONS] | few, "key": key}
    for raw in MALFORMED_JSON:
        yield from ({"path": path, "raw": raw} for path in bases)
    for path, keys in ((COMPLETIONS, COMPLETION_KEYS), (CHATS, CHAT_KEYS)):
        for key in keys:
            for raw in RAW:
                yield {"path": path, "raw": with_key(bases[path] | few, key, raw)}
    for rule, knobs in RULE_KNOBS.items():
        for knob in knobs:
            for value in ("", "0", "1", "0.5", "-1", "nan", "inf", "1e400", "x", "exact", "True", "1,1", "٣"):
                for given in (f"{rule}:{knob}={value}", f"{rule}:{knob}={value},{knob}=1"):
                    yield {"path": COMPLETIONS, "body": bases[COMPLETIONS] | few | {"acceptance_rule": given}}
    for given in (
        "os:system",
        "os.path:join,x=1",
        "cactus_decoding:Cactus,delta=1",
        "lossless:",
        ":",
        "cactus:delta",
        "LOSSLESS",
    ):
        yield {"path": COMPLETIONS, "body": bases[COMPLETIONS] | few | {"acceptance_rule": given}}
    for _ in range(count):
        yield body(draw, tokens)
    for _ in range(max(1, count // 20)):
        yield {"together": [body(draw, 12) for _ in range(4)]}
    for _ in range(max(1, count // 20)):
        talk, key = [{"role": "user", "content": question(draw)}], draw.choice(("one", "other"))
        for _ in range(3):
            given = {"messages": list(talk), "max_tokens": 16, "seed": 3, "temperature": draw.choice((0, 1))}
            yield {"server": "kept", "path": CHATS, "body": given, "key": key}
            talk += [{"role": "assistant", "content": question(draw)}, {"role": "user", "content": question(draw)}]
    yield {"method": "GET", "path": "/metrics"}


# --- the command line ---

ASKED = "Tom has 4 pens. He buys 2 more pens. How many pens does he have now?"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--version",), ("rules",), ("frob",), (), ("generate",), ("generate", ASKED, "--frob"),
    ("generate", ASKED, "--json", "--seed", "1", "--max-new-tokens", "9"),
    ("serve", "x.gguf", "--draft", "ngram", "--tensor-parallel-size", "2"), ("serve", "none.gguf", "--port", "0"),
    ("serve", "--engine", "llama-cpp"), ("serve", "x.gguf", "--host", "0.0.0.0"), ("show", "none.safetensors"),
    ("serve", "x.gguf", "--draft", "ngram", "--rule", "cactis", "--port", "0"), ("trace", "none.jsonl"),
)  # fmt: skip
COMMAND_OPTIONS = (
    "rule", "budget", "max-shift", "expected-tokens", "max-relaxed", "protect", "protect-threshold", "importance",
    "max-importance", "lossless-tokens", "num-speculative-tokens", "tree", "verification", "threads", "temperature",
    "top-k", "top-p", "min-p", "max-new-tokens", "stop", "seed", "draft", "target",
)  # fmt: skip
COMMAND_VALUES = (
    "", "0", "2", "-1", "0.5", "nan", "inf", "none", "digits", "cactus:delta=1", "ngram", "block", "static=2.2", "True",
    "٣", "9" * 400,
)  # fmt: skip


def command_requests(draw: random.Random, count: int, tokens: int) -> Iterator[Ask]:
    """Yield arguments of `cactus`: every option of `generate` with every value, and random ones."""
    for given in COMMANDS:
        yield {"arguments": list(given)}
    base = ["generate", ASKED, "--json", "--num-speculative-tokens", "3"]
    few = ["--max-new-tokens", "3", "--seed", "1"]
    for option in COMMAND_OPTIONS:
        for value in COMMAND_VALUES:
            limits = ["generate", ASKED, "--json"] if option in ("num-speculative-tokens", "tree") else base
            yield {"arguments": [*limits, *few, f"--{option}={value}"]}
    flags = {"budget_nats": "budget"}
    for _ in range(count):
        given = settings(draw, tokens)
        arguments = ["generate", question(draw), "--json"]
        for name, value in given.items():
            option = f"--{flags.get(name, name).replace('_', '-')}"
            if name == "importance_scale":
                arguments.append(option)
            elif name == "stop":
                arguments += [f"{option}={each}" for each in value]
            else:
                arguments.append(f"{option}=IMPORTANCE" if name == "importance" else f"{option}={value}")
        yield {"arguments": arguments}


# --- vLLM ---


def vllm_requests(draw: random.Random, count: int, tokens: int) -> Iterator[Ask]:
    """Yield batches for the steps of vLLM's V1 sampler, each request with keys of its own."""
    for number in range(count):
        asked: list[Ask] = []
        for _ in range(draw.randint(1, 12)):
            keys: Ask = {}
            if draw.random() < 0.85:
                keys["acceptance_rule"] = draw.choice((*BATCHED_RULES, *BATCHED_RULES, "typical", "cactis"))
            if keys and draw.random() < 0.4:
                keys["budget"] = draw.choice((0, 0.05, 0.7, 3.0))
            if keys and draw.random() < 0.3:
                keys["lossless_tokens"] = draw.choice((1, 3))
            if keys and draw.random() < 0.4:
                keys |= {
                    "protect": draw.choice(("digits", "json|digits")),
                    "protect_threshold": draw.choice((0.0, 0.2)),
                }
            if keys and draw.random() < 0.2:
                keys["relax_within"] = draw.choice(([[1], [2]], ["<a>", "</a>"], [3, 4]))
            if keys and draw.random() < 0.3:
                keys["acceptance_report"] = True
            temperature = draw.choice((0.0, 0.7, 1.0, 1.0, 1.0))
            asked.append({"keys": keys, "temperature": temperature, "top_k": draw.choice((0, 0, 9)), "top_p": 1.0})
        yield {
            "number": number,
            "seed": draw.randrange(10**6),
            "one_hot": draw.random() < 0.4,
            "words": draw.random() < 0.8,
            "drafted": draw.randint(1, 4),
            "steps": draw.randint(1, 4),
            "default": draw.choice(
                ({}, {}, {}, {"acceptance_rule": "clamped:width=1"}, {"acceptance_rule": "typical"})
            ),
            "requests": asked,
        }


PARTS: dict[str, tuple[Callable[[random.Random, int, int], Iterator[Ask]], int]] = {
    "generate": (generate_requests, 1000),
    "arguments": (argument_requests, 1),
    "gguf": (gguf_requests, 400),
    "transformers": (transformers_requests, 400),
    "server": (server_requests, 300),
    "commands": (command_requests, 40),
    "vllm": (vllm_requests, 300),
}
"""What makes each part's requests, and how many random ones it makes where nobody says."""


def requests_of(part: str, count: int | None, seed: int, tokens: int) -> list[Ask]:
    """Return a part's requests; the same arguments give the same list."""
    make, usual = PARTS[part]
    return list(make(random.Random(f"{part} {seed}"), usual if count is None else count, tokens))
