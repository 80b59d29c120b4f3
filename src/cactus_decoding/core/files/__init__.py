"""Files are written whole or not at all, and carry their provenance."""
