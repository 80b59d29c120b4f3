import pytest
from cactus_conform.command import main


@pytest.fixture
def run(capsys):
    """Call the command line in this process: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        return code, *capsys.readouterr()

    return call
