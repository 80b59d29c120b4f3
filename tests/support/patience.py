"""How long a test waits for what comes at once on an idle machine."""

PATIENCE = 300.0
"""Seconds: a loaded machine must not make a test fail. It is spent only where something hangs."""
