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
from metaprior.tables.reading import CsvFormat
from metaprior_app.fits import Fit
from metaprior_app.recipes import FitRequest, command_lines, fit_arguments, fit_code, python_code
from page_client import (
    PATIENT_ROLES,
    PATIENTS,
    counts_table,
    csv,
    fit,
    kinds_table,
    labels_table,
    ranks_table,
    readings_table,
)
from test_charts import NUMBERS, along, two_readings

READINGS = [{"x": [2.0], "y": 84.0}, {"x": [20.5], "y": 91.25}, {"x": [40.0], "y": 78.0}]


def check_the_same_again(page, request, folder, table_name, table, fits=True):
    """Save what the buttons save to a folder, run what the page shows there, and compare with its predictions."""
    (folder / table_name).write_bytes(table)
    (folder / "readings.csv").write_bytes(page.post("readings.csv", request).content)
    answer = page.post("predictions.csv", request)
    assert answer.status == 200, answer.content
    (folder / "predictions.csv").write_bytes(answer.content)
    code, predictions = page.post("api/code", request).json, pd.read_csv(io.BytesIO(answer.content))
    if not fits:
        (folder / "prior.safetensors").write_bytes(page.get("prior.safetensors").content)
    for line in code["command"].splitlines():
        program, *arguments = shlex.split(line)
        assert program == "metaprior"
        with chdir(folder):
            found = CliRunner().invoke(command_line, arguments)
        assert found.exit_code == 0, f"{line}\n{found.output}"
    if fits:
        (folder / "prior.safetensors").unlink()
    script = code["python"] + '\nframe.to_csv("python.csv", index=False)\n'
    with chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(script, "python.py", "exec"), {"__name__": "__main__"})
    for name in ("again.csv", "python.csv"):
        found = pd.read_csv(folder / name)
        assert list(found.columns) == list(predictions.columns)
        for column in predictions.columns:
            if pd.api.types.is_float_dtype(predictions[column]):
                np.testing.assert_allclose(found[column], predictions[column], rtol=1e-9, atol=1e-9, err_msg=column)
            else:
                assert found[column].tolist() == predictions[column].tolist()
    return predictions


def dates_table():
    frame = readings_table()
    frame["x"] = (pd.Timestamp("2026-01-01") + pd.to_timedelta(frame["x"].round(), "D")).dt.strftime("%Y-%m-%d")
    return frame.drop_duplicates(["task", "x"])


ROLES = {"task": ["task"], "x": ["x"], "y": "y"}
HOSTILE = {"word": 'the "word" $HOME', "x": "x; y"}  # names that a shell and Python would take apart
FITS = {  # a table, its name, how it is written, its roles, and a chart
    "numbers": (readings_table(), "table.csv", {}, ROLES, {"readings": [{"x": [2.0], "y": 1.0}], "coverage": 0.75}),
    "counts": (
        counts_table(),
        "table.csv",
        {},
        {"task": ["task"], "x": ["hour"], "y": "calls", "likelihood": "poisson"},
        {"readings": [{"x": [2.0], "y": 4}]},
    ),
    "kinds": (
        kinds_table(),
        "table.csv",
        {},
        {"task": ["task"], "x": ["brand", "hours"], "y": "y", "covariates": ["age", "sex"]},
        {"readings": [{"x": [0.0, 2.0, 55.0, 0.0], "y": 6.0}], "axis": 1, "range": [0.0, 10.0]},
    ),
    "rates": (
        counts_table(exposure=True),
        "table.csv",
        {},
        {"task": ["task"], "x": ["hour"], "y": "calls", "likelihood": "negative-binomial", "exposure": "days"},
        {"readings": [{"x": [2.0, 3.0], "y": 4}]},
    ),
    "ranks": (ranks_table(), "table.csv", {}, {**ROLES, "y": "score", "likelihood": "ordinal"}, {}),
    "semicolons": (readings_table(), "a b'c.csv", {"sep": ";"}, ROLES, {"readings": [{"x": [2.0], "y": 1.0}]}),
    "dates": (dates_table(), "table.csv", {}, ROLES, {}),
    "labels": (
        labels_table().rename(columns=HOSTILE),
        "labels.csv",
        {},
        {"task": ["task"], "x": ["x; y"], "y": 'the "word" $HOME'},
        {"readings": [{"x": [1.0], "y": 1}]},
    ),
    "patients": (pd.read_csv(PATIENTS), "patients.csv", {}, PATIENT_ROLES, {"readings": READINGS, "coverage": 0.75}),
}
QUICK = ("numbers", "counts", "kinds")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in FITS])
def test_fits_of_the_page_give_the_same_by_command_line_and_by_python(page, tmp_path, kind):
    frame, name, how, roles, chart = FITS[kind]
    content = csv(frame, **how)
    page.upload("api/table", name, content)
    page.post("api/fit", roles)
    ended = page.wait_for_fit()
    assert ended["status"] == "done", ended["error"]
    page.workspace.stop_slider()
    prior = page.state["prior"]
    assert prior["inputs"][0]["dates"] == (kind == "dates")
    request = page.chart(**chart)
    predictions, shown = check_the_same_again(page, request, tmp_path, name, content), None
    readings = pd.read_csv(tmp_path / "readings.csv")
    assert len(readings) == len(request["readings"])
    if kind == "patients":
        shown = page.post("api/predict", request).json
        assert readings.to_numpy().tolist() == [[*each["x"], each["y"]] for each in READINGS]
        for column, name in (("hours", "x"), ("mean", "mean"), ("lower", "lower")):
            assert predictions[column].tolist() == pytest.approx(shown[name], abs=1e-3)
    if kind == "rates":  # tasks are drawn at the exposure of the chart
        asked = {"revision": prior["revision"], "axis": 0}
        of_first = frame[frame["task"] == "task 1"]
        for exposure in (1.0, 2.0):
            drawn = page.post("api/tasks", {**asked, "exposure": exposure}).json["tasks"]["tasks"][0]["y"]
            assert sorted(drawn) == pytest.approx(sorted(exposure * of_first["calls"] / of_first["days"]), abs=1e-4)
        assert "exposure" in page.post("api/tasks", {**asked, "exposure": 0}).error


