"""`cactus frontier`: what every rule accepts and what it costs, exactly, at the positions of a lossless run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting
from cactus_decoding.cli.options import OUTPUT, RUNNING, option

if TYPE_CHECKING:
    from cactus_decoding import Request
    from cactus_decoding.lab.frontier.costs import Forecast
    from cactus_decoding.lab.frontier.frontier import Point
    from cactus_decoding.lab.frontier.limits import Limit
    from cactus_decoding.lab.frontier.recorded_rows import RecordedRows

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus frontier --output frontier.json --picture frontier.svg\n\n"
    "cactus frontier --output frontier.json --temperature 0.6 --top-p 0.95 --top-k 20 --family cactus "
    "--family clamped\n\n"
    "cactus frontier --output frontier.json --protect digits --picture frontier.svg\n\n"
    "cactus frontier --output frontier.json --at kl=0.05\n\n"
    "cactus frontier --output frontier.json --family clamped --costs costs.json\n\n"
    "cactus frontier --output frontier.json --target ./large --draft ./small --task gsm8k:path=gsm8k_train.jsonl"
)
WHAT, MODELS = "What is recorded", "Models"
MEBIBYTE = 2**20
FORECAST = "Forecast, not measured"
_WIDTHS = (2, 4, 8)  # numbers of children in the printed table; the file has all


@options.request_options("protection", "sampling", "max_new_tokens", several=("protect",))
def frontier(
    *,
    output: Annotated[Path, option("Result file, JSON.", "FILE", OUTPUT)],
    rows_file: Annotated[Path | None, option(
        "File of recorded rows. One that exists is used again, and no model runs.", "FILE", OUTPUT, flag="--rows",
        shown="the result file's name with .safetensors")] = None,
    picture: Annotated[Path | None, option(
        "Draw acceptance against KL and TV here, as SVG (needs the extra 'report').", "FILE", OUTPUT,
        shown="none")] = None,
    family: Annotated[list[str] | None, option(
        "Rule family, such as cactus, cactus_exact, clamped, ensemble, lenience, typical, top_k; may be given several "
        "times.", "NAME", shown="all")] = None,
    rule: Annotated[list[str] | None, option(
        "A rule that stands beside the families as it is, also your own by its importable path: "
        "my_module:MyRule,ratio=0.5; may be given several times. --family my_module:MyRule takes the families that it "
        "declares.", "RULE", shown="none")] = None,
    at: Annotated[str | None, option(
        "Print the rule to type that accepts most at a mean KL of kl=NATS per visited position, or costs least at "
        "acceptance=P.", "LIMIT", shown="none")] = None,
    costs: Annotated[Path | None, option(
        "Also forecast the time of an answer on hardware that somebody else has timed: a file of what passes cost "
        "there, which docs/evaluation.md describes.", "FILE", shown="none")] = None,
    answer_tokens: Annotated[int, option(
        "Tokens of the answers that --costs forecasts, under every rule.", "N", min=1)] = 300,
    children: Annotated[int, option(
        "Also work out how often one of 1, 2, … N children of a tree's node is kept, with one of them drawn and with "
        "none: what width is worth. Takes 2 N times as long.", "N", shown="none", min=0, max=64)] = 0,
    points: Annotated[int, option("Knobs per family, over its whole range.", "N", min=2)] = 13,
    positions: Annotated[int, option("How many visited positions are recorded.", "N", WHAT, min=1)] = 3000,
    task: Annotated[str, option(
        "Where prompts come from, as for cactus eval. Tune on other problems than you report on.", "TASK",
        WHAT)] = "word_problems:split=validation",
    target: Annotated[str, option(
        "Verifying model: a local path, a GGUF file or a hub name.", "MODEL", MODELS)] = "bundled",
    draft: Annotated[str, option(
        "Proposing model, 'suffix' to look proposals up in the text, or 'early_exit:layers=3' for the target's "
        "first layers.", "MODEL", MODELS)] = "bundled:worded",
    chat: options.ChatFlag = None,
    system: options.System = None,
    num_speculative_tokens: Annotated[int, option(
        "Proposals per step; shorter drafts follow from the same rows.", "N", WHAT, min=1)] = 12,
    settings: options.Settings,
    seed: Annotated[int, option("Of the answers.", "S", WHAT, min=0, max=2 ** 32)] = 0,
    memory: Annotated[int, option(
        "Memory for an audit's work, in MiB. The rows may take four times as much: recording stops there.", "MIB",
        RUNNING, min=1)] = 512,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Compute acceptance against KL and TV for every rule over its whole range, exactly, with no sampling noise.

    Asks which rule costs least for the same acceptance, and with --at which one to take within a limit. Scores and
    times 'cactus eval' measures.

    Lossless speculation runs on problems once, and the rows of both models are kept; everything else is computed. With
    --protect, every rule also stands there with these tokens protected. The result file also says at which kinds of
    tokens lossless rejects; 'cactus report --frontier' shows that.
    """
    from cactus_decoding.core.drafting.registry import check_model_names

    rows_file = output.with_suffix(".safetensors") if rows_file is None else rows_file
    recorded = rows_file.exists()  # then it is only read
    if not recorded:
        check_model_names(target, draft)
    from cactus_decoding import parse_rule

    rules = [str(parse_rule(text)) for text in rule or []]  # first, as a mistyped name needs no torch
    from cactus_decoding import Request
    from cactus_decoding.core.declared import settings_of
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.core.files.writing import as_json, check_writable, write_atomically
    from cactus_decoding.core.policy.protection import Protection
    from cactus_decoding.core.policy.vocabulary import Vocabulary
    from cactus_decoding.lab.evaluation.chat import as_settings, tokenizer_of
    from cactus_decoding.lab.evaluation.intervals import FEWEST_PROBLEMS
    from cactus_decoding.lab.evaluation.run_config import NO_PROTECTION, parse_policies
    from cactus_decoding.lab.evaluation.tasks.sources import file_of
    from cactus_decoding.lab.frontier.costs import NOTE, forecast_result, forecasts, read_profiles
    from cactus_decoding.lab.frontier.frontier import Frontier, as_result
    from cactus_decoding.lab.frontier.frontier import frontier as compute
    from cactus_decoding.lab.frontier.limits import Limit, best_within
    from cactus_decoding.lab.frontier.rejections import rejections
    from cactus_decoding.lab.frontier.relaxations import parse_families
    from cactus_decoding.lab.reporting.charts import frontier_picture
    from cactus_decoding.lab.reporting.pictures import new_figure
    from cactus_decoding.zoo import full_name

    draft, limit = full_name(draft), None if at is None else Limit.parse(at)
    profiles = [] if costs is None else read_profiles(costs)
    protection = {name: settings.pop(name) for name in settings_of(Protection)}
    asked = {"num_speculative_tokens": num_speculative_tokens} | settings | {"seed": seed}
    request, families = Request.from_dict(asked), parse_families(family or [], rules)
    protect = protection.pop("protect") or []
    policies = parse_policies([NO_PROTECTION, *protect], **protection)
    check_writable(
        output, picture, None if recorded else rows_file, inputs=[rows_file if recorded else None, file_of(task), costs]
    )
    options.check_suffix("--picture", picture, ".svg")
    if picture is not None:
        new_figure()  # raises without matplotlib
    asked_by = as_settings(options.asked_chat(chat, system, target))
    settings = {"task": task, "target": target, "draft": draft, "positions": positions} | asked_by | asked
    options.prepare_process(threads, *(() if recorded else (target, draft)), small=target == "bundled")
    tokenizer = tokenizer_of(target)
    for policy in policies:
        policy.fit(tokenizer, len(tokenizer))  # raises before anything is recorded
    rows = _rows(rows_file, settings, request, memory * MEBIBYTE)
    vocabulary = Vocabulary.of(tokenizer, rows.target.vocabulary)
    total = 2 + len(policies) * sum(len(f.knobs(points)) for f in families)
    memory_ = memory * MEBIBYTE
    with counting("Auditing", total) as report:
        measured = compute(
            rows,
            families,
            points=points,
            memory=memory_,
            policies=policies,
            vocabulary=vocabulary,
            report=report,
            max_children=children,
        )
    best: list[Point] = []
    if limit is not None:
        with counting(f"Best at {limit}", len(families) * len(policies)) as report:
            best = best_within(Frontier(rows, memory_, vocabulary), families, limit, policies, report)
    arguments = settings | {"families": [f.name for f in families], "points": points, "rows": str(rows_file)}
    arguments |= {"children": children, "protect": protect} | protection
    result = as_result(measured, rows, provenance(arguments | ({} if limit is None else {"at": str(limit)})))
    result["rejections"] = rejections(rows, vocabulary, memory_)
    foreseen = forecasts(measured, profiles, answer_tokens)
    if costs is not None:
        result["forecast"] = forecast_result(foreseen, profiles, answer_tokens)
    if limit is not None:
        result["at"] = {"limit": str(limit), "points": [point.as_dict() for point in best]}
    write_atomically(output, as_json(result, indent=1) + "\n")
    if picture is not None:
        write_atomically(picture, frontier_picture(result))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(table_of(measured, f"{rows.positions} positions of {rows.problems} problems"))
    others = "the intervals (95 %) say how much other problems would differ"
    if rows.problems < FEWEST_PROBLEMS:
        others = f"fewer than {FEWEST_PROBLEMS} problems are too few to tell how much others would differ"
    console.print(
        f"Exact at these positions; {others}. tokens/step is for {len(measured[0].tokens_per_step)} proposals."
    )
    for name, found in foreseen.items():
        console.print("", forecast_table(name, found, answer_tokens), sep="\n")
    if foreseen:
        console.print(NOTE, soft_wrap=True)
    if limit is not None:
        console.print("", advice(limit, measured[0], best), sep="\n", soft_wrap=True)


