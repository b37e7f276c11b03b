"""What the page's server does: tables opened and guessed, fits begun and stopped, priors replaced, bad input."""

import gzip
import io
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaprior import MetaGPRegressor, load, tasks_from_frame
from metaprior.checks import MissingExtra
from metaprior.wfem import Training, WFEMRegressor
from metaprior_app import fits, tables, workspace
from page_client import PATIENT_ROLES, PATIENTS, Page, fit, labels_table, readings_table, wait_until

CHANGED = 409


def csv(frame, **options):
    return frame.to_csv(index=False, **options).encode()


def columns(state):
    return {column["name"]: column for column in state["table"]["columns"]}


# -------------------------------------------------------------------- tables


def test_an_empty_page(page):
    state = page.state
    assert (state["table"], state["prior"], state["fit"]) == (None, None, None)
    assert (state["revision"], state["slider"], state["slider_left"], state["has_report"]) == (0, [], 0, False)


def test_the_bundled_example_its_guess_and_its_reasons(page):
    state = page.post("api/example", {"name": "patients"}).json
    table, guess = state["table"], state["table"]["guess"]
    assert {name: guess[name] for name in PATIENT_ROLES} == {**PATIENT_ROLES, "task": "patient"}
    assert set(guess["reasons"]) == {"task", "x", "y", "environment", "target"}
    assert all(reason.endswith(".") for reason in guess["reasons"].values())
    frame = pd.read_csv(PATIENTS)
    assert (table["n_rows"], table["n_guessed"], table["is_copy"]) == (len(frame), len(frame), True)
    assert {name: each["n_distinct"] for name, each in columns(state).items()} == frame.nunique().to_dict()
    assert columns(state)["hospital"]["levels"] == ["north", "south"]
    assert columns(state)["hours"]["kind"] == "numbers"
    assert table["rows"] == [line.split(",") for line in PATIENTS.read_text().splitlines()[1:9]]


def test_the_sinusoid(page):
    guess = page.post("api/example", {"name": "sinusoid"}).json["table"]["guess"]
    found = (guess["task"], guess["x"], guess["y"], guess["environment"], guess["target"])
    assert found == ("task", ["x"], "y", "environment", "target")


def test_cells_are_shown_as_they_are_written(page):
    content = b"id,x,y\n007,1.50,yes\n007,2.50,\n008,1e3,no\n" + b"008,1,yes\n" * 20
    table = page.upload("api/table", "table.csv", content).json["table"]
    assert table["rows"][:3] == [["007", "1.50", "yes"], ["007", "2.50", ""], ["008", "1e3", "no"]]
    assert len(table["rows"]) == 8
    assert next(each for each in table["columns"] if each["name"] == "y")["n_missing"] == 1


def test_separators_decimal_marks_and_encodings(page):
    content = "Fäll;zeit;wert\na;1,5;2,5\na;2,5;3,5\nb;1,0;1,0\nb;3,0;4,0\n".encode("latin-1")
    page.upload("api/table", "table.csv", content)
    answer = page.post("api/format", {"sep": ";", "decimal": ",", "encoding": "latin-1"})
    assert answer.status == 200
    assert columns(answer.json)["zeit"]["kind"] == "numbers"
    assert answer.json["table"]["format"] == {"sep": ";", "decimal": ",", "encoding": "latin-1"}


