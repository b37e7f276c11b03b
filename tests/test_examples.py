"""The examples run on small generated data in the layout of the real ones, and say what to get where data are missing.

`examples/tuning_botorch.py` needs libraries that not everyone has, and has tests of its own.
"""

import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from grouped_files import write_table

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def make_patients(root):
    rng = np.random.default_rng(0)
    units = dict(enumerate(["3.0"] * 41 + ["2.0"] * 15))
    write_table(root / "physionet2012" / "patients.csv", "RecordID,ICUType", units.items())
    rows = [(p, 4.0 * hour + rng.uniform(), 30 + rng.normal()) for p in units for hour in range(9)]
    write_table(root / "physionet2012" / "HCT.csv.gz", "RecordID,t,y", rows)


def make_transmitters(root):
    rng = np.random.default_rng(0)
    rows = [
        (building, point, *rng.uniform(0, 50, 2), floor % 3, rng.normal(-70, 10))
        for building, n in ((0, 40), (1, 70))
        for point in range(n)
        for floor in range(16)
    ]
    write_table(root / "ujiindoorloc" / "radiomap_tasks.csv.gz", "building,wap,x_m,y_m,floor,rssi_dbm", rows)


def make_stations(root):
    rng = np.random.default_rng(0)
    heights = dict(enumerate([1000.0] * 12 + [3000.0] * 9 + [1800.0]))
    write_table(root / "colorado_climate" / "stations.csv", "station,elev_m", heights.items())
    rows = [
        (station, 1950, month, 15 - 12 * np.cos(month / 2) - height / 500 + rng.normal())
        for station, height in heights.items()
        for month in range(1, 13)
    ]
    write_table(root / "colorado_climate" / "monthly.csv.gz", "station,year,month,tmax", rows)


def make_features(root):
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 26)
    folder = root / "features" / "effnetlite0_pca64"
    folder.mkdir(parents=True)
    for name in ("miniimagenet", "cub"):
        x = (rng.normal(size=(12, 4))[y] + rng.normal(size=(len(y), 4))).astype(np.float16)
        np.savez(folder / f"{name}.npz", X=x, y=y, split=y % 3)


def make_schools(package, item):
    assert (package, item) == ("mlmRev", "Exam")
    rng = np.random.default_rng(0)
    school = np.repeat(np.arange(18), 22)
    reading = rng.normal(size=len(school))
    exam = 0.5 * reading + 0.3 * rng.normal(size=18)[school] + rng.normal(size=len(school))
    kinds = np.array(["mixed"] * 9 + ["girls"] * 6 + ["boys"] * 3)
    return pd.DataFrame({"school": school, "schgend": kinds[school], "standLRT": reading, "normexam": exam})


MAKERS = {
    "few_shot_images": make_features,
    "forecasting": make_stations,
    "patients_between_units": make_patients,
    "schools_beside_a_mixed_model": lambda root: None,
    "wifi_maps": make_transmitters,
}
SLOW = {"few_shot_images": pytest.mark.slow}


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """Collect figures that an example shows, and let it find nothing but data under the temporary folder."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figures = []
    monkeypatch.setattr(plt, "show", lambda: figures.append(plt.gcf()))
    monkeypatch.setattr("metaprior_studies.environments.r_tables.read_table", make_schools)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path))
    yield figures
    plt.close("all")


def run_example(name):
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in MAKERS])
@pytest.mark.filterwarnings("ignore:The MLE may be on the boundary")  # of statsmodels, on generated schools
def test_an_example_runs_on_generated_data(name, tmp_path, shown, capsys):
    MAKERS[name](tmp_path)
    run_example(name)
    assert capsys.readouterr().out.count("\n") >= 5
    assert shown
    for figure in shown:
        labeled = [axes for axes in figure.axes if axes.get_xlabel() or axes.get_ylabel()]
        assert labeled
        assert len(figure.legends) + sum(axes.get_legend() is not None for axes in figure.axes) <= 1


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "schools_beside_a_mixed_model"])
def test_an_example_without_its_data_says_what_to_get(name, tmp_path, shown):
    with pytest.raises(FileNotFoundError, match=r"is missing: (.|\n)*(Download|Install|Ask for)(.|\n)*METAPRIOR_DATA"):
        run_example(name)
    assert not shown


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_opens_with_a_question_and_ends_with_warnings(name):
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert re.match(r'"""\n# [^\n]+\n\n\*\*The question\.\*\* (.|\n)*?\?', text)
    last = text.rpartition("# %%")[2]
    assert "# ## What to watch out for\n# - **" in last


def test_every_example_is_tested():
    assert set(EXAMPLES) - {"tuning_botorch"} == set(MAKERS)
