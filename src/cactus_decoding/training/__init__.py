"""How the bundled pair was made."""
