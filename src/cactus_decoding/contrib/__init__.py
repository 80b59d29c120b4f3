"""Rooms without a promise of stability yet: their names, options and files may change in any version.

- `trees`: trees of proposals that grow by what their tokens are worth (``best_first``, ``adaptive``);
- `planning`: what a fleet of servers needs for a load, by simulation (``cactus plan``);
- `load_rules`: rules that are the looser, the more requests share a server (vLLM's ``load_rule``, ``cactus calibrate
  --max-ms-per-token``).

Nothing below the command line imports them: what offers one by its name finds it in a table (`arguments.contributed`).
"""
