"""Translations to other libraries: shapes only, no mathematics."""
