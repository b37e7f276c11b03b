"""`python -m metaprior`."""

import inspect
import runpy
import sys

import pytest
import typer

from metaprior import MetaGPClassifier, MetaGPRegressor, __version__, terminal
from metaprior.cli import app


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


@pytest.mark.parametrize(("name", "most"), [("fit", 20), ("wfem", 30)])
def test_options_are_few_and_in_groups(name, most):
    parameters = typer.main.get_command(app).commands[name].params
    assert len(parameters) <= most
    groups = {each.rich_help_panel for each in parameters if each.param_type_name == "option"}
    assert groups == {"Data", "Model", "Output"}


def test_every_parameter_of_an_estimator_is_an_option_or_can_be_set():
    """Under the name that it has in Python."""
    parameters = typer.main.get_command(app).commands["fit"].params
    options = {name.removeprefix("--").replace("-", "_") for each in parameters for name in each.opts}
    words = inspect.getdoc(typer.main.get_command(app).commands["fit"].callback)
    for estimator in (MetaGPRegressor, MetaGPClassifier):
        for name in inspect.signature(estimator).parameters:
            assert name in options or f"{name}=" in words, name
