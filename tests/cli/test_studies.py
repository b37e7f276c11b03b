"""`metaprior demo`, `reproduce` and `bench-data` belong to another package."""

import sys

import pytest
from typer.testing import CliRunner

from metaprior.cli import STUDIES, app


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def without_studies(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("metaprior_studies")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "metaprior_studies", None)


@pytest.mark.usefixtures("without_studies")
@pytest.mark.parametrize("name", STUDIES)
def test_a_core_install_says_what_is_missing(name):
    for arguments in ([], ["--help"], ["fig1", "--draws", "2"]):
        result = run(name, *arguments)
        assert result.exit_code == 2
        assert result.stderr == (
            f"metaprior {name} needs the package metaprior_studies: run `pip install ./studies` in a checkout of "
            "metaprior.\n"
        )


@pytest.mark.usefixtures("without_studies")
def test_the_help_of_a_core_install_lists_all_commands():
    result = run("--help")
    assert result.exit_code == 0
    for name in ("fit", "evaluate", "predict", "info", "store", "example", *STUDIES):
        assert f" {name} " in result.output


def test_help_and_options_are_forwarded(tmp_path):
    help_text = run("demo", "--help")
    assert help_text.exit_code == 0
    assert "--problem" in help_text.output
    assert "metaprior demo" in help_text.output
    wrong = run("reproduce", "fig1", "--profile", "slow")
    assert wrong.exit_code == 2
    assert "'slow' is not one of" in wrong.stderr
    (tmp_path / "file").write_text("")
    wrong = run("demo", "--out", str(tmp_path / "file" / "demo"), "--draws", "1")
    assert wrong.exit_code == 2
    assert "cannot write there" in wrong.stderr
