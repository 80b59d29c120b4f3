"""Speculative decoding inside transformers' own generate."""
