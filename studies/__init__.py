"""Studies of what rules cost: each has a folder that runs it, renders its page of the site, and keeps its results."""
