"""The command line's reference, from the commands themselves."""

from __future__ import annotations

import re
from typing import Any

from cactus_decoding.cli.app import app
from cactus_decoding.cli.help import commands_of

INTRODUCTION = """# Command line

`cactus COMMAND --help-all` says the same in a terminal, and `--help` what most need. A mistake ends with exit
code 2 and one sentence, a check that failed with 1, an interruption with 130.
"""


def command_page() -> str:
    """Return a section for each command: what it does, its options with their defaults, examples."""
    return "\n".join([INTRODUCTION, *(_section(name, command) for name, command in commands_of(app).items())])


def _section(name: str, command: Any) -> str:
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
