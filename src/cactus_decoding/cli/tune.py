"""`cactus tune`: what speculation brings on this machine, and the line to type."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cactus_decoding.cli import INTERRUPTED, notes, options
from cactus_decoding.cli.display import Stages, counted
from cactus_decoding.cli.options import OUTPUT, RUNNING, option
from cactus_decoding.zoo import BUNDLED, DRAFTS

if TYPE_CHECKING:
    from cactus_decoding import ModelDrafter, Pair, Request
    from cactus_decoding.lab.tuning.profile import Profile
    from cactus_decoding.lab.tuning.tuning import Forecast, Tuned

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus tune\n\n"
    "cactus tune target.gguf small-q4.gguf small-q8.gguf --temperature 0\n\n"
    "cactus tune ./large ./small --rule clamped:width=1 --task jsonl:path=prompts.jsonl --output profile.json"
)
NUM_PROMPTS = 10


@options.request_options("rule", "sampling", "max_new_tokens", "seed", max_new_tokens=128)
def tune(
    *,
    models: Annotated[list[str] | None, typer.Argument(
        help="Verifying model, and those that might draft for it: local paths, GGUF files or hub names. "
        "Look-up is tried in any case.", metavar="[TARGET [DRAFT]…]",
        show_default="bundled and its drafts")] = None,
    task: Annotated[str | None, option(
        "Where prompts come from, as for cactus eval, such as jsonl:path=prompts.jsonl; the first ten are asked.",
        "TASK", shown="ten of ours")] = None,
    chat: Annotated[bool | None, option(
        "Ask by the target's chat template.", flag="--chat/--no-chat",
        shown="for prompts of ours, where it has one")] = None,
    settings: options.Settings,
    minutes: Annotated[float, option("Time that it may take, loading included.", "M", RUNNING, min=0.01, max=60)] = 3.0,
    output: Annotated[Path | None, option(
        "Write the profile here, which 'generate', 'serve' and 'play' read by --profile.", "FILE", OUTPUT,
        shown="in the cache")] = None,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Say in three minutes whether speculation pays on this machine, with which draft and how many proposals.

    Asks what is fastest for a rule that you have chosen; which rule keeps a limit 'cactus frontier --at' says.

    Times passes of every width with every number of threads, has the target answer prompts, and reads each answer with
    each draft in one pass, which tells how much would be kept for any number of proposals. Begins with the verdict and
    the line to type. Where too little was measured for a verdict it says so, keeps no profile and ends with status 1.
    """
    from cactus_decoding.core.drafting.registry import LOOK_UPS, check_model_names

    began = time.perf_counter()
    target, *drafts = models or [BUNDLED, *(f"{BUNDLED}:{name}" for name in DRAFTS)]
    drafts = [name for name in dict.fromkeys(drafts) if name.partition(":")[0] not in LOOK_UPS]
    check_model_names(target, *drafts)  # first, as a mistyped name needs no torch
    from cactus_decoding.core.drafting.lengths import FixedLength
    from cactus_decoding.core.request import Request
    from cactus_decoding.core.rules import Lossless

    asked = Request.from_dict(settings)  # with the rule, which says what it needs
    rules = list(dict.fromkeys([Lossless(), asked.rule]))
    request = asked.replace(rule=Lossless(), num_speculative_tokens=FixedLength(0))
    from cactus_decoding.core.files.writing import check_writable
    from cactus_decoding.lab.evaluation.tasks.sources import file_of, parse_task
    from cactus_decoding.lab.tuning.answers import thread_counts
    from cactus_decoding.lab.tuning.profile import default_place
    from cactus_decoding.lab.tuning.tuning import tune as tuned

    check_writable(output, inputs=[None if task is None else file_of(task)])
    place = output or _kept_place(default_place(target))
    if task is None and target == BUNDLED:
        task = "word_problems"
    problems = None if task is None else [each.prompt for each in islice(parse_task(task).problems, NUM_PROMPTS)]
    options.prepare_process(threads, target, *drafts, small=False)
    with Console(stderr=True).status("Loading the models"):
        pair, loaded = _load(target, drafts)
    prompts = _prompts(pair, loaded, problems, chat, request)
    left = 58 * minutes - min(time.perf_counter() - began, 30 * minutes)  # loading may take half of it at most
    counts = thread_counts() if threads is None else [threads]
    try:
        with Stages() as report:
            found = tuned(pair, loaded, prompts, request, rules, seconds=left, thread_counts=counts, report=report)
    except KeyboardInterrupt:
        kept = "pass times that were measured to the end are kept, and 'auto' goes by them; nothing else is"
        typer.echo(f"cactus: interrupted; {kept}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _conclude(found, target, asked, place, settings | {"target": target, "drafts": drafts, "task": task})


def _kept_place(place: Path) -> Path | None:
    """Return where to keep a profile without a given file; None, with a note, if that is impossible."""
    from cactus_decoding.core.files.writing import check_folder

    try:
        check_folder(place.parent)
    except ValueError as error:
        notes.say(f"the profile will not be kept: {error}; --output FILE names another place")
        return None
    return place


def _load(target: str, drafts: list[str]) -> tuple[Pair, dict[str, ModelDrafter]]:
    from cactus_decoding import ModelDrafter, load_pair
    from cactus_decoding.core.drafting.registry import LOOK_UP

    pair, loaded = load_pair(target, LOOK_UP), dict[str, ModelDrafter]()
    for name in drafts:
        drafter = pair.with_draft(name).drafter
        assert isinstance(drafter, ModelDrafter)  # all that have a name and look nothing up
        loaded[name] = drafter
    return pair, loaded


def _prompts(
    pair: Pair, drafts: dict[str, ModelDrafter], problems: list[str] | None, chat: bool | None, request: Request
) -> list[str]:
    """Return prompts that fit into every context window."""
    from cactus_decoding.core.drafting.measuring import PROMPTS
    from cactus_decoding.core.generate import check_prompt
    from cactus_decoding.core.models.base import check_fits
    from cactus_decoding.core.models.tokenizers import as_chat_prompt
    from cactus_decoding.lab.tuning.tuning import FEWEST_ANSWERS, FEWEST_TOKENS

    if chat is None:
        chat = problems is None and bool(getattr(pair.tokenizer, "chat_template", None))
    given = PROMPTS if problems is None else problems
    prompts = [as_chat_prompt(pair.tokenizer, each) if chat else each for each in given]
    if len(prompts) < FEWEST_ANSWERS or len(prompts) * request.max_new_tokens < FEWEST_TOKENS:
        raise ValueError(
            f"{counted(len(prompts), 'prompt')} with up to {counted(request.max_new_tokens, 'token')} each are too few "
            f"to tell: there must be {FEWEST_ANSWERS} answers with {FEWEST_TOKENS} tokens in all"
        )
    for prompt in prompts:
        length = len(check_prompt(pair, prompt, request))
        for draft in drafts.values():
            check_fits("draft", draft.max_length, length, 1)
    return prompts


def _conclude(found: Tuned, target: str, asked: Request, place: Path | None, arguments: dict[str, Any]) -> None:
    """Print the verdict and the line to type, then what they rest on, and keep it."""
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.core.files.writing import as_json, write_atomically
    from cactus_decoding.lab.tuning.tuning import best_of, pays, speedup_sentence

    best = best_of(found.found, str(asked.rule))
    profile = _profile(found, target, best if pays(best) else found.found[0])
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(f"[bold]{escape(found.doubt or speedup_sentence(best))}[/bold]", soft_wrap=True)
    if found.doubt is None and pays(best):
        console.print(f"[bold]Type:[/bold] {escape(_line(profile, asked))}", soft_wrap=True)
    console.print(_table(found))
    for line in _about(found):
        console.print(escape(line), soft_wrap=True)
    if found.doubt is not None:
        console.print("No profile is kept")
        raise typer.Exit(1)
    if place is not None:
        content = {"schema": 1, "kind": "profile", "recommended": profile.as_dict(), "verdict": speedup_sentence(best)}
        content |= found.as_dict() | {"provenance": provenance(arguments)}
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, as_json(content, indent=1) + "\n")
        kept = f"Kept in {place}: 'generate', 'serve' and 'play' read it by --profile"
        console.print(escape(kept), soft_wrap=True)


