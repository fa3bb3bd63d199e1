"""Fixtures of several files."""

import pytest


@pytest.fixture
def error_of(capsys):
    """The sentence that a wrong command line is answered with."""

    def run(*arguments):
        from epcx.cli import main

        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        assert stopped.value.code == 2
        message = capsys.readouterr().err.strip()
        assert "Traceback" not in message
        return message

    return run
