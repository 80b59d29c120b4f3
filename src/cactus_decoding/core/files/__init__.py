"""What is written to disk, whole or not at all, with its provenance, and read from it."""
