"""Relaxed acceptance in vLLM, per request: a plug-in that vLLM finds by its entry point.

`plugin` is what vLLM calls in each of its processes; `request` reads what a user asks for; `relaxed_logits` turns a
rule into logits for vLLM's own sampler; `v1` and `v2` are the seams to the two model runners.
"""
