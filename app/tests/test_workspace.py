"""What the page does: fits begun and stopped, priors replaced, the slider, bad requests, contexts."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaprior import MetaGPRegressor, load, tasks_from_frame
from metaprior.checks import MissingExtra
from metaprior.wfem import Training, WFEMRegressor
from metaprior_app import fits, workspace
from page_client import PATIENT_ROLES, PATIENTS, Page, csv, fit, labels_table, readings_table, wait_until

CHANGED = 409
QUICK = {"task": ["task"], "x": ["x"], "y": "y"}


@pytest.fixture
def tabled(page):
    """A page with a table."""
    page.upload("api/table", "my table.csv", csv(readings_table()))
    return page


@pytest.fixture
def slow_fits(monkeypatch, tmp_path):
    """Programs that run instead of fits, and take a minute."""
    script = tmp_path / "instead"
    script.write_text(f"#!{sys.executable}\nimport time; time.sleep(60)\n")
    script.chmod(0o755)
    monkeypatch.setattr(fits.sys, "executable", str(script))


def test_one_fit_at_a_time_and_its_stop(tabled, slow_fits):
    page = tabled
    assert page.post("api/fit", QUICK).json["fit"]["status"] == "running"
    again = page.post("api/fit", QUICK)
    assert (again.status, "running" in again.error) == (CHANGED, True)
    assert page.post("api/report", {}).status == CHANGED
    pid = page.workspace.job.fit._process.pid
    started = time.monotonic()
    stopped = page.post("api/stop").json["fit"]
    assert time.monotonic() - started < 3.0
    assert (stopped["status"], stopped["error"]) == ("stopped", None)
    assert not Path(f"/proc/{pid}").exists()
    assert page.post("api/stop").json["fit"]["status"] == "stopped"  # again is no error
    assert page.post("api/fit", QUICK).status == 200
    page.post("api/stop")


def test_a_prior_cannot_replace_what_is_being_fitted(tabled, slow_fits, prior_file):
    tabled.post("api/fit", QUICK)
    answer = tabled.upload("api/table", "prior.safetensors", prior_file("numbers").read_bytes())
    assert answer.status == CHANGED
    assert tabled.state["prior"] is None
    assert tabled.state["table"]["name"] == "my table.csv"


def test_the_end_of_the_page_ends_its_fit(tmp_path, slow_fits):
    with closing(Page(tmp_path)) as page:
        page.upload("api/table", "table.csv", csv(readings_table()))
        page.post("api/fit", QUICK)
        pid = page.workspace.job.fit._process.pid
    assert not Path(f"/proc/{pid}").exists()


def test_a_table_that_changes_under_the_page_is_read_again(page, tmp_path, slow_fits):
    path = tmp_path / "table.csv"
    path.write_bytes(csv(readings_table(6)))
    page.workspace.open_path(path)
    before = page.state
    assert before["table"]["is_copy"] is False
    path.write_bytes(csv(readings_table(7)))
    answer = page.post("api/fit", QUICK)
    assert (answer.status, "has changed" in answer.error) == (CHANGED, True)
    assert page.state["revision"] > before["revision"]
    assert (before["table"]["n_rows"], page.state["table"]["n_rows"]) == (30, 35)
    path.write_bytes(b"")  # unreadable
    assert page.post("api/fit", QUICK).status == 400
    assert page.state["table"]["n_rows"] == 35
    path.unlink()
    answer = page.post("api/fit", QUICK)
    assert (answer.status, answer.error) == (CHANGED, "table.csv is not there any more. Choose it again.")
    assert page.post("api/format", {}).status == 400
    path.write_bytes(csv(readings_table(7)))
    assert page.post("api/fit", QUICK).status == CHANGED  # another file of that name
    assert page.post("api/fit", QUICK).status == 200


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"task": [], "x": ["x"], "y": "y"}, "task"),
        ({"task": ["task"], "x": [], "y": "y"}, "x"),
        ({"task": ["task"], "x": ["x"]}, "lacks y"),
        ({"task": "task", "x": ["x"], "y": "y"}, "request.task must be a list, got text"),
        ({"task": ["task"], "x": ["x"], "y": "x"}, "x"),
        ({"task": ["task"], "x": ["task"], "y": "y"}, "task"),
        ({**QUICK, "kind": "other"}, "kind"),
        ({**QUICK, "likelihood": "cauchy"}, "likelihood"),
        ({**QUICK, "drop_missing": "yes"}, "drop_missing"),
        ({"task": ["t\0"], "x": ["x"], "y": "y"}, "NUL"),
        ({"task": ["\ud800"], "x": ["x"], "y": "y"}, "UTF-8"),
    ],
)
def test_roles_that_cannot_be_fitted_are_refused_before_a_process_starts(tabled, roles, said):
    answer = tabled.post("api/fit", roles)
    assert answer.status == 400
    assert said in answer.error
    assert tabled.state["fit"] is None


SAID = {  # by a fit to a changed table, with some roles
    "missing": (lambda frame: frame.assign(y=frame["y"].where(frame.index != 3)), QUICK, "drop_missing"),
    "repeated": (lambda frame: pd.concat([frame, frame.head(3)]), QUICK, "drop_duplicates"),
    "comma": (lambda frame: frame.assign(y="1,5"), QUICK, "decimal"),
    "labels": (lambda frame: frame.assign(y=list("abcdefghij") * 3), {**QUICK, "kind": "regression"}, ""),
    "text": (lambda frame: frame.assign(x="text"), QUICK, ""),
    "column": (lambda frame: frame, {**QUICK, "x": ["nothing"]}, "nothing"),
    "target": (lambda frame: frame.assign(e="s"), {**QUICK, "environment": "e", "target": "t"}, ""),
    "constant": (lambda frame: frame.assign(y=2.0), QUICK, ""),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "missing" else pytest.mark.slow) for kind in SAID]
)
def test_fits_speak_in_names_of_parameters_which_the_form_bears(page, kind):
    change, roles, said = SAID[kind]
    page.upload("api/table", "my table.csv", csv(change(readings_table())))
    page.post("api/fit", roles)
    ended = page.wait_for_fit()
    words = " ".join([ended["error"] or "", *ended["notes"]])
    assert said in words
    assert "--" not in words
    assert str(page.workspace.folder) not in words
    if ended["status"] == "failed":
        assert page.state["prior"] is None
    if said and said != "nothing":
        assert f"<code>{said}</code>" in page.get("").content.decode()
    if kind == "missing":
        assert "my table.csv" in words
        page.post("api/fit", {**QUICK, "drop_missing": True})
        assert page.wait_for_fit()["status"] == "done"
        assert page.state["prior"]["n_tasks"] == 6


def test_an_input_of_one_value_is_fitted_and_drawn(page):
    page.upload("api/table", "table.csv", csv(readings_table().assign(same=3.0)))
    page.post("api/fit", {**QUICK, "x": ["x", "same"]})
    assert page.wait_for_fit()["status"] == "done"
    assert page.post("api/predict", page.chart()).status == 200
    assert page.post("api/predict", page.chart(axis=1, range=[3.0, 4.0])).status == 200
    assert page.post("api/tasks", {"revision": page.state["prior"]["revision"], "axis": 1}).status == 200


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


# -------------------------------------------------------------------- the whole way, and the slider


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A page with the patients fitted, and all other weights of the source."""
    with closing(Page(tmp_path_factory.mktemp("fitted"))) as page:
        page.post("api/example", {"name": "patients"})
        assert page.post("api/fit", PATIENT_ROLES).json["fit"]["status"] == "running"
        page.seen = []
        wait_until(lambda: page.seen.append(page.progress["fit"]) or page.seen[-1]["status"] != "running", 90)
        wait_until(lambda: page.progress["slider_left"] == 0, 90)
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