def _profile(found: Tuned, target: str, best: Forecast) -> Profile:
    from cactus_decoding.lab.tuning.profile import Profile

    draft = best.draft
    if draft in found.drafts and found.draft_threads[draft] != found.threads:
        draft = _on_threads(draft, found.draft_threads[draft])
    return Profile.of(target, draft, best.num_speculative_tokens, found.threads)


def _on_threads(name: str, threads: int) -> str:
    from cactus_decoding.core.spelling import spell
    from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf

    file = parse_gguf(name)
    assert file is not None  # models of PyTorch have no threads of their own
    return f"{file.path}{spell('gguf', replace(file.settings, threads=threads)).removeprefix('gguf')}"


def _line(profile: Profile, asked: Request) -> str:
    from cactus_decoding import FixedLength

    models = [] if profile.target == BUNDLED else ["--target", profile.target]
    models += ["--draft", profile.draft, "--threads", str(profile.threads)]
    flags = options.flags_of(asked.replace(num_speculative_tokens=FixedLength(profile.num_speculative_tokens)))
    return f'cactus generate "…" {shlex.join(models)} {flags}'


def _about(found: Tuned) -> list[str]:
    lines = [f"{found.measured}; the target reads with {_threads(found.threads)}"]
    for name, draft in found.drafts.items():
        kept = ", ".join(f"{found.acceptance(name, rule):.3f} by {rule}" for rule in found.rules)
        threads = _threads(found.draft_threads[name])
        lines.append(f"{name}: {1000 * draft.draft:.1f} ms per proposal with {threads}; acceptance: {kept}")
    return lines


def _threads(count: int) -> str:
    return counted(count, "thread")


def _table(found: Tuned) -> Table:
    from cactus_decoding.core.drafting.registry import LOOK_UP

    title = "Tokens per second after the prompt, and tokens per step, forecast from the times of passes; * best"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title=title)
    table.add_column("proposals", justify="right")
    table.add_column("pass, ms", justify="right")
    columns = list(dict.fromkeys((each.draft, each.rule) for each in found.found))
    for draft, rule in columns:
        name = "look-up" if draft == LOOK_UP else Path(draft).name
        table.add_column(escape(name if rule == "lossless" else f"{name}, {rule}"), justify="right", overflow="fold")
    none, lengths = found.found[0], sorted({each.num_speculative_tokens for each in found.found} - {0})
    by_place = {(each.draft, each.rule, each.num_speculative_tokens): each for each in found.found[1:]}
    best = {
        column: max((by_place[*column, length] for length in lengths), key=attrgetter("tokens_per_second"))
        for column in columns
    }
    table.add_row("0", _pass(found, 0), *(f"{none.tokens_per_second:.2f} 1.00  " for _ in columns))
    for length in lengths:
        cells = []
        for column in columns:
            each = by_place[*column, length]
            star = "*" if each is best[column] else " "
            cells.append(f"{each.tokens_per_second:.2f} {each.tokens_per_step:.2f} {star}")
        table.add_row(str(length), _pass(found, length), *cells)
    return table


def _pass(found: Tuned, length: int) -> str:
    return f"{1000 * found.times.of(length + 1):.1f}"
