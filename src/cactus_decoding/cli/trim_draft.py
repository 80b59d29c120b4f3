"""`cactus trim-draft`: a draft that proposes from a part of the vocabulary, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cactus_decoding.cli.options import OUTPUT, option

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus trim-draft draft.gguf --data texts.jsonl --output trimmed.gguf\n\n"
    "cactus trim-draft ./trained.gguf --data ./trained --output trimmed.gguf"
)


def trim_draft(
    draft: Annotated[str, typer.Argument(metavar="DRAFT", help="A folder of transformers, or a GGUF file.")],
    *,
    data: Annotated[str, option(
        'JSON Lines of {"prompt"}, {"prompt", "completion"} or {"text"}, whose tokens count; or a folder that '
        "--draft-vocabulary has made, whose tokens are taken.", "FILE")],
    output: Annotated[Path, option(
        "A folder, or a GGUF file, which gets a second one beside it: OUT.vocabulary.safetensors.", "OUT", OUTPUT)],
    draft_vocabulary: Annotated[int, option("How many of the commonest tokens to keep.", "N", min=1)] = 16384,
) -> None:  # fmt: skip
    """Make a draft cheaper: it goes on reading every token, but proposes only the commonest of a text.

    A draft of a large vocabulary spends much of its time on the output layer. The target's law stays as it is: what the
    draft lacks, it does not propose. GGUF files need the extra 'llama-cpp'.
    """
    from cactus_decoding.training.vocabulary import trim_draft as trim

    kept = trim(draft, data, draft_vocabulary, output)
    typer.echo(f"wrote {output}, which proposes from {kept} tokens")