def test_every_place_of_the_slider_is_a_fit_at_that_weight(fitted):
    places, report = fitted.state["slider"], fitted.workspace.prior.meta.transfer_report()
    alphas = [each["alpha"] for each in places]
    assert alphas == sorted(alphas)
    assert len(places) >= 3
    assert alphas[0] == 0.0
    assert {round(alpha, 9) for alpha in alphas} <= {round(float(alpha), 9) for alpha in report.alpha}
    tasks = tasks_from_frame(str(PATIENTS), task="patient", x="hours", y="heart_rate", environment="hospital")
    means = []
    for place in (places[0], places[len(places) // 2], places[-1], {"key": "auto", "alpha": "auto"}):
        request = fitted.chart(readings=[{"x": [5.0], "y": 80.0}], alpha=place["key"])
        answer = fitted.post("api/predict", request).json
        meta = MetaGPRegressor(alpha=place["alpha"], random_state=0).fit(tasks, target="south")
        predictive = meta.adapt([[5.0]], [80.0]).predictive(np.array(answer["x"])[:, None])
        np.testing.assert_allclose(answer["mean"], predictive.mean(), rtol=1e-5)
        np.testing.assert_allclose(answer["lower"], predictive.interval(0.9)[0], rtol=1e-5)
        path = fitted.workspace.folder / "downloaded.safetensors"
        path.write_bytes(fitted.get(f"prior.safetensors?alpha={place['key']}").content)
        assert float(load(path).alpha_) == pytest.approx(float(meta.alpha_))
        means.append(answer["mean"])
    assert np.abs(np.array(means[0]) - means[2]).max() > 0.1, "weights make no difference"
    assert fitted.get("prior.safetensors?alpha=0.123").status == CHANGED


@pytest.mark.parametrize("path", ["api/predict", "api/code", "predictions.csv", "readings.csv"])
def test_places_of_the_slider_and_revisions_that_are_none_are_refused(fitted, path):
    for alpha, status in (({}, 400), ([], 400), (0.5, 400), (True, 400), ("0.123", CHANGED)):
        answer = fitted.post(path, fitted.chart(alpha=alpha))
        assert answer.status == status
        assert "alpha" in answer.error
    request = fitted.chart()
    answer = fitted.post(path, {**request, "revision": request["revision"] - 1})
    assert (answer.status, "replaced" in answer.error) == (CHANGED, True)


def test_training_tasks_are_drawn_as_they_are(fitted):
    revision = fitted.state["prior"]["revision"]
    drawn = fitted.post("api/tasks", {"revision": revision, "axis": 0}).json["tasks"]
    frame = pd.read_csv(PATIENTS).sort_values("hours", kind="stable")
    assert drawn["n_tasks"] == frame["patient"].nunique()
    shown = {tuple(zip(each["x"], each["y"], strict=True)) for each in drawn["tasks"]}
    for _, rows in frame.groupby("patient"):
        assert tuple(zip(rows["hours"].round(6), rows["heart_rate"].round(6), strict=True)) in shown
    for axis in (1, -1, "0", None, 0.5):
        assert fitted.post("api/tasks", {"revision": revision, "axis": axis}).status == 400


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
    frame = readings_table(8, 6, n_inputs=45)
    (tmp_path / "wide.csv").write_bytes(csv(frame))
    inputs = [f"--x={name}" for name in frame.columns[1:-1]]
    page.open_prior(fit(tmp_path / "wide.csv", tmp_path / "wide.safetensors", "--task=task", *inputs, "--y=y"))
    assert len(page.chart()["fixed"]) == 45
    assert page.post("api/predict", page.chart()).status == 200


def test_a_prior_of_metaprior_wfem_is_shown(page, tmp_path):
    tasks = tasks_from_frame(PATIENTS, task="patient", x="hours", y="heart_rate", environment="hospital")
    meta = WFEMRegressor(kernel="rbf", mean="constant", training=Training(n_steps=4), random_state=0)
    meta.fit(tasks, target="south").save(tmp_path / "wfem.safetensors")
    page.open_prior(tmp_path / "wfem.safetensors")
    assert page.state["prior"]["fitted_here"] is False
    assert np.isfinite(page.post("api/predict", page.chart()).json["mean"]).all()
    assert "load(" in page.post("api/code", page.chart()).json["python"]


def test_a_prior_that_needs_an_extra_says_so(page, monkeypatch):
    def fail(_):
        raise MissingExtra("metaprior.wfem needs jax: run pip install 'metaprior[wfem]'.")

    monkeypatch.setattr(workspace, "load", fail)
    answer = page.upload("api/table", "prior.safetensors", b"of networks")
    assert (answer.status, answer.error) == (400, "metaprior.wfem needs jax: run pip install 'metaprior[wfem]'.")


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
    assert min(high[-1], low[0]) > 0.6


# -------------------------------------------------------------------- contexts


def test_a_context_of_several_tasks(predicting):
    page, frame = predicting("patients"), pd.read_csv(PATIENTS).query("patient in ['N01', 'N02']")
    tasks = page.upload("api/context", "two.csv", csv(frame)).json["tasks"]
    assert [each["name"] for each in tasks] == ["N01", "N02"]
    first = frame.query("patient == 'N01'")
    assert [each["y"] for each in tasks[0]["readings"]] == first["heart_rate"].tolist()
    assert [each["x"] for each in tasks[0]["readings"]] == first[["hours"]].to_numpy().tolist()
    assert page.post("api/predict", page.chart(readings=tasks[0]["readings"])).status == 200
    (task,) = page.upload("api/context", "one.csv", b"heart_rate,hours,other\n80,1,x\n82.5,2,y\n").json["tasks"]
    assert task["readings"] == [{"x": [1.0], "y": 80.0}, {"x": [2.0], "y": 82.5}], "without a column of tasks"
    assert not list(page.workspace.folder.iterdir())


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("patients", b"hours,pulse\n1,80\n", "heart_rate"),
        ("patients", b"hours,heart_rate\n1,\n", "missing"),
        ("patients", b"hours,heart_rate\nx,80\n", "hours"),
        ("patients", b"", "empty"),
        ("patients", b"hours,heart_rate\n" + b"".join(b"%d,80\n" % i for i in range(501)), "500 at most"),
        ("patients", b"patient,hours,heart_rate\n" + b"".join(b"p%d,1,80\n" % i for i in range(1001)), "1000 at most"),
        ("labels", b"x,word\n1,low\n9,green\n", "'green' is no class"),
        ("kinds", b"brand,hours,y\nzap,1.0,7.5\n", "not fitted to"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
def test_contexts_that_do_not_fit_are_refused_in_words(predicting, kind, content, said):
    answer = predicting(kind).upload("api/context", "context.csv", content)
    assert answer.status == 400
    assert said in answer.error
    assert "--" not in answer.error


def test_contexts_of_labels_shared_and_of_their_own(predicting):
    (task,) = predicting("labels").upload("api/context", "c.csv", b"x,word\n1,low\n9,high\n").json["tasks"]
    assert (task["classes"], [each["y"] for each in task["readings"]]) == (["high", "low"], [1, 0])
    page = predicting("own labels")
    (task,) = page.upload("api/context", "c.csv", b"x,word\n1,red\n9,green\n").json["tasks"]
    assert (task["classes"], [each["y"] for each in task["readings"]]) == (["green", "red"], [1, 0])
    request = page.chart(readings=task["readings"], classes=task["classes"])
    assert page.post("api/predict", request).json["classes"] == ["green", "red"]
    (one,) = page.upload("api/context", "c.csv", b"x,word\n1,red\n").json["tasks"]
    assert len(one["classes"]) == 2


def test_contexts_have_levels_and_the_covariates_of_their_task(predicting):
    page = predicting("kinds")
    brand, _, age, sex = page.state["prior"]["inputs"]
    content = b"brand,hours,age,sex,y\nacme,1.0,70,male,7.5\nbolt,2.0,70,male,7.0\n"
    [task] = page.upload("api/context", "readings.csv", content).json["tasks"]
    codes, male = [brand["levels"].index(name) for name in ("acme", "bolt")], sex["levels"].index("male")
    assert [reading["x"] for reading in task["readings"]] == [[codes[0], 1.0, 70.0, male], [codes[1], 2.0, 70.0, male]]
    [task] = page.upload("api/context", "readings.csv", b"brand,hours,y\nacme,1.0,7.5\n").json["tasks"]
    assert task["readings"][0]["x"][2:] == [age["typical"], sex["typical"]]


# -------------------------------------------------------------------- the server at work


def test_answers_of_two_tabs_do_not_mix(predicting):
    page = predicting()
    request = page.chart()

    def ask(y):
        return page.post("api/predict", {**request, "readings": [{"x": [5.0], "y": y}]}).json["mean"]

    expected = {y: ask(y) for y in (-1.0, 1.0)}
    with ThreadPoolExecutor(4) as pool:
        given = [(-1.0) ** i for i in range(16)]
        for y, mean in zip(given, pool.map(ask, given), strict=True):
            assert mean == expected[y]


def test_descriptors_do_not_pile_up(served, prior_file):
    """Neither connections nor files stay open."""
    served.open_prior(prior_file("numbers"))
    request = served.chart()
    served.post("api/predict", request)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        served.post("api/predict", request)
        assert served.get("api/state").status == 200
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 2, 5)


def test_the_server_needs_no_other_module_to_start():
    """The page opens at once: neither JAX nor matplotlib is imported for it."""
    code = "import sys; import metaprior_app.server, metaprior_app.workspace; "
    code += "print([name for name in ('jax', 'matplotlib') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