@pytest.mark.parametrize(
    "given",
    [
        {"sep": ";;"},
        {"decimal": "x"},
        {"encoding": "nonsense"},
        {"encoding": "rot13"},
        {"encoding": "base64"},
        {"sep": 1},
        {"sep": "\n"},
    ],
)
def test_formats_that_are_none_are_refused_and_the_table_stays(page, given):
    page.post("api/example", {"name": "patients"})
    before = page.state
    assert page.post("api/format", given).status == 400
    assert page.post("api/format", given).error
    assert page.state == before


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "empty"),
        ("names.csv", b"task,x,y\n", "no rows"),
        ("twice.csv", b"x,x,y\n1,2,3\n", "two columns named 'x'"),
        ("wide.csv", ",".join(f"c{i}" for i in range(600)).encode() + b"\n" + b"1," * 599 + b"1\n", "600 columns"),
        ("binary.csv", bytes(range(256)) * 4, ""),
        ("cut.csv.gz", gzip.compress(b"task,x,y\n" + b"a,1,2\n" * 5000, mtime=0)[:60], ""),
        ("cut.parquet", b"PAR1" + bytes(50), ""),
    ],
)
def test_tables_that_cannot_be_read_are_refused_in_words(page, name, content, said):
    answer = page.upload("api/table", name, content)
    assert answer.status == 400
    assert said in answer.error
    assert page.state["table"] is None
    assert not list(page.workspace.folder.iterdir()), "what was refused is not kept"


@pytest.mark.parametrize("name", ["broken.csv", "cut.csv.gz", "cut.parquet", "damaged.safetensors", "context.csv"])
def test_refusals_name_the_file_that_was_chosen_and_no_folder_of_the_server(predicting, name):
    page = predicting()
    content = {"broken.csv": b"a,b\n1,2\n1,2,3\n", "cut.csv.gz": b"\x1f\x8b\x08", "cut.parquet": b"PAR1"}.get(
        name, b"x\n1\n"
    )
    message = page.upload("api/context" if name == "context.csv" else "api/table", name, content).error
    assert name in message
    assert str(page.workspace.folder) not in message


@pytest.mark.parametrize("ending", ["csv.gz", "csv.xz", "csv.bz2", "csv.zip", "tsv", "parquet"])
def test_tables_of_other_kinds(page, tmp_path, ending):
    frame, path = readings_table(), tmp_path / f"table.{ending}"
    if ending == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    answer = page.upload("api/table", path.name, path.read_bytes())
    assert answer.json["table"]["guess"]["task"] == "task"
    assert answer.json["table"]["rows"][0][0] == "task 1"


def test_uploads_are_kept_as_long_as_they_are_needed(page, prior_file):
    """A table that was replaced is removed, unless the prior was fitted to it: a report needs it again."""

    def kept():
        return sorted(path.name for path in page.workspace.folder.rglob("*") if path.is_file())

    content = csv(readings_table())
    for name in ("a.csv", "b.csv"):
        page.upload("api/table", name, content)
    assert kept() == ["b.csv"]
    assert page.upload("api/table", "bad.csv", b"").status == 400
    assert page.post("api/format", {"sep": ","}).status == 200
    page.post("api/fit", QUICK)
    page.upload("api/table", "c.csv", content)
    assert {"b.csv", "c.csv"} <= set(kept())
    assert page.wait_for_fit()["status"] == "done"
    page.post("api/report", {})
    page.upload("api/table", "d.csv", content)
    assert page.wait_for_fit()["status"] == "done"
    assert kept() == ["b.csv", "d.csv", "prior.safetensors", "report.html"]
    page.post("api/fit", QUICK)
    assert page.wait_for_fit()["status"] == "done"
    assert kept() == ["d.csv", "prior.safetensors"]
    page.upload("api/table", "mine.safetensors", prior_file("numbers").read_bytes())
    assert kept() == ["mine.safetensors"]
    page.open_prior(prior_file("numbers"))
    page.post("api/example", {"name": "sinusoid"})
    assert kept() == ["sinusoid.csv"]
    assert prior_file("numbers").exists()


