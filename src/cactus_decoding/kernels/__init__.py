"""Fast paths of the package's own functions, each checked against the plain one that it stands in for."""
