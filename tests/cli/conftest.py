import pytest

from balpoe.cli.main import main


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; return exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