def forecast_table(name: str, forecasts: Sequence[Forecast], answer_tokens: int) -> Table:
    title = f"{FORECAST}: {name}, answers of {answer_tokens} tokens"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=escape(title), title_justify="left")
    table.add_column("rule", overflow="fold")
    for heading in ("best\nproposals", "seconds/\nanswer", "tokens/\nsecond", "times as fast as\nthe target alone"):
        table.add_column(heading, justify="right")
    for each in forecasts:
        numbers = f"{each.tokens_per_second:.1f}", f"{each.times_as_fast_as_alone:.2f}"
        seconds = each.seconds_per_answer.shown(3, "–")
        table.add_row(escape(each.rule), str(each.num_speculative_tokens), seconds, *numbers)
    return table


def advice(limit: Limit, lossless: Point, best: Sequence[Point]) -> str:
    """Say which rule to type, or that lossless is as good."""
    accepts = f"lossless accepts {lossless.acceptance.value:.4f}"
    if limit.holds(lossless) and (not best or limit.worth(best[0]) <= limit.worth(lossless)):
        return f"[bold]At {limit}:[/bold] --rule lossless\nNo rule is better there; {accepts}."
    if not best:
        return f"No rule reaches {limit}; {accepts}."
    point = best[0]
    words, protection = ["--rule", point.rule], point.relaxation.policy.protection
    if protection is not None:
        words += ["--protect", protection.pattern, "--protect-threshold", f"{protection.threshold:g}"]
    return (
        f"[bold]At {limit}:[/bold] {escape(shlex.join(words))}\nIt accepts {point.acceptance.value:.4f} of the "
        f"proposals ({accepts}) for {point.kl.value:.4g} nats per visited position, exactly at these positions. Scores "
        "and times 'cactus eval' measures."
    )