def parquet(frame):
    stream = io.BytesIO()
    frame.to_parquet(stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    "kind",
    [
        "nullable",
        "categories",
        "dates",
        "booleans",
        "times",
        "decimals",
        "bytes",
        "lists",
        "structs",
    ],
)
def test_parquet_columns_of_any_kind_are_shown_or_refused_in_words(page, kind):
    import decimal

    odd = {
        "nullable": pd.array([1, None, 3, 4], "Int64"),
        "lists": [[1, 2], [3, 4], [], None],
        "categories": pd.Categorical(["a", "b", None, "a"]),
        "dates": pd.to_datetime(["2026-01-01", None, "2026-01-03", "2026-01-04"]),
        "booleans": pd.array([True, None, False, True], "boolean"),
        "times": pd.to_timedelta([1, 2, 3, 4], "h"),
        "decimals": [decimal.Decimal("1.50"), None, decimal.Decimal("2.25"), decimal.Decimal("3.00")],
        "structs": [{"a": 1}, {"a": 2}, None, {"a": 3}],
        "bytes": [b"a", b"\xff", None, b"c"],
    }[kind]
    frame = pd.DataFrame({"task": list("aabb"), "x": [1.0, 2.0, 1.0, 2.0], "odd": odd, "y": [1.0, 2.0, 3.0, 4.0]})
    answer = page.upload("api/table", "table.parquet", parquet(frame))
    assert answer.status in (200, 400)
    if answer.status == 400:
        assert answer.error
        return
    assert [row[0] for row in answer.json["table"]["rows"]] == list("aabb")
    missing = int(frame["odd"].isna().sum())
    assert columns(answer.json)["odd"]["n_missing"] == missing
    assert sum(row[2] == "" for row in answer.json["table"]["rows"]) == missing


def test_guesses_come_from_the_first_rows_and_say_so(page, monkeypatch):
    monkeypatch.setattr(tables, "MAX_GUESSED", 20)
    state = page.upload("api/table", "table.csv", csv(readings_table(10, 5))).json
    assert (state["table"]["n_rows"], state["table"]["n_guessed"]) == (50, 20)
    assert columns(state)["task"]["n_distinct"] == 4  # of the first rows
    assert state["table"]["guess"]["task"] == "task"


