"""What a report holds of the data: it says so itself, and --private leaves all of it out."""

import html
import re

import numpy as np
import pandas as pd
import pytest
from running import call

from page_client import wait_until

IDS = ["p-4071", "p-4072", "p-4073", "p-4074", "p-4075", "p-4076", "q-881", "q-882", "q-883", "q-884", "q-885"]
ROLES = ["--task", "person", "--x", "hour", "--environment", "ward", "--target", "east"]


def table(n_readings=7):
    """Two wards; every number is written with so many digits that it is found wherever it is."""
    rng = np.random.default_rng(0)
    person = np.repeat(IDS, n_readings)
    hour = rng.uniform(10.0, 20.0, len(person)).round(3)
    rate = (80.0 + 5.0 * np.sin(hour) + np.repeat(4.0 * rng.normal(size=len(IDS)), n_readings)).round(3)
    word = np.where(rate + rng.normal(size=len(rate)) > 80.0, "tachy-x", "brady-x")
    ward = np.where(np.char.startswith(person, "p"), "east", "west")
    diet = rng.choice(["diet-fish", "diet-nuts"], len(IDS))
    age = np.repeat(rng.uniform(30.0, 90.0, len(IDS)).round(2), n_readings)
    when = (pd.Timestamp("2024-03-01") + pd.to_timedelta(hour, unit="D")).strftime("%Y-%m-%d %H:%M")
    columns = {"person": person, "hour": hour, "rate": rate, "word": word, "ward": ward, "age": age, "when": when}
    return pd.DataFrame({**columns, "diet": np.repeat(diet, n_readings)})


def written(content):
    """Return the words and numbers of a page and of its charts."""
    return set(re.findall(r"[\w.:-]*\w", html.unescape(content)))


def cells(frame, *columns):
    return {str(value) for name in columns for value in frame[name]}


def report(folder, frame, *options, name="fit.html"):
    frame.to_csv(folder / "table.csv", index=False)
    files = ["--out", folder / "prior.safetensors", "--report", folder / name]
    call("fit", folder / "table.csv", *ROLES, *options, *files)
    return (folder / name).read_text(encoding="utf-8")


KINDS = {
    "numbers": (["--y", "rate", "--alpha", "0.5"], ("person", "hour", "rate")),
    "held out": (["--y", "rate", "--alpha", "0.5", "--hold-out", "0.5"], ("person", "hour", "rate")),
    "kinds": (
        ["--x", "when", "--y", "rate", "--covariates", "age", "diet", "--alpha", "0.5"],
        ("person", "rate", "age", "diet"),
    ),
    "labels": (["--y", "word", "--alpha", "0.5"], ("person", "hour", "word")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_reading_and_no_name_of_a_task_is_in_a_report_without_data(tmp_path, kind):
    options, columns = KINDS[kind]
    frame = table()
    content = report(tmp_path, frame, *options, "--private")
    assert not written(content) & cells(frame, *columns)
    assert "This page contains no reading and no name of a task" in content
    assert not re.search(r"\(\d+–\d+\)", content), "the shortest and the longest task"
    assert "data-chart" in content
    full = report(tmp_path, frame, *options)
    assert re.search(r"\(\d+–\d+\)", full)
    for name in columns:  # the same search finds them where they are
        assert written(full) & cells(frame, name), name


def test_the_report_says_of_how_many_tasks_it_has_readings_and_names(tmp_path):
    frame = table()
    options = ["--y", "rate", "--alpha", "0.5"]
    said = re.search(r"This page contains [^<]*", report(tmp_path, frame, *options))[0]
    assert "the readings of 11 tasks and the names of 6 of them" in said
    assert "--private" in html.unescape(said)
    said = re.search(r"This page contains [^<]*", report(tmp_path, frame, *options, "--hold-out", "0.5"))[0]
    assert "the readings of 11 tasks and the names of 3 of them" in said


def test_numbers_of_few_tasks_are_no_aggregates(tmp_path):
    """The mean of one reading is that reading, and two follow from their mean and standard deviation."""
    frame = table(2)
    wards = {"p-4076": "attic", "q-884": "attic", "q-885": "cellar"}
    frame["ward"] = [wards.get(name, ward) for name, ward in zip(frame["person"], frame["ward"], strict=True)]
    frame.loc[frame["ward"] == "west", "rate"] = 75.1  # whose standard deviation is not quite zero
    content = report(tmp_path, frame, "--y", "rate", "--alpha", "0.5", "--private")
    rows = re.findall(r'<th scope="row">rate</th><td>(\w+)[^<]*</td><td>([^<]*)</td><td>([^<]*)</td>', content)
    assert {ward for ward, mean, spread in rows if (mean, spread) == ("–", "–")} == {"attic", "cellar", "west"}
    assert len(rows) == 4


def test_the_page_makes_reports_with_and_without_data(page):
    frame = table()
    page.upload("api/table", "table.csv", frame.to_csv(index=False).encode())
    roles = {"task": ["person"], "x": ["hour"], "y": "rate"}
    page.post("api/fit", roles)
    assert page.wait_for_fit()["status"] == "done"

    def made(request):
        assert page.post("api/report", request).status == 200
        assert not page.get("api/progress").json["has_report"], "the one of before is gone"
        wait_until(lambda: page.get("api/progress").json["fit"]["status"] != "running", 60)
        return page.get("report.html").content.decode()

    full = made({})
    assert cells(frame, "rate") & written(full)
    assert not cells(frame, "person", "hour", "rate") & written(made({"without_data": True}))
    assert page.post("api/report", {"without_data": 1}).status == 400
    left = {path.name for path in page.workspace.report.parent.iterdir()}
    assert left == {"prior.safetensors", "report.html"}, "nothing else that has readings is left behind"
