"""What the pages of the site show is what happens, and the examples on real data run on data like them."""

import re
import runpy
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from grouped_files import write_table

import metaprior

ROOT = Path(__file__).parent.parent
QUICK = {"alpha": 0.3, "n_steps": 0, "kernel": "rbf", "mean": "constant", "inference": "map", "dtype": "float32"}


@pytest.fixture
def quick(monkeypatch):
    """Untrained unless asked for, and of one small prior where none is asked for: what is tested is the page."""
    regressor = metaprior.MetaGPRegressor
    monkeypatch.setattr(metaprior, "MetaGPRegressor", lambda **given: regressor(**{**QUICK, **given}))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The tables of `metaprior example` in the working folder."""
    (tmp_path / "example").mkdir()
    for table in resources.files("metaprior").joinpath("datasets", "example").iterdir():
        if table.name.endswith(".csv"):
            (tmp_path / "example" / table.name).write_bytes(table.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("page", ["index.md", "own.md"])
@pytest.mark.filterwarnings("ignore::metaprior.tasks.TableWarning")
@pytest.mark.usefixtures("quick", "tables")
def test_the_code_of_a_page_runs(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    namespace = {"__name__": page}
    exec(compile("\n".join(blocks), page, "exec"), namespace)
    assert namespace["meta"].n_features_in_ == 1
    assert capsys.readouterr().out


def make_patients(root):
    rng = np.random.default_rng(0)
    units = dict(enumerate(["3.0"] * 40 + ["2.0"] * 25))
    write_table(root / "physionet2012" / "patients.csv", "RecordID,ICUType", units.items())
    rows = [(p, 4.0 * hour, 30 + rng.normal()) for p in units for hour in range(9)]
    write_table(root / "physionet2012" / "HCT.csv.gz", "RecordID,t,y", rows)


def make_transmitters(root):
    rng = np.random.default_rng(0)
    rows = [
        (building, point, *rng.uniform(0, 50, 2), floor % 3, rng.normal(-70, 10))
        for building, n in ((0, 40), (1, 25))
        for point in range(n)
        for floor in range(16)
    ]
    write_table(root / "ujiindoorloc" / "radiomap_tasks.csv.gz", "building,wap,x_m,y_m,floor,rssi_dbm", rows)


@pytest.mark.parametrize(("name", "make"), [("icu_patients", make_patients), ("wifi_maps", make_transmitters)])
@pytest.mark.usefixtures("quick")
def test_an_example_on_real_data_runs_on_data_like_them(name, make, tmp_path, monkeypatch, capsys):
    make(tmp_path)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path), "0"])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert "scikit-learn GP" in capsys.readouterr().out
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["icu_patients", "wifi_maps"])
def test_an_example_without_its_data_says_what_to_download(name, tmp_path, monkeypatch):
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match="Download"):
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")


def test_the_navigation_and_the_pages_are_the_same_files():
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
