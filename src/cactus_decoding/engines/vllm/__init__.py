"""Relaxed acceptance in vLLM, per request: a plug-in that vLLM finds by its entry point.

`plugin` is what vLLM calls in each of its processes; `request` reads what a user asks for; `frontend`, `v1` and `v2`
are the seams to vLLM's front end and its two model runners, which share a step in `integrations.common`.
"""
