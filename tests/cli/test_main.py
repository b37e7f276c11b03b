"""`python -m metaprior`, and `metaprior info` of files of earlier versions."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from metaprior import __version__, interruption
from metaprior.cli import app
from metaprior.cli.options import fitted_format

EARLIER = Path(__file__).parents[1] / "data" / "jax-0.10-python-3.11.safetensors"


@pytest.fixture(autouse=True)
def _signals_of_this_process(monkeypatch):
    """Tests run `main` here: this process keeps its own handlers."""
    for name in ("exit_on_signals", "ignore_signals"):
        monkeypatch.setattr(interruption, name, lambda: None)


def test_the_package_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["anything", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("metaprior", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


def test_usage_names_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "info", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_module("metaprior", run_name="__main__")
    assert "Usage: metaprior info" in capsys.readouterr().out


def test_the_final_loss_was_once_called_free_energy():
    result = CliRunner().invoke(app, ["info", str(EARLIER)])
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if "final loss" in line)
    assert any(character.isdigit() for character in line)


def test_priors_of_earlier_versions_do_not_tell_how_their_tables_were_written():
    earlier = SimpleNamespace(training_={"data": "patients.csv"})
    assert fitted_format(earlier, ";", None, None) == (";", ".", "utf-8")
