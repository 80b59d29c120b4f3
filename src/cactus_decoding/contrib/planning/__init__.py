"""A fleet on paper: what recorded answers would take of so many replicas, by an event simulation."""
