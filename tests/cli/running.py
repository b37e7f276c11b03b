"""Commands run as users do, in this process."""

from typer.testing import CliRunner

from metaprior.cli import app


def call(*arguments, code=0):
    """Run a command, which must end with the exit code and without a traceback."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def words(result):
    """Return what a command printed, lines joined again."""
    return " ".join((result.stdout + result.stderr).split())
