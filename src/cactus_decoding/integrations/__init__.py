"""Translations to and from other engines; no mathematics of their own."""