@pytest.mark.slow
def test_a_million_rows_are_opened_in_seconds(page, tmp_path):
    rng, n = np.random.default_rng(0), 10**6
    path = tmp_path / "large.csv"
    tasks = np.repeat([f"t{i}" for i in range(n // 10)], 10)
    pd.DataFrame({"task": tasks, "x": rng.uniform(size=n).round(3), "y": rng.normal(size=n).round(3)}).to_csv(
        path, index=False
    )
    started = time.monotonic()
    page.workspace.open_path(path)
    assert time.monotonic() - started < 10.0
    table = page.state["table"]
    assert (table["n_rows"], table["n_guessed"]) == (n, 200_000)
    assert (table["guess"]["task"], table["guess"]["x"], table["guess"]["y"]) == ("task", ["x"], "y")
    assert len(table["rows"]) == 8
    assert len(json.dumps(table)) < 20_000


# -------------------------------------------------------------------- fits


QUICK = {"task": ["task"], "x": ["x"], "y": "y"}


@pytest.fixture
def slow_fits(monkeypatch, tmp_path):
    """Programs that run instead of fits, and take a minute."""
    script = tmp_path / "instead"
    script.write_text(f"#!{sys.executable}\nimport time; time.sleep(60)\n")
    script.chmod(0o755)
    monkeypatch.setattr(fits.sys, "executable", str(script))


def test_one_fit_at_a_time_and_its_stop(page, slow_fits):
    page.upload("api/table", "table.csv", csv(readings_table()))
    assert page.post("api/fit", QUICK).json["fit"]["status"] == "running"
    again = page.post("api/fit", QUICK)
    assert again.status == CHANGED
    assert "running" in again.error
    assert page.post("api/report", {}).status == CHANGED
    pid = page.workspace.fit.process._process.pid
    started = time.monotonic()
    stopped = page.post("api/stop").json["fit"]
    assert time.monotonic() - started < 3.0
    assert (stopped["status"], stopped["error"]) == ("stopped", None)
    assert not Path(f"/proc/{pid}").exists()
    assert page.post("api/stop").json["fit"]["status"] == "stopped"  # again is no error
    assert page.post("api/fit", QUICK).status == 200
    page.post("api/stop")


def test_a_prior_cannot_replace_what_is_being_fitted(page, slow_fits, prior_file):
    page.upload("api/table", "table.csv", csv(readings_table()))
    page.post("api/fit", QUICK)
    answer = page.upload("api/table", "prior.safetensors", prior_file("numbers").read_bytes())
    assert answer.status == CHANGED
    assert page.state["prior"] is None
    assert page.state["table"]["name"] == "table.csv"


def test_the_end_of_the_page_ends_its_fit(tmp_path, slow_fits):
    with closing(Page(tmp_path)) as page:
        page.upload("api/table", "table.csv", csv(readings_table()))
        page.post("api/fit", QUICK)
        pid = page.workspace.fit.process._process.pid
    assert not Path(f"/proc/{pid}").exists()


def test_a_table_that_changes_under_the_page_is_read_again(page, tmp_path, slow_fits):
    path = tmp_path / "table.csv"
    readings_table(6).to_csv(path, index=False)
    page.workspace.open_path(path)
    before = page.state
    assert before["table"]["is_copy"] is False
    readings_table(7).to_csv(path, index=False)
    answer = page.post("api/fit", QUICK)
    assert answer.status == CHANGED
    assert "has changed" in answer.error
    after = page.state
    assert after["revision"] > before["revision"]
    assert (before["table"]["n_rows"], after["table"]["n_rows"]) == (30, 35)
    assert page.post("api/fit", QUICK).status == 200


def test_a_table_that_vanished(page, tmp_path):
    path = tmp_path / "table.csv"
    readings_table().to_csv(path, index=False)
    page.workspace.open_path(path)
    path.unlink()
    answer = page.post("api/fit", QUICK)
    assert answer.status == CHANGED
    assert answer.error == "table.csv is not there any more. Choose it again."
    again = page.post("api/format", {})
    assert 400 <= again.status < 500
    assert again.error


def test_a_table_that_becomes_unreadable_between_two_looks(page, tmp_path):
    path = tmp_path / "table.csv"
    readings_table().to_csv(path, index=False)
    page.workspace.open_path(path)
    path.write_bytes(b"")
    answer = page.post("api/fit", QUICK)
    assert 400 <= answer.status < 500
    assert answer.error
    assert page.state["table"]["n_rows"] == 30


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"task": [], "x": ["x"], "y": "y"}, "task"),
        ({"task": ["task"], "x": [], "y": "y"}, "x"),
        ({"task": ["task"], "x": ["x"]}, "lacks y"),
        ({"task": "task", "x": ["x"], "y": "y"}, "request.task must be a list, got text"),
        ({"task": ["task"], "x": ["x"], "y": "x"}, "x"),
        ({"task": ["task"], "x": ["task"], "y": "y"}, "task"),
        ({"task": ["task"], "x": ["x"], "y": "y", "kind": "other"}, "kind"),
        ({"task": ["task"], "x": ["x"], "y": "y", "drop_missing": "yes"}, "drop_missing"),
        ({"task": ["t\0"], "x": ["x"], "y": "y"}, "t"),
        ({"task": ["\ud800"], "x": ["x"], "y": "y"}, "UTF-8"),
    ],
)
def test_roles_that_cannot_be_fitted_are_refused_before_a_process_starts(page, roles, said):
    page.upload("api/table", "table.csv", csv(readings_table()))
    answer = page.post("api/fit", roles)
    assert answer.status == 400
    assert said in answer.error
    assert page.state["fit"] is None


