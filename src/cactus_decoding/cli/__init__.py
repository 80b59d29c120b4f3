"""The `cactus` command."""

from cactus_decoding.cli.app import app, main

__all__ = ["app", "main"]
