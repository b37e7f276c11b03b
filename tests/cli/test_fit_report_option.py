"""`fit --report`: paths that are refused before any work, and a prior that outlives its report."""

import json
import os

import pytest
from running import call, words
from typer.testing import CliRunner

from metaprior import files, load
from metaprior.cli import app

COLUMNS = ["--task", "patient", "--x", "hours", "--y", "heart_rate", "--environment", "hospital", "--target", "south"]
QUICK = ["--alpha", "0.5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example")
    call("example", "--out", folder)
    return folder


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("{tmp}/fit.pdf", "--report must end in .html; got"),
        ("{tmp}/here.html", "is a folder. Name a file."),
        ("{tmp}/table.html", "is a file that this command reads. Name another."),
        ("{tmp}/prior.html", "--out and --report must be two files"),
        ("/proc/fit.html", "Name a file elsewhere."),
    ],
)
def test_bad_paths_are_refused_before_any_work(folder, tmp_path, report, message):
    table, prior = tmp_path / "table.html", tmp_path / "prior.html"
    table.write_bytes((folder / "patients.csv").read_bytes())
    (tmp_path / "here.html").mkdir()
    path = report.format(tmp=tmp_path)
    result = call("fit", table, *COLUMNS, *QUICK, "--out", prior, "--report", path, code=2)
    assert message in words(result)
    assert not prior.exists()
    assert table.read_bytes() == (folder / "patients.csv").read_bytes()


def test_prior_and_report_are_two_files(folder, tmp_path):
    command = ("fit", folder / "patients.csv", *COLUMNS, *QUICK, "--out", tmp_path / "p")
    (tmp_path / "a.html").symlink_to(tmp_path / "p")
    (tmp_path / "p").touch()
    assert "--out and --report must be two files" in words(call(*command, "--report", tmp_path / "a.html", code=2))


def test_a_prior_outlives_its_report(folder, tmp_path, monkeypatch):
    write = files.write_atomically

    def full(path, *rest, **more):
        if str(path).endswith(".html"):
            raise OSError(28, "No space left on device", str(path))
        write(path, *rest, **more)

    monkeypatch.setattr(files, "write_atomically", full)
    prior, report = tmp_path / "prior.safetensors", tmp_path / "fit.html"
    command = ("fit", folder / "patients.csv", *COLUMNS, *QUICK, "--out", prior, "--report", report)
    result = call(*command, code=2)
    assert f"{report}: No space left on device" in words(result)
    assert f"Note: {prior} is written, {report} is not." in words(result)
    assert load(prior).training_["target"] == "south"
    assert json.loads(call(*command, "--json", code=2).stdout)["exit_code"] == 2
    assert [path.name for path in tmp_path.iterdir()] == [prior.name]


def test_a_prior_outlives_a_report_that_cannot_be_made(folder, tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("no report today")

    monkeypatch.setattr("metaprior_app.report.held_out_tasks", broken)
    prior, report = tmp_path / "prior.safetensors", tmp_path / "fit.html"
    result = call("fit", folder / "patients.csv", *COLUMNS, *QUICK, "--out", prior, "--report", report, code=2)
    assert "no report today" in words(result)
    assert prior.exists()
    assert not report.exists()


def test_a_prior_outlives_any_error_in_its_report(folder, tmp_path, monkeypatch):
    def broken(*_):
        raise KeyError("a column")

    monkeypatch.setattr("metaprior_app.report.held_out_tasks", broken)
    prior, report = tmp_path / "prior.safetensors", tmp_path / "fit.html"
    command = ("fit", folder / "patients.csv", *COLUMNS, *QUICK, "--out", prior, "--report", report)
    result = CliRunner().invoke(app, list(map(str, command)))
    assert result.exit_code == 70  # of a mistake in metaprior
    assert f"Note: {prior} is written, {report} is not." in words(result)
    assert prior.exists()


def test_a_table_from_a_pipe(folder, tmp_path):
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write((folder / "patients.csv").read_bytes())
    report = tmp_path / "fit.html"
    try:
        call("fit", f"/dev/fd/{reading}", *COLUMNS, *QUICK, "--out", tmp_path / "p", "--report", report)
    finally:
        os.close(reading)
    content = report.read_text()
    assert "The table came through a pipe." in content
    assert "metaprior fit - --task patient" in content