def test_a_failing_fit_says_why_in_the_words_of_the_page(page):
    frame = readings_table()
    frame.loc[3, "y"] = np.nan
    page.upload("api/table", "my table.csv", csv(frame))
    page.post("api/fit", QUICK)
    fit_state = page.wait_for_fit()
    assert fit_state["status"] == "failed"
    assert "drop_missing" in fit_state["error"]
    assert "--" not in fit_state["error"]
    assert "my table.csv" in fit_state["error"]
    assert str(page.workspace.folder) not in fit_state["error"]
    assert page.state["prior"] is None
    page.post("api/fit", {**QUICK, "drop_missing": True})
    assert page.wait_for_fit()["status"] == "done"
    assert page.state["prior"]["n_tasks"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "roles", "said"),
    [
        (lambda frame: pd.concat([frame, frame.head(3)]), QUICK, "drop_duplicates"),
        (lambda frame: frame.assign(y="1,5"), QUICK, "decimal"),
        (lambda frame: frame.assign(y=list("abcdefghij") * 3), {**QUICK, "kind": "regression"}, ""),
        (lambda frame: frame.assign(x="text"), QUICK, ""),
        (lambda frame: frame, {**QUICK, "x": ["nothing"]}, "nothing"),
        (lambda frame: frame.assign(e="s"), {**QUICK, "environment": "e", "target": "t"}, ""),
    ],
)
def test_failing_fits_have_no_options_of_the_command_line_in_their_messages(page, change, roles, said):
    page.upload("api/table", "table.csv", csv(change(readings_table())))
    page.post("api/fit", roles)
    ended = page.wait_for_fit()
    words = " ".join([ended["error"] or "", *ended["notes"]])
    assert said in words
    assert "--" not in words
    assert str(page.workspace.folder) not in words


def test_constant_columns(page):
    """A column of one value is shown as such, and is no input, no output and no task by guess."""
    frame = readings_table().assign(same=1.0, word="a")
    state = page.upload("api/table", "table.csv", csv(frame)).json
    assert columns(state)["same"]["n_distinct"] == 1
    guess = state["table"]["guess"]
    assert (guess["task"], guess["y"]) == ("task", "y")
    assert "same" not in guess["x"]
    assert guess["environment"] is None


def test_an_input_of_one_value_is_fitted_and_drawn(page):
    page.upload("api/table", "table.csv", csv(readings_table().assign(same=3.0)))
    page.post("api/fit", {**QUICK, "x": ["x", "same"]})
    assert page.wait_for_fit()["status"] == "done"
    assert page.post("api/predict", page.chart()).status == 200
    assert page.post("api/predict", page.chart(axis=1, range=[3.0, 4.0])).status == 200
    assert page.post("api/tasks", {"revision": page.state["prior"]["revision"], "axis": 1}).status == 200


@pytest.mark.slow
def test_an_output_of_one_value(page):
    page.upload("api/table", "table.csv", csv(readings_table().assign(y=2.0)))
    page.post("api/fit", QUICK)
    ended = page.wait_for_fit()
    assert ended["status"] in ("done", "failed")
    if ended["status"] == "failed":
        assert ended["error"]
        return
    assert page.post("api/predict", page.chart()).status == 200


