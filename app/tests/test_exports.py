"""What leaves the page gives the same numbers again: the CSV, the command line that it shows, and the Python."""

import ast
import io
import shlex
import warnings
from contextlib import chdir

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from metaprior.cli import app as command_line
from metaprior.tables.csv_files import CsvFormat
from metaprior_app.fits import Fit
from metaprior_app.recipes import FitRequest, command_lines, fit_arguments, fit_code, python_code
from page_client import PATIENT_ROLES, PATIENTS, labels_table, readings_table

READINGS = [{"x": [2.0], "y": 84.0}, {"x": [20.5], "y": 91.25}, {"x": [40.0], "y": 78.0}]


def take_along(page, request, folder, table_name, table):
    """Save what the buttons save, and the table, to a folder; return the page's predictions, and its programs."""
    (folder / table_name).write_bytes(table)
    (folder / "readings.csv").write_bytes(page.post("readings.csv", request).content)
    predictions = page.post("predictions.csv", request)
    assert predictions.status == 200, predictions.content
    (folder / "predictions.csv").write_bytes(predictions.content)
    code = page.post("api/code", request).json
    return pd.read_csv(io.BytesIO(predictions.content)), code["command"], code["python"]


def run_commands(commands, folder):
    """Run what the page shows for a terminal."""
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "metaprior"
        with chdir(folder):
            found = CliRunner().invoke(command_line, arguments)
        assert found.exit_code == 0, f"{line}\n{found.output}"
    return pd.read_csv(folder / "again.csv")


def run_python(program, folder):
    """Run what the page shows as Python, and write its frame to a file."""
    script = program + '\nframe.to_csv("python.csv", index=False)\n'
    with chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(script, "python.py", "exec"), {"__name__": "__main__"})
    return pd.read_csv(folder / "python.csv")


def check_same(found, expected):
    """Columns of the same names, numbers to 1e-9, and words as they are."""
    assert list(found.columns) == list(expected.columns)
    for name in expected.columns:
        if pd.api.types.is_float_dtype(expected[name]):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-9, err_msg=name)
        else:
            assert found[name].tolist() == expected[name].tolist()


def test_numbers_give_the_same_by_command_line_and_by_python(page, tmp_path):
    """A quick relative of the next test."""
    content, roles = readings_table().to_csv(index=False).encode(), {"task": ["task"], "x": ["x"], "y": "y"}
    given = fit_and_take(page, "table.csv", content, roles, tmp_path, readings=[{"x": [2.0], "y": 1.0}], coverage=0.75)
    predictions, commands, program = given
    check_same(run_commands(commands, tmp_path), predictions)
    (tmp_path / "prior.safetensors").unlink()
    check_same(run_python(program, tmp_path), predictions)


@pytest.mark.slow
def test_patients_give_the_same_by_command_line_and_by_python(page, tmp_path):
    page.post("api/example", {"name": "patients"})
    page.post("api/fit", PATIENT_ROLES)
    assert page.wait_for_fit()["status"] == "done"
    page.workspace.stop_slider()
    request = page.chart(readings=READINGS, coverage=0.75)
    shown = page.post("api/predict", request).json
    predictions, commands, program = take_along(page, request, tmp_path, "patients.csv", PATIENTS.read_bytes())
    assert predictions["hours"].tolist() == pytest.approx(shown["x"], abs=1e-3)
    assert predictions["mean"].tolist() == pytest.approx(shown["mean"], abs=1e-3)
    assert predictions["lower"].tolist() == pytest.approx(shown["lower"], abs=1e-3)
    readings = pd.read_csv(tmp_path / "readings.csv")
    assert readings.to_numpy().tolist() == [[*each["x"], each["y"]] for each in READINGS]
    check_same(run_commands(commands, tmp_path), predictions)
    (tmp_path / "prior.safetensors").unlink()
    check_same(run_python(program, tmp_path), predictions)


def test_labels_give_the_same_by_command_line_and_by_python(predicting, prior_file, tmp_path):
    page = predicting("labels")
    request = page.chart(readings=[{"x": [1.0], "y": 1}, {"x": [8.0], "y": 0}])
    shown = page.post("api/predict", request).json
    predictions, commands, program = take_along(page, request, tmp_path, "table.csv", b"")
    (tmp_path / "prior.safetensors").write_bytes(page.get("prior.safetensors").content)
    for name, row in zip(shown["classes"], shown["probabilities"], strict=True):
        assert predictions[f"probability_{name}"].tolist() == pytest.approx(row, abs=2e-6)
    check_same(run_commands(commands, tmp_path), predictions)
    check_same(run_python(program, tmp_path), predictions)


def own_labels(page, readings):
    return page.chart(readings=readings, classes=["green", "red"])


@pytest.mark.parametrize("n_readings", [0, 1, 2])
def test_labels_of_a_task_of_its_own_are_exported_as_they_are_shown(predicting, n_readings):
    page = predicting("own labels")
    request = own_labels(page, [{"x": [1.0], "y": 0}, {"x": [9.0], "y": 1}][:n_readings])
    shown = page.post("api/predict", request).json
    answer = page.post("predictions.csv", request)
    assert answer.status == 200, answer.content
    predictions = pd.read_csv(io.BytesIO(answer.content))
    for name, row in zip(["green", "red"], shown["probabilities"], strict=True):
        assert predictions[f"probability_{name}"].tolist() == pytest.approx(row, abs=2e-6)


