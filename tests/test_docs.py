"""The code on the documentation pages runs, links work, and the examples on real data run on generated copies."""

import pkgutil
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
    """Replace the defaults by a small untrained prior, so that the pages run in seconds."""
    regressor = metaprior.MetaGPRegressor
    monkeypatch.setattr(metaprior, "MetaGPRegressor", lambda **given: regressor(**{**QUICK, **given}))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Write the tables of `metaprior example` to the working folder."""
    (tmp_path / "example").mkdir()
    for table in resources.files("metaprior").joinpath("datasets", "example").iterdir():
        if table.name.endswith(".csv"):
            (tmp_path / "example" / table.name).write_bytes(table.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("page", ["index.md", "data.md", "custom.md"])
@pytest.mark.filterwarnings("ignore::metaprior.TableWarning")
@pytest.mark.usefixtures("quick", "tables")
def test_the_code_on_a_page_runs(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    namespace = {"__name__": page}
    exec(compile("\n".join(blocks), page, "exec"), namespace)
    assert namespace["meta"].n_features_in_ == 1
    assert capsys.readouterr().out


def test_the_page_on_other_libraries_runs(tmp_path, monkeypatch, capsys):
    """With the default prior: others cannot be exported. MAPIE, SHAP and ArviZ have tests of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "other-libraries.md").read_text(), flags=re.DOTALL)
    namespace = {"__name__": "other-libraries.md"}
    try:
        exec(compile("\n".join(blocks), "other-libraries.md", "exec"), namespace)
    finally:
        sys.modules.pop("patient", None)
    assert "AdaptedRegressor(6 readings as context, 1 input column)" in capsys.readouterr().out
    assert namespace["patient"].__file__ == str(tmp_path / "patient.py")


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
def test_an_example_on_real_data_runs_on_generated_data(name, make, tmp_path, monkeypatch, capsys):
    make(tmp_path)
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert "scikit-learn GP" in capsys.readouterr().out
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["icu_patients", "wifi_maps"])
def test_an_example_without_its_data_says_what_to_download(name, tmp_path, monkeypatch):
    monkeypatch.setenv("METAPRIOR_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match="Download"):
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")


def test_the_navigation_lists_every_page():
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_every_file_named_in_the_docs_exists():
    """Scripts, results and modules are named as paths from the root of the repository."""
    for page in (ROOT / "docs").glob("*.md"):
        for path in re.findall(r"(?:studies|examples|docs/images)/[\w/.-]*\w/?", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_every_name_in_the_notation_table_exists():
    """Names such as `gp.exact.condition` are modules, functions or classes of the package."""
    names = re.findall(r"`((?:tasks|gp|meta|search|prediction)\.[\w.]+)", (ROOT / "docs" / "notation.md").read_text())
    assert len(names) > 10
    for name in names:
        pkgutil.resolve_name(f"metaprior.{name}")


def test_every_file_and_function_named_for_contributors_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:src|studies|tests|docs|examples)/[\w/.-]*)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    rows = re.findall(r"^\|.*\| `(src/metaprior/[\w/]+)\.py` \| (.*) \|$", text, flags=re.MULTILINE)
    assert len(rows) > 10
    for module, names in rows:
        for name in re.findall(r"`([\w.]+)`", names):
            pkgutil.resolve_name(f"{module.removeprefix('src/').replace('/', '.')}:{name}")


def test_the_reference_lists_every_public_name():
    listed = set(re.findall(r"^::: metaprior\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE))
    assert set(metaprior.__all__) <= listed