# -------------------------------------------------------------------- the whole way, and the slider


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A page with the patients fitted, and all other weights of the source."""
    with closing(Page(tmp_path_factory.mktemp("fitted"))) as page:
        page.post("api/example", {"name": "patients"})
        first = page.post("api/fit", PATIENT_ROLES).json["fit"]
        assert first["status"] == "running"
        page.seen = []
        wait_until(
            lambda: page.seen.append(page.get("api/progress").json["fit"]) or page.seen[-1]["status"] != "running", 90
        )
        wait_until(lambda: page.get("api/progress").json["slider_left"] == 0, 90)
        yield page


def test_a_fit_shows_its_phases_and_then_its_prior(fitted):
    assert fitted.seen[-1]["status"] == "done"
    phases = [each["progress"] for each in fitted.seen if each["progress"]]
    assert len({each["phase"] for each in phases}) >= 2
    assert all(1 <= each["number"] <= each["of"] for each in phases)
    prior = fitted.state["prior"]
    assert (prior["name"], prior["output"], prior["labels"]) == ("patients.csv", "heart_rate", False)
    assert [each["name"] for each in prior["inputs"]] == ["hours"]
    assert prior["environments"] == ["north: 40 tasks, 445 readings", "south (target): 8 tasks, 92 readings"]
    assert (prior["n_tasks"], prior["fitted_here"]) == (48, True)
    report = fitted.workspace.prior.meta.transfer_report()
    assert prior["words"] == report.plain_words
    assert [row["weight"] for row in prior["candidates"]["rows"]] == pytest.approx(report.weight.tolist())
    assert [row["value"] for row in prior["candidates"]["rows"]] == pytest.approx(report.gain.tolist())


@pytest.mark.slow
def test_the_prior_is_the_one_of_python(fitted):
    tasks = tasks_from_frame(str(PATIENTS), task="patient", x="hours", y="heart_rate", environment="hospital")
    expected = MetaGPRegressor(random_state=0).fit(tasks, target="south").adapt([[5.0]], [80.0])
    answer = fitted.post("api/predict", fitted.chart(readings=[{"x": [5.0], "y": 80.0}])).json
    mean = expected.predictive(np.array(answer["x"])[:, None]).mean()
    np.testing.assert_allclose(answer["mean"], mean, rtol=1e-5)


def test_every_place_of_the_slider_is_a_fit_at_that_weight(fitted):
    places = fitted.state["slider"]
    report = fitted.workspace.prior.meta.transfer_report()
    assert [each["alpha"] for each in places] == sorted(each["alpha"] for each in places)
    assert places[0]["alpha"] == 0.0
    assert {round(each["alpha"], 9) for each in places} <= {round(float(a), 9) for a in report.alpha}
    assert len(places) >= 3
    tasks = tasks_from_frame(str(PATIENTS), task="patient", x="hours", y="heart_rate", environment="hospital")
    means = []
    for place in (places[0], places[len(places) // 2], places[-1]):
        request = fitted.chart(readings=[{"x": [5.0], "y": 80.0}], alpha=place["key"])
        answer = fitted.post("api/predict", request).json
        meta = MetaGPRegressor(alpha=place["alpha"], random_state=0).fit(tasks, target="south")
        predictive = meta.adapt([[5.0]], [80.0]).predictive(np.array(answer["x"])[:, None])
        np.testing.assert_allclose(answer["mean"], predictive.mean(), rtol=1e-5)
        np.testing.assert_allclose(answer["lower"], predictive.interval(0.9)[0], rtol=1e-5)
        saved = fitted.get(f"prior.safetensors?alpha={place['key']}").content
        path = fitted.workspace.folder / "downloaded.safetensors"
        path.write_bytes(saved)
        assert float(load(path).alpha_) == pytest.approx(place["alpha"])
        means.append(answer["mean"])
    assert np.abs(np.array(means[0]) - means[-1]).max() > 0.1, "weights make no difference"
    assert fitted.post("api/predict", fitted.chart(alpha="0.123")).status == CHANGED
    assert fitted.get("prior.safetensors?alpha=0.123").status == CHANGED


@pytest.mark.parametrize("alpha", [{}, [], 1, 0.5, True])
def test_a_place_of_the_slider_that_is_no_text_is_refused(fitted, alpha):
    for path in ("api/predict", "api/code", "predictions.csv", "readings.csv"):
        answer = fitted.post(path, fitted.chart(alpha=alpha))
        assert answer.status == 400
        assert "alpha" in answer.error


def test_training_tasks_are_drawn_as_they_are(fitted):
    revision = fitted.state["prior"]["revision"]
    drawn = fitted.post("api/tasks", {"revision": revision, "axis": 0}).json["tasks"]
    frame = pd.read_csv(PATIENTS)
    assert drawn["n_tasks"] == frame["patient"].nunique()
    shown = {tuple(zip(each["x"], each["y"], strict=True)) for each in drawn["tasks"]}
    for _, rows in frame.sort_values("hours", kind="stable").groupby("patient"):
        pairs = tuple(zip(rows["hours"].round(6), rows["heart_rate"].round(6), strict=True))
        assert pairs in {tuple((float(a), float(b)) for a, b in each) for each in shown}
    for axis in (1, -1, "0", None, 0.5):
        assert fitted.post("api/tasks", {"revision": revision, "axis": axis}).status == 400


def test_a_replaced_prior_is_told(fitted):
    request = fitted.chart()
    for path in ("api/predict", "api/code", "predictions.csv", "readings.csv"):
        answer = fitted.post(path, {**request, "revision": request["revision"] - 1})
        assert answer.status == CHANGED
        assert "replaced" in answer.error


def test_a_prior_without_its_table_is_shown(predicting):
    page = predicting("patients")
    prior = page.state["prior"]
    assert (prior["n_tasks"], prior["fitted_here"], prior["output"]) == (0, False, "heart_rate")
    hours = pd.read_csv(PATIENTS)["hours"]
    (shown,) = prior["inputs"]
    assert (shown["low"], shown["high"]) == (hours.min(), hours.max())
    assert page.post("api/tasks", {"revision": prior["revision"], "axis": 0}).json == {"tasks": None}
    assert page.post("api/report", {}).status == CHANGED
    assert page.get("prior.safetensors").content == Path(page.workspace.prior.file).read_bytes()


def test_a_prior_of_many_inputs_can_be_predicted_with(page, tmp_path):
    """More inputs than the page lets fix one by one."""
    table = tmp_path / "wide.csv"
    frame = readings_table(8, 6, n_inputs=45)
    frame.to_csv(table, index=False)
    inputs = [f"--x={name}" for name in frame.columns[1:-1]]
    page.open_prior(fit(table, tmp_path / "wide.safetensors", "--task=task", *inputs, "--y=y"))
    assert len(page.chart()["fixed"]) == 45
    assert page.post("api/predict", page.chart()).status == 200


def test_a_prior_of_metaprior_wfem_is_shown(page, tmp_path):
    tasks = tasks_from_frame(PATIENTS, task="patient", x="hours", y="heart_rate", environment="hospital")
    meta = WFEMRegressor(kernel="rbf", mean="constant", training=Training(n_steps=4), random_state=0)
    meta.fit(tasks, target="south").save(tmp_path / "wfem.safetensors")
    page.open_prior(tmp_path / "wfem.safetensors")
    assert page.state["prior"]["fitted_here"] is False
    answer = page.post("api/predict", page.chart())
    assert answer.status == 200
    assert np.isfinite(answer.json["mean"]).all()
    assert "load(" in page.post("api/code", page.chart()).json["python"]


def test_a_prior_that_needs_an_extra_says_so(page, monkeypatch):
    def fail(_):
        raise MissingExtra("metaprior.wfem needs jax: run pip install 'metaprior[wfem]'.")

    monkeypatch.setattr(workspace, "load", fail)
    answer = page.upload("api/table", "prior.safetensors", b"of networks")
    assert (answer.status, answer.json["error"]) == (
        400,
        "metaprior.wfem needs jax: run pip install 'metaprior[wfem]'.",
    )


# -------------------------------------------------------------------- contexts


def test_a_context_of_several_tasks(predicting):
    page = predicting("patients")
    frame = pd.read_csv(PATIENTS).query("patient in ['N01', 'N02']")
    tasks = page.upload("api/context", "two.csv", csv(frame)).json["tasks"]
    assert [each["name"] for each in tasks] == ["N01", "N02"]
    first = frame.query("patient == 'N01'")
    assert [each["y"] for each in tasks[0]["readings"]] == first["heart_rate"].tolist()
    assert [each["x"] for each in tasks[0]["readings"]] == first[["hours"]].to_numpy().tolist()
    assert page.post("api/predict", page.chart(readings=tasks[0]["readings"])).status == 200
    assert not [each for each in page.workspace.folder.iterdir() if each.name.startswith("upload")]


def test_a_context_without_a_column_of_tasks_is_one_task(predicting):
    page = predicting("patients")
    answer = page.upload("api/context", "readings.csv", b"heart_rate,hours,other\n80,1,x\n82.5,2,y\n")
    (task,) = answer.json["tasks"]
    assert task["readings"] == [{"x": [1.0], "y": 80.0}, {"x": [2.0], "y": 82.5}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hours,pulse\n1,80\n", "heart_rate"),
        (b"hours,heart_rate\n1,\n", "missing"),
        (b"hours,heart_rate\nx,80\n", "hours"),
        (b"hours,heart_rate\n", ""),
        (b"", ""),
        (b"hours,heart_rate\n" + b"".join(b"%d,80\n" % i for i in range(501)), "500 at most"),
        (b"patient,hours,heart_rate\n" + b"".join(b"p%d,1,80\n" % i for i in range(1001)), "1000 at most"),
    ],
    ids=["other column", "missing cell", "text", "no rows", "empty", "many readings", "many tasks"],
)
def test_contexts_that_do_not_fit_are_refused_in_words(predicting, content, said):
    page = predicting("patients")
    answer = page.upload("api/context", "context.csv", content)
    if not said and answer.status == 200:
        assert answer.json["tasks"] == []
        return
    assert answer.status == 400
    assert said in answer.error
    assert "--" not in answer.error


def test_a_context_of_labels(predicting):
    page = predicting("labels")
    (task,) = page.upload("api/context", "c.csv", b"x,word\n1,low\n9,high\n").json["tasks"]
    assert task["classes"] == ["high", "low"]
    assert [each["y"] for each in task["readings"]] == [1, 0]
    answer = page.upload("api/context", "c.csv", b"x,word\n1,low\n9,green\n")
    assert answer.status == 400
    assert "'green' is no class" in answer.error


def test_a_context_of_labels_of_its_own(predicting):
    page = predicting("own labels")
    (task,) = page.upload("api/context", "c.csv", b"x,word\n1,red\n9,green\n").json["tasks"]
    assert task["classes"] == ["green", "red"]
    assert [each["y"] for each in task["readings"]] == [1, 0]
    request = page.chart(readings=task["readings"], classes=task["classes"])
    assert page.post("api/predict", request).json["classes"] == ["green", "red"]
    (one,) = page.upload("api/context", "c.csv", b"x,word\n1,red\n").json["tasks"]
    assert len(one["classes"]) == 2


@pytest.mark.slow
def test_labels_from_table_to_probabilities(page):
    page.upload("api/table", "words.csv", csv(labels_table()))
    assert page.state["table"]["guess"]["y"] == "word"
    page.post("api/fit", {"task": ["task"], "x": ["x"], "y": "word"})
    assert page.wait_for_fit()["status"] == "done"
    prior = page.state["prior"]
    assert (prior["labels"], prior["classes"], prior["y_range"]) == (True, ["high", "low"], None)
    answer = page.post("api/predict", page.chart(readings=[{"x": [1.0], "y": 1}, {"x": [9.0], "y": 0}])).json
    high, low = np.array(answer["probabilities"])
    np.testing.assert_allclose(high + low, 1.0, atol=1e-5)
    assert high[-1] > 0.6
    assert low[0] > 0.6


def test_two_clients_at_once(predicting):
    """Answers of two tabs do not mix, and both end."""
    from concurrent.futures import ThreadPoolExecutor

    page = predicting()
    request = page.chart()

    def ask(y):
        return page.post("api/predict", {**request, "readings": [{"x": [5.0], "y": y}]}).json["mean"]

    expected = {y: ask(y) for y in (-1.0, 1.0)}
    with ThreadPoolExecutor(4) as pool:
        given = [(-1.0) ** i for i in range(16)]
        for y, mean in zip(given, pool.map(ask, given), strict=True):
            assert mean == expected[y]


def test_descriptors_do_not_pile_up(predicting):
    """Neither connections nor files stay open."""
    page = predicting()
    request = page.chart()
    page.post("api/predict", request)
    time.sleep(0.1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        page.post("api/predict", request)
        page.get("api/state")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2, 5)


def test_the_server_needs_no_other_module_to_start():
    """The page opens at once: neither JAX nor matplotlib is imported for it."""
    code = "import sys; import metaprior_app.server, metaprior_app.workspace; "
    code += "print([name for name in ('jax', 'matplotlib') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
