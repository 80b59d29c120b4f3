from pathlib import Path


def render(folder: Path, samplings: list[str], page: Path) -> None: ...