def _rows(path: Path, settings: dict[str, Any], request: Request, memory: int) -> RecordedRows:
    """Read the rows of a file, or record and keep them if it does not exist."""
    from cactus_decoding import load_pair
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.lab.evaluation.tasks.sources import recorded_task
    from cactus_decoding.lab.frontier.recorded_rows import read_rows
    from cactus_decoding.lab.frontier.recording import record_rows

    if path.exists():
        rows = read_rows(path)
        differing = [name for name in (*settings, "chat", "system") if rows.settings.get(name) != settings.get(name)]
        if differing:
            name = differing[0]
            raise ValueError(
                f"{path} was recorded with {name}={rows.settings.get(name)!r}, but {settings.get(name)!r} is asked "
                "for; give another --rows file, or the same settings"
            )
        return rows
    pair = load_pair(settings["target"], settings["draft"], kept_prompts=0)
    asked = recorded_task(settings, pair.tokenizer)
    with counting("Recording", settings["positions"]) as report:
        rows = record_rows(
            pair,
            [problem.prompt for problem in asked.problems],
            request.replace(stop=asked.stop),
            positions=settings["positions"],
            memory=4 * memory,
            settings=settings,
            provenance=provenance(settings),
            report=report,
        )
    rows.save(path)
    if rows.positions < settings["positions"]:
        typer.echo(
            f"cactus: warning: {rows.positions} of {settings['positions']} positions were recorded: the task has no "
            "more problems, or --memory is used up",
            err=True,
        )
    return rows


def table_of(points: list[Point], title: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("rule", overflow="fold")
    widths = [count for count in _WIDTHS if count <= len(points[0].kept_by_children)]
    kept = [f"1 of {count}\nkept" for count in widths]
    for name in ("acceptance", *kept, "KL, nats", "TV", "max log\nratio", "tokens/step"):
        table.add_column(name, justify="right")
    curve = points[0].family, points[0].relaxation.policy
    for point in points:
        if (point.family, point.relaxation.policy) != curve and point.family != "limit":
            table.add_section()
        curve = point.family, point.relaxation.policy
        rule = f"{point.rule} (limit)" if point.family == "limit" else escape(str(point.relaxation))
        wider = (f"{point.kept_by_children[count - 1].value:.4f}" for count in widths)
        acceptance, kl, tv = (each.shown(4, "–") for each in (point.acceptance, point.kl, point.tv))
        table.add_row(
            rule, acceptance, *wider, kl, tv, f"{point.max_log_ratio:.2f}", f"{point.tokens_per_step[-1].value:.2f}"
        )
    return table
