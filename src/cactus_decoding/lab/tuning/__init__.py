"""Measures what speculation gains on this machine."""
