"""Relaxed acceptance in vLLM, per request: a plug-in that vLLM finds by its entry point."""
