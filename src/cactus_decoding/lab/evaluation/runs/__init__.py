"""Runs of an evaluation: answering, keeping and summing up."""