@pytest.mark.slow
def test_without_readings_the_programs_run_too(predicting, tmp_path):
    page = predicting("numbers")
    predictions, commands, program = take_along(page, page.chart(), tmp_path, "table.csv", b"")
    (tmp_path / "prior.safetensors").write_bytes(page.get("prior.safetensors").content)
    check_same(run_python(program, tmp_path), predictions)
    check_same(run_commands(commands, tmp_path), predictions)


def fit_and_take(page, name, content, roles, folder, how=None, **chart):
    answer = page.upload("api/table", name, content)
    if how is not None:
        answer = page.post("api/format", how)
    assert answer.status == 200, answer.content
    page.post("api/fit", roles)
    ended = page.wait_for_fit()
    assert ended["status"] == "done", ended["error"]
    page.workspace.stop_slider()
    request = page.chart(**chart)
    return take_along(page, request, folder, name, content)


@pytest.mark.slow
def test_a_table_with_semicolons_gives_the_same_by_command_line_and_by_python(page, tmp_path):
    content = readings_table().to_csv(index=False, sep=";").encode()
    how = {"sep": ";", "decimal": ".", "encoding": "utf-8"}
    roles = {"task": ["task"], "x": ["x"], "y": "y"}
    given = fit_and_take(page, "a b'c.csv", content, roles, tmp_path, how, readings=[{"x": [2.0], "y": 1.0}])
    predictions, commands, program = given
    check_same(run_python(program, tmp_path), predictions)
    check_same(run_commands(commands, tmp_path), predictions)


def test_readings_that_were_saved_are_loaded_again(page, tmp_path):
    """Also where the table, and so the prior, has semicolons."""
    from page_client import fit

    table = tmp_path / "table.csv"
    readings_table().to_csv(table, index=False, sep=";")
    page.open_prior(fit(table, tmp_path / "p.safetensors", "--task=task", "--x=x", "--y=y", "--sep=;"))
    request = page.chart(readings=[{"x": [2.0], "y": 1.5}])
    answer = page.upload("api/context", "readings.csv", page.post("readings.csv", request).content)
    assert answer.status == 200, answer.content
    assert answer.json["tasks"][0]["readings"] == request["readings"]


@pytest.mark.slow
def test_dates_give_the_same_by_command_line_and_by_python(page, tmp_path):
    frame = readings_table()
    frame["x"] = (pd.Timestamp("2026-01-01") + pd.to_timedelta(frame["x"].round(), "D")).dt.strftime("%Y-%m-%d")
    frame = frame.drop_duplicates(["task", "x"])
    content = frame.to_csv(index=False).encode()
    roles = {"task": ["task"], "x": ["x"], "y": "y"}
    page.upload("api/table", "table.csv", content)
    given = fit_and_take(page, "table.csv", content, roles, tmp_path)
    assert page.state["prior"]["inputs"][0]["dates"] is True
    predictions, commands, program = given
    request = page.chart(readings=[{"x": [page.chart()["range"][0] + 1.0], "y": 1.0}])
    predictions, commands, program = take_along(page, request, tmp_path, "table.csv", content)
    check_same(run_python(program, tmp_path), predictions)
    check_same(run_commands(commands, tmp_path), predictions)


@pytest.mark.slow
def test_labels_fitted_on_the_page_give_the_same(page, tmp_path):
    """With a name that a shell and Python would take apart."""
    frame = labels_table().rename(columns={"word": 'the "word" $HOME', "x": "x; y"})
    roles = {"task": ["task"], "x": ["x; y"], "y": 'the "word" $HOME'}
    content = frame.to_csv(index=False).encode()
    given = fit_and_take(page, "labels.csv", content, roles, tmp_path, readings=[{"x": [1.0], "y": 1}])
    predictions, commands, program = given
    check_same(run_commands(commands, tmp_path), predictions)
    check_same(run_python(program, tmp_path), predictions)


def test_downloads_are_named_and_typed(predicting):
    page = predicting()
    for path, kind in (("predictions.csv", "text/csv; charset=utf-8"), ("readings.csv", "text/csv; charset=utf-8")):
        answer = page.post(path, page.chart())
        assert answer.headers["Content-Type"] == kind
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{path}"'
    assert "prior.safetensors" in page.get("prior.safetensors").headers["Content-Disposition"]


@pytest.mark.parametrize("name", ["a b.csv", "$(touch x).csv", "-x.csv", "a'b\".csv", "ü.csv", "`x`;y.csv"])
def test_shown_programs_quote_names(name):
    settings = FitRequest([name], [name, "x"], "y", drop_missing=True)
    how = CsvFormat(";", ",", "latin-1")
    arguments = fit_arguments(name, how, settings, "prior.safetensors", 0.25)
    line = command_lines(arguments, 0.9, {}).splitlines()[0]
    assert shlex.split(line)[2:] == arguments
    assert arguments[0] == name
    assert {"--drop-missing", "--sep=;", "--decimal=,", "--encoding=latin-1", "--alpha=0.25"} <= set(arguments)
    columns = {"task": [name], "x": [name, "x"], "y": "y"}
    program = python_code(columns, 0.9, fit_code(name, how, settings, False, 0.25))
    constants = [node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)]
    assert constants.count(name) >= 3


def test_a_table_named_like_an_option_is_fitted(page):
    """`metaprior fit` takes what begins with a dash for an option."""

    table = page.workspace.folder / "-x.csv"
    readings_table().to_csv(table, index=False)
    settings = FitRequest(["task"], ["x"], "y")
    process = Fit(fit_arguments(table, CsvFormat(), settings, page.workspace.folder / "out.safetensors"))
    process.wait()
    assert process.status == "done", process.error