@pytest.mark.parametrize("kind", [*NUMBERS, pytest.param("numbers", marks=pytest.mark.slow), "labels"])
def test_loaded_priors_give_the_same_by_command_line_and_by_python(predicting, kind, tmp_path):
    page = predicting(kind)
    request = page.chart()
    if kind == "labels":
        request = page.chart(readings=[{"x": [1.0], "y": 1}, {"x": [8.0], "y": 0}])
    elif kind in NUMBERS:
        request = along(page, readings=two_readings(page, kind))
    predictions = check_the_same_again(page, request, tmp_path, "table.csv", b"", fits=False)
    shown = page.post("api/predict", request).json
    if kind == "labels":
        for name, row in zip(shown["classes"], shown["probabilities"], strict=True):
            assert predictions[f"probability_{name}"].tolist() == pytest.approx(row, abs=2e-6)
    else:
        np.testing.assert_allclose(predictions["upper"], shown["upper"], rtol=1e-4)


@pytest.mark.parametrize("n_readings", [0, 1, 2])
def test_labels_of_a_task_of_its_own_are_exported_as_they_are_shown(predicting, n_readings):
    page = predicting("own labels")
    readings = [{"x": [1.0], "y": 0}, {"x": [9.0], "y": 1}][:n_readings]
    request = page.chart(readings=readings, classes=["green", "red"])
    shown = page.post("api/predict", request).json
    predictions = pd.read_csv(io.BytesIO(page.post("predictions.csv", request).content))
    for name, row in zip(["green", "red"], shown["probabilities"], strict=True):
        assert predictions[f"probability_{name}"].tolist() == pytest.approx(row, abs=2e-6)


def test_readings_that_were_saved_are_loaded_again(page, tmp_path):
    """Also where the table, and so the prior, has semicolons."""
    table = tmp_path / "table.csv"
    table.write_bytes(csv(readings_table(), sep=";"))
    page.open_prior(fit(table, tmp_path / "p.safetensors", "--task=task", "--x=x", "--y=y", "--csv=sep=;"))
    request = page.chart(readings=[{"x": [2.0], "y": 1.5}])
    answer = page.upload("api/context", "readings.csv", page.post("readings.csv", request).content)
    assert answer.status == 200, answer.content
    assert answer.json["tasks"][0]["readings"] == request["readings"]


def test_downloads_are_named_and_typed(predicting):
    page = predicting()
    for path in ("predictions.csv", "readings.csv"):
        answer = page.post(path, page.chart())
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
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
    assert {"--drop=missing", "--csv=sep=;", "--csv=decimal=,", "--csv=encoding=latin-1"} <= set(arguments)
    columns = {"task": [name], "x": [name, "x"], "y": "y"}
    program = python_code(columns, 0.9, fit_code(name, how, settings, False, 0.25))
    constants = [node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)]
    assert constants.count(name) >= 3


def test_a_table_named_like_an_option_is_fitted(tmp_path):
    """`metaprior fit` takes what begins with a dash for an option."""
    (tmp_path / "-x.csv").write_bytes(csv(readings_table()))
    given = fit_arguments(
        tmp_path / "-x.csv", CsvFormat(), FitRequest(["task"], ["x"], "y"), tmp_path / "out.safetensors"
    )
    process = Fit(given)
    process.wait()
    assert process.status == "done", process.error
