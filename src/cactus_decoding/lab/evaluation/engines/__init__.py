"""Engines: what answers a prompt under a run's settings. Each is loaded for one target and one draft."""
