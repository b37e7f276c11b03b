"""`python -m metaprior`, and how a table is read that the prior does not tell of."""

import runpy
import sys
from types import SimpleNamespace

import pytest

from metaprior import __version__, terminal
from metaprior.cli.options import fitted_format


@pytest.fixture(autouse=True)
def _signals_of_this_process(monkeypatch):
    """Tests run `main` here: this process keeps its own handlers."""
    for name in ("exit_on_signals", "ignore_signals"):
        monkeypatch.setattr(terminal, name, lambda: None)


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


def test_priors_fitted_in_python_do_not_tell_how_their_tables_were_written():
    meta = SimpleNamespace(training_={})
    assert fitted_format(meta, ";", None, None) == (";", ".", "utf-8")
