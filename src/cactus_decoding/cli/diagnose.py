"""`cactus diagnose`: what a pair's rejections are about, and what would win them back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting, rounded
from cactus_decoding.cli.options import OUTPUT, RUNNING, option

if TYPE_CHECKING:
    from cactus_decoding.lab.training.diagnosis import Diagnosis

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus diagnose\n\n"
    "cactus diagnose --draft bundled:draft\n\n"
    "cactus diagnose --target ./large --draft ./small --task jsonl:path=prompts.jsonl --rule cactus:delta=0.5 "
    "--output diagnosis.json"
)
WHAT, MODELS = "What is asked", "Models"


@options.request_options(
    "rule",
    "protection",
    "importance",
    "num_speculative_tokens",
    "sampling",
    "max_new_tokens",
    without=("importance_scale",),
    rule="clamped:width=3",
    protect="digits",
)
def diagnose(
    *,
    target: Annotated[str, option("Verifying model: a local path or a hub name.", "MODEL", MODELS)] = "bundled",
    draft: Annotated[str | None, option(
        "Proposing model; one of its own, because its last layer is probed.", "MODEL", MODELS,
        shown="bundled:worded")] = None,
    task: Annotated[str, option(
        "Where prompts come from, as for cactus eval. Never what you report on.", "TASK",
        WHAT)] = "word_problems:split=train",
    problems: Annotated[int, option("Answer the first N problems.", "N", WHAT, min=2)] = 100,
    chat: options.ChatFlag = None,
    system: options.System = None,
    draft_cost: Annotated[float | None, option(
        "Time of a proposal in passes of the target, on the machine that will serve.", "C", WHAT,
        shown="as measured here", min=0)] = None,
    settings: options.Settings,
    memory: Annotated[int, option(
        "No further problem is answered once rows take so much.", "MIB", RUNNING, min=1)] = 4096,
    seed: Annotated[int, option("Of answers.", "S", RUNNING, min=0)] = 0,
    output: Annotated[Path | None, option(
        "Write the result, with its provenance, here.", "FILE", OUTPUT)] = None,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Say where lossless rejects, and what would win it back: training, relaxing, a tree, another length.

    Asks what is worth trying with a pair. Which rule then costs least 'cactus frontier' says, which one keeps a limit
    'cactus calibrate'.

    Answers problems losslessly, and looks at both models' rows. A probe of the draft's last layer, trained on one half
    of the problems and tried on the other, says what little training wins at least: much where a draft only words
    things differently. The rule and the protection are those that relaxing is judged by.
    """
    from cactus_decoding.core.drafting.registry import check_model_names, is_drafter

    check_model_names(target, draft)  # first, as a mistyped name needs no torch
    if draft is not None and is_drafter(draft):
        raise ValueError(f"a draft that can be trained is a model of transformers, but --draft is {draft!r}")
    from cactus_decoding import Request, load_pair
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.core.files.writing import as_json, check_writable, write_atomically
    from cactus_decoding.core.generate import check_prompt
    from cactus_decoding.core.policy.relaxation import RelaxationPolicy
    from cactus_decoding.core.rules import Lossless
    from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
    from cactus_decoding.lab.evaluation.chat import as_settings
    from cactus_decoding.lab.evaluation.tasks.sources import file_of, parse_task
    from cactus_decoding.lab.evaluation.tasks.task import task_in_chat
    from cactus_decoding.lab.training.acceptance.material import draft_model
    from cactus_decoding.lab.training.diagnosis import advice
    from cactus_decoding.lab.training.diagnosis import diagnose as diagnosed
    from cactus_decoding.lab.training.probe import FOLDS, Probe, check_request, record
    from cactus_decoding.zoo import full_name

    if draft is not None and parse_gguf(draft) is not None:
        raise ValueError(f"diagnose trains a probe of a draft of transformers, but this one is a GGUF file: {draft!r}")
    relaxed = Request.from_dict(settings | {"seed": seed})
    request = relaxed.replace(rule=Lossless(), policy=RelaxationPolicy())
    check_request(request)
    check_writable(output, inputs=[file_of(task)])
    asked_by = options.asked_chat(chat, system, target)
    chosen = parse_task(task, problems, chat=asked_by is not None)
    options.prepare_process(threads, target, draft, small=target == "bundled")
    console = Console(stderr=True, highlight=False)
    with console.status("Loading the models"):
        pair = load_pair(target, draft, kept_prompts=0)
    chosen = task_in_chat(chosen, pair.tokenizer, asked_by)
    draft_model(pair)
    for problem in chosen.problems:
        check_prompt(pair, problem.prompt, request)
    prompts = [problem.prompt for problem in chosen.problems]
    with counting("Answering", len(prompts)) as report:
        rows = record(pair, prompts, request, memory=memory * 2**20, report=report)
    probe = Probe()
    with counting("Probing", FOLDS * probe.steps + len(rows.problem)) as report:
        found = diagnosed(rows, pair, request, relaxed, draft_cost=draft_cost, probe=probe, report=report)
    if output is not None:
        names = {"target": target, "draft": full_name(draft or "bundled"), "task": task, "problems": problems}
        names |= as_settings(asked_by)
        result = found.as_dict() | {"advice": advice(found), "provenance": provenance(names | relaxed.as_dict())}
        write_atomically(output, as_json(result, indent=1) + "\n")
    out = Console(highlight=False)
    for line in advice(found):
        out.print(line, soft_wrap=True)
    out.print(_classes(found))
    out.print(_promises(found))


def _classes(found: Diagnosis) -> Table:
    table = Table(title=f"What lossless rejects, at {found.positions:,} positions of {found.problems} problems",
                  box=SIMPLE_HEAD, title_justify="left")  # fmt: skip
    for name in ("tokens", "of positions", "of rejections", "draft's confidence", "probe removes", "rule keeps"):
        table.add_column(name, justify="left" if name == "tokens" else "right", no_wrap=name == "tokens")
    for each in found.classes:
        shares = (each.positions, each.rejected, each.confidence, each.trained, each.relaxed)
        table.add_row(each.name, *(f"{100 * share:.0f} %" for share in shares))
    return table


def _promises(found: Diagnosis) -> Table:
    table = Table(title=f"What each way promises; a proposal takes {found.draft_cost:.2f} of a pass of the target",
                  box=SIMPLE_HEAD, title_justify="left")  # fmt: skip
    for name in ("", "acceptance", "tokens per step", "length", "time per token"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for each in found.promises:
        table.add_row(each.name, rounded(each.acceptance, 3), each.tokens_per_step.shown(2, "–"),
                      str(each.num_speculative_tokens), each.time.shown(2, "–"))  # fmt: skip
    return table
