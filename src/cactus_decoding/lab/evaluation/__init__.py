"""Evaluations that say what a rule costs and what it buys; every difference is paired, and has an interval."""
