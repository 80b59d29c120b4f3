"""The reference: the commands, all public names, and every module of the package on one of the pages below."""

from __future__ import annotations

import inspect
import pkgutil
import re
from typing import Any, NamedTuple

import cactus_decoding
from cactus_decoding.cli.app import app
from cactus_decoding.cli.help import commands_of

PACKAGE = "cactus_decoding"


class Part(NamedTuple):
    """A page: its heading, what it is about, and modules, each with all below it that is not named elsewhere."""

    title: str
    about: str
    modules: str = ""


PARTS = {
    "generating": Part(
        "Generating", "Load a pair of models, generate or stream a response, read what was counted.",
        "core.generate core.response core.request core.pair core.loop core.metrics core.sampling core.constraints",
    ),
    "rules": Part(
        "Rules", "Every rule is a frozen dataclass with two pure functions behind one protocol; "
        "[their pages](../rules/index.md) say what each does and costs.", "core.types core.rules core.spelling",
    ),
    "verifying": Part(
        "Verifying, auditing, budgets",
        "The one place where rules meet randomness, and what looks at the same distributions: the audit and the meter.",
        "core.verification core.audit core.policy core.divergences",
    ),
    "drafting": Part(
        "Drafting", "Where proposals come from, and how many of them a step makes.", "core.drafting",
    ),
    "integrations": Part(
        "Engines", "Where models run: translations to other libraries, without mathematics of their own. "
        "[Hugging Face](../hugging_face.md) and [vLLM](../vllm.md) have pages of their own.", "engines",
    ),
    "evaluation": Part(
        "Evaluation", "What `cactus eval`, `frontier` and `report` are made of.",
        "lab.evaluation lab.reporting lab.frontier lab.tuning core.files.provenance",
    ),
    "traces": Part(
        "Traces and playground", "What happened at every position of a response, and the two pages that show it: see "
        "[traces and playground](../traces_and_playground.md).", "lab.tracing lab.playground",
    ),
    "models": Part(
        "Models", "Caches that can be rolled back, and the forward passes that read tokens into them.", "core.models",
    ),
    "bundled": Part(
        "The bundled pair",
        "The models that ship with the package, the problems that they know, and what trains drafts.",
        "zoo lab.training",
    ),
    "others": Part("All other modules", "What the parts above share, and what is built on top of them."),
}  # fmt: skip
CONFORM = ("suite.conform", "engine.Sampling", "engine.Engine", "engine.Query", "engine.EngineAnswer",
           "report.ConformanceReport", "models.write_models", "truth.expected_token",
           "truth.arrival_times")  # fmt: skip
LEFT_OUT = ("cli",)  # has a page that is made from the commands
CONSTANTS = {
    "RULES": ("core.rules.RULES", "Every rule by its name."),
    "DRAFTERS": ("core.drafting.registry.DRAFTERS", "Drafters that need no weights of their own, by name."),
    "DRAFT_LENGTHS": ("core.drafting.registry.DRAFT_LENGTHS", "Every draft length by its name."),
}
INTRODUCTION = """# Command line

`cactus COMMAND --help-all` says the same in a terminal, and `--help` what most need. A mistake ends with exit
code 2 and one sentence, a check that failed with 1, an interruption with 130.
"""
NAMES = """# Public names

What `import cactus_decoding` offers. The pages after this one describe every module.

| name | what it is |
|---|---|
"""


def names_page() -> str:
    """Return a table of the public names, each a link to its description."""
    return NAMES + "".join(_row(name) for name in sorted(cactus_decoding.__all__, key=str.casefold))


def reference_pages() -> dict[str, str]:
    """Return the Markdown of every other page by its name."""
    every = [
        each.name.removeprefix(f"{PACKAGE}.") for each in pkgutil.walk_packages(cactus_decoding.__path__, f"{PACKAGE}.")
    ]
    named = [*LEFT_OUT, *(name for part in PARTS.values() for name in part.modules.split())]
    pages, packages = {}, {each.rpartition(".")[0] for each in every}
    for key, part in PARTS.items():
        modules = [each for name in part.modules.split() for each in every if _is_below(each, name)]
        if not modules:
            modules = [each for each in every if not any(_is_below(each, name) for name in named)]
        sections = [_section(module, module in packages) for module in modules]
        pages[key] = "\n\n".join([f"# {part.title}", part.about, *sections]) + "\n"
    about = "What `import cactus_conform` offers: see [Is an engine lossless?](../conformance.md)."
    described = [f"## {name.partition('.')[2]}\n\n::: cactus_conform.{name}" for name in CONFORM]
    return pages | {"conformance": "\n\n".join(["# cactus-conform", about, *described]) + "\n"}


def _is_below(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _section(module: str, package: bool) -> str:
    """Return a module's section; a package's names are described where they are defined, but for its own."""
    lines = [f"## {module}", "", f"::: {PACKAGE}.{module}"]
    if package:
        lines.append(f"    options: {{members: [{', '.join(_own_names(module))}]}}")
    return "\n".join(lines)


def _own_names(module: str) -> list[str]:
    loaded = __import__(f"{PACKAGE}.{module}", fromlist=["_"])
    return [
        name
        for name in getattr(loaded, "__all__", ())
        if not hasattr(value := getattr(loaded, name), "__qualname__") or value.__module__ == loaded.__name__
    ]


def _row(name: str) -> str:
    if name in CONSTANTS:
        address, about = CONSTANTS[name]
        address = f"{PACKAGE}.{address}"
    else:
        value = getattr(cactus_decoding, name)
        address = f"{value.__module__}.{value.__qualname__}"
        about = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    return f"| [`{name}`][{address}] | {about.replace('|', chr(92) + '|')} |\n"


def command_page() -> str:
    """Return a section for each command: what it does, its options with their defaults, examples."""
    return "\n".join([INTRODUCTION, *(_command_section(name, command) for name, command in commands_of(app).items())])


def _command_section(name: str, command: Any) -> str:
    about = (command.help or "").strip()
    lines = [f"## cactus {name}", "", about, "", "| option | what | default |", "|---|---|---|"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        spelled = "<br>".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts] if option)
        if parameter.param_type_name == "argument":
            spelled = f"`{parameter.metavar or parameter.name.upper()}`"
        lines.append(f"| {spelled} | {_escape(parameter.help or '')} | {_default(parameter)} |")
    told = [re.sub(r"\[/?bold\]", "", line) for line in (command.epilog or "").split("\n\n")[1:]]
    examples = [line for line in told if line.startswith("cactus ")]
    if examples:
        lines += ["", "Examples:", "", "```bash", *examples, "```"]
    lines += ["", *(_escape(line) for line in told if line not in examples)]
    return "\n".join(lines) + "\n"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return _escape(parameter.show_default)
    value = parameter.default
    if value is None or callable(value) or parameter.param_type_name == "argument":
        return ""
    return f"`{_escape(', '.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))}`"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
