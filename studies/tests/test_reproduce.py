"""Results on disk, runs that are killed and resumed, the profiles, and the results that are committed."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pixels
import pytest

from metaprior.wfem import MAP, SVGD, LinearRBFKernel, MLPKernel, MLPMean
from metaprior_studies import results_store as store
from metaprior_studies.commands.reproduce import Figure
from metaprior_studies.open_settings import (
    FEATURES,
    FEATURES_SVGD,
    PIXELS,
    PIXELS_SVGD,
    SINUSOID,
    OpenSettings,
    validation_seeds,
)
from metaprior_studies.reproduction import profiles, settings_search
from metaprior_studies.reproduction.claims import SCOPE, judge
from metaprior_studies.reproduction.comparisons import difference
from metaprior_studies.reproduction.conclusions import provenance, read_tables
from metaprior_studies.reproduction.fewshot_figure import Figure4
from metaprior_studies.reproduction.schemes import paper_schemes, score
from metaprior_studies.reproduction.settings_search import SettingsSearch, best
from metaprior_studies.reproduction.sinusoid_figures import RegimeMap
from metaprior_studies.results_store import ResultsError, Store, read_json
from metaprior_studies.runner import run
from metaprior_studies.schema import (
    ALL,
    COLUMNS,
    CURVES,
    DEFAULT,
    FEATURE,
    FEW,
    FIGURES,
    GP,
    ORACLE_BAYES,
    ORACLE_GP,
    PIXEL,
    WFEM,
)
from metaprior_studies.study import Point, make_rows

COMMITTED = Path(__file__).resolve().parents[1] / "results" / "reproduction"


class Counting:
    """A study of three points that counts what it computes."""

    name = "counting"

    def __init__(self, broken=None):
        self.computed, self.broken = [], broken

    def points(self):
        return [Point(name, {}) for name in ("first", "second", "third")]

    def run(self, point, on_chunk):
        if point.name == self.broken:
            raise KeyboardInterrupt
        self.computed.append(point.name)
        setting = {name: "" if kind == "string" else 0.5 for name, kind in COLUMNS.items()}
        return make_rows({**setting, "figure": point.name}, 0, FEW, {"rmse": 1 / 3, "nll": float("nan")})


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(store.dataclasses, "asdict", lambda study: {"size": 3, "broken": study.broken is not None})
    return Counting()


def test_points_are_kept_and_only_missing_ones_are_computed(counting, tmp_path):
    interrupted = Counting(broken="third")
    with pytest.raises(KeyboardInterrupt):
        run([interrupted], tmp_path, False, "command")
    assert interrupted.computed == ["first", "second"]
    interrupted.broken = "nothing"  # the same configuration, now whole
    table = run([interrupted], tmp_path, True, "command")["counting"]
    assert interrupted.computed == ["first", "second", "third"]
    whole = Counting(broken="nothing")
    expected = run([whole], tmp_path / "whole", False, "command")["counting"]
    assert table.equals(expected)
    assert table["value"].isna().sum() == 3
    files = [folder / "counting" / "results.parquet" for folder in (tmp_path, tmp_path / "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()
    runs = json.loads((tmp_path / "counting" / "provenance.json").read_text())["runs"]
    assert sum(entry["points"] for entry in runs) == 3
    assert {"command", "device", "versions", "commit", "seconds"} <= set(runs[0])


def test_nothing_is_overwritten_without_being_asked(counting, tmp_path):
    run([counting], tmp_path, False, "command")
    with pytest.raises(ResultsError, match=r"already holds results. Add --resume"):
        run([Counting()], tmp_path, False, "command")
    other = Counting(broken="nothing")
    with pytest.raises(ResultsError, match=r"another configuration \(broken: False there, True requested\)"):
        run([other], tmp_path, True, "command")
    assert not other.computed


def test_a_lost_configuration_is_known_by_the_points(counting, tmp_path):
    run([counting], tmp_path, False, "command")
    config = tmp_path / "counting" / "config.json"
    content = config.read_bytes()
    for damage in (config.unlink, lambda: config.write_text("{")):
        damage()
        with pytest.raises(ResultsError, match=r"no complete config.json"):
            run([Counting(broken="nothing")], tmp_path, True, "command")
        again = Counting()
        run([again], tmp_path, True, "command")
        assert not again.computed
        assert config.read_bytes() == content


def test_tables_without_their_points_are_not_overwritten(counting, tmp_path):
    run([counting], tmp_path, False, "command")
    shutil.rmtree(tmp_path / "counting" / "points")
    for resume in (False, True):
        with pytest.raises(ResultsError, match=r"none of the points it was made of"):
            run([Counting()], tmp_path, resume, "command")


def test_a_folder_is_claimed_only_when_work_begins(counting, tmp_path):
    """One study that is refused leaves no trace of the others; a configuration without results can be replaced."""
    run([counting], tmp_path, False, "command")
    first = Counting()
    first.name = "first"
    with pytest.raises(ResultsError, match="already holds results"):
        run([first, Counting()], tmp_path, False, "command")
    assert not (tmp_path / "first").exists()
    with pytest.raises(KeyboardInterrupt):
        run([Counting(broken="first")], tmp_path / "interrupted", False, "command")
    run([Counting()], tmp_path / "interrupted", False, "command")


@pytest.mark.parametrize("content", [None, "[]", '{"runs": []}', '{"runs": [{}]}', "nonsense"])
def test_lost_provenance_is_unknown_not_an_error(counting, tmp_path, content):
    run([counting], tmp_path, False, "command")
    path = tmp_path / "counting" / "provenance.json"
    path.unlink() if content is None else path.write_text(content)
    run([Counting()], tmp_path, True, "command")
    config = tmp_path / "counting" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "n_draws": 1}))
    assert provenance(tmp_path / "counting")["commit"] == "unknown"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"sha256": "0", "columns": "{}"}', b"\xff\xfe", None])
def test_a_damaged_point_is_named_before_any_work_and_the_others_stay(counting, tmp_path, damage):
    run([counting], tmp_path, False, "command")
    path = tmp_path / "counting" / "points" / "second.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0.3333", b"0.4444") if damage is None else damage)
    with pytest.raises(ResultsError, match=r"second.json is damaged.*Remove that file"):
        run([Counting()], tmp_path, True, "command")
    path.unlink()
    again = Counting()
    run([again], tmp_path, True, "command")
    assert again.computed == ["second"]
    assert path.read_bytes() == content


def test_a_full_disk_is_one_clear_error_and_loses_nothing(counting, tmp_path, monkeypatch):
    fsync, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 5:  # configuration, two points with their notes
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultsError, match=r"cannot be written \(No space left on device\).*--resume"):
        run([counting], tmp_path, False, "command")
    monkeypatch.setattr(os, "fsync", fsync)
    points = tmp_path / "counting" / "points"
    assert sorted(path.name for path in points.iterdir()) == ["first.json", "second.json"]
    again = Counting()
    run([again], tmp_path, True, "command")
    assert again.computed == ["third"]


# Priors that stay where they start: compiling the training in every process would take most of the time.
STUDY = """RegimeMap(
    n_draws=1, n_target=(5, 25), strengths=(1.0,), deviations=tuple(k / 50 for k in range(50)), alphas=(0.3,),
    n_test_tasks=20, n_queries=30, open=OpenSettings(6.0, 1e-2, 0),
)"""
SCRIPT = f"""
import sys
from pathlib import Path
from metaprior_studies.runner import run
from metaprior_studies.reproduction.sinusoid_figures import RegimeMap
from metaprior_studies.open_settings import OpenSettings
run([{STUDY}], Path(sys.argv[1]), True, "test")
"""


@pytest.mark.slow
def test_killed_at_three_random_moments_and_resumed_gives_the_same_bytes(tmp_path):
    rng = np.random.default_rng(0)
    start = lambda folder: subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])  # noqa: E731
    killed = tmp_path / "killed"
    points, survived = killed / "regime" / "points", []
    for _ in range(3):
        process, before = start(killed), len(list(points.glob("*.json")))
        while process.poll() is None and len(list(points.glob("*.json"))) == before:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        survived.append(len(list(points.glob("*.json"))))
    assert 0 < survived[0] < survived[-1] < 100, "it was to be killed in the middle"
    assert start(killed).wait() == 0
    run([eval(STUDY, {"RegimeMap": RegimeMap, "OpenSettings": OpenSettings})], tmp_path / "whole", False, "test")
    files = [folder / "regime" / "results.parquet" for folder in (killed, tmp_path / "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_profiles_show_what_the_paper_states():
    full, quick = profiles.FULL, profiles.QUICK
    assert set(full) == set(quick) == set(FIGURES)
    assert all(full[name].n_draws >= 100 for name in ("fig1", "fig2", "fig3", "fig5"))
    assert min(full["fig4"].n_draws, full["fig4"].n_pixel_draws) >= 20
    assert set(Figure) == {*FIGURES, "all", "settings"}
    [wider] = profiles.studies("fig4", "full", 70, lambda data: None)
    assert (wider.n_draws, wider.n_pixel_draws) == (70, 70)
    for studies in (full, quick):
        one, two, three, four, five = (studies[f"fig{i}"] for i in range(1, 6))
        assert {(s.n_tasks, s.n_samples, s.noise_std) for s in (one, two, three, five)} == {(30, 5, 0.1)}
        assert (one.n_source, one.alpha, min(one.deviations), max(one.deviations)) == (15, 0.5, 0.0, 1.0)
        assert (two.n_source, two.alpha, two.deviation) == (6, 0.2, 0.5)
        assert (three.deviation, min(three.n_source), max(three.n_source)) == (0.75, 0, 30)
        assert (five.n_source, five.deviation) == (12, 0.75)
        assert (four.n_tasks, four.n_source) == (20, 10)
        assert one.open == two.open == three.open == five.open == studies["regime"].open == SINUSOID
        training = five.training
        assert training.settings.temperature == "paper"
        assert (training.settings.mean, training.settings.kernel) == (MLPMean(), MLPKernel())
        of_features = four.training(FEATURE, "map").settings
        assert (of_features.mean, of_features.kernel) == (MLPMean(), MLPKernel())
        for data, kernel in ((FEATURE, MLPKernel()), (DEFAULT, LinearRBFKernel())):
            of_svgd = four.training(data, "svgd").settings
            assert (of_svgd.kernel, of_svgd.method.n_particles, type(of_svgd.method)) == (kernel, 10, SVGD)
    assert full["fig5"].alphas == full["fig4"].alphas == full["fig4"].pixel_alphas == tuple(k / 10 for k in range(11))


OWN_SETTINGS = {
    (FEATURE, "map"): FEATURES,
    (FEATURE, "svgd"): FEATURES_SVGD,
    (PIXEL, "map"): PIXELS,
    (PIXEL, "svgd"): PIXELS_SVGD,
}


@pytest.mark.parametrize(("data", "method"), OWN_SETTINGS)
def test_every_method_is_trained_with_the_settings_that_were_searched_for_it(data, method):
    training, chosen = Figure4().training(data, method), OWN_SETTINGS[data, method]
    assert (training.learning_rate, training.n_steps) == (chosen.learning_rate, chosen.n_steps)
    assert set(training.settings.prior_std.values()) == {chosen.prior_std}
    expected = MAP() if method == "map" else SVGD(10, chosen.length_scale, start="hyperprior")  # type: ignore[arg-type]
    assert training.settings.method == expected


def test_the_search_trains_every_candidate_as_the_figure_would(monkeypatch):
    trained = []
    monkeypatch.setattr(Figure4, "draws", lambda self, data, seeds, split: [])
    monkeypatch.setattr(
        settings_search, "score", lambda draws, schemes, training, on_chunk: trained.append(training) or []
    )
    search = SettingsSearch(tuple(grid for grid in SettingsSearch().grids if grid.data != "sinusoid"))
    for point in search.points():
        assert search.run(point, lambda what: None) == []
        [training], values = trained, point.values
        assert (training.learning_rate, training.n_steps) == (values["rate"], values["n_steps"])
        if search.grids[values["grid"]].method == "svgd":
            assert training.settings.method == SVGD(10, values["length_scale"], start="hyperprior")
        trained.clear()


def test_networks_that_do_not_interact_have_the_settings_of_svgd_on_pixels():
    svgd, networks = Figure4().training(PIXEL, "svgd"), pixels.METHODS["MAP, 10 networks"]
    assert networks["inference"] == MAP(svgd.settings.method.n_particles, svgd.settings.method.start)
    training = networks["training"]
    assert (training.learning_rate, training.n_steps) == (svgd.learning_rate, svgd.n_steps)
    assert networks["hyperprior"] == svgd.settings.hyperprior
    assert networks["temperature"] == svgd.settings.temperature
    assert training.standardize == svgd.settings.standardize


committed = pytest.mark.skipif(not (COMMITTED / "claims.json").exists(), reason="the full results are missing")


@committed
def test_the_open_settings_are_those_that_the_committed_search_chose():
    table = read_tables(COMMITTED, ["settings"])["settings"]
    assert set(table["draw"]) <= set(validation_seeds(10_000))
    assert best(table, "sinusoid", "map") == SINUSOID
    assert best(table, "features", "map") == FEATURES
    assert best(table, "features", "svgd") == FEATURES_SVGD
    assert best(table, "pixels", "map") == PIXELS
    assert best(table, "pixels", "svgd") == PIXELS_SVGD
    assert read_json(COMMITTED / "settings" / "config.json") == Store(COMMITTED, SettingsSearch()).config


@committed
def test_the_committed_results_are_whole_and_say_what_the_claims_say():
    tables = read_tables(COMMITTED)
    assert set(tables) == set(FIGURES)
    for name, table in tables.items():
        study = profiles.FULL[name]
        assert list(table) == list(COLUMNS)
        config = json.loads((COMMITTED / name / "config.json").read_text())
        assert config == Store(COMMITTED, study).config
        of_draw = table[~table["metric"].isin(CURVES)].groupby([*list(COLUMNS)[:8], "scheme", "metric"], dropna=False)
        for key, draws in of_draw["draw"]:
            n_draws = study.n_pixel_draws if "pixels" in key else study.n_draws
            assert sorted(draws) == list(range(n_draws)), key
    shown = set(zip(tables["fig4"]["data"], tables["fig4"]["inference"], strict=True))
    assert shown == {(data, method) for data, methods in profiles.FULL["fig4"].inference for method in methods}
    assert set(tables["fig3"].query("scheme == @WFEM")["n_target"]) == {30 - n for n in profiles.FULL["fig3"].n_source}
    assert set(tables["fig5"].query("scheme == @WFEM")["alpha"]) == set(profiles.FULL["fig5"].alphas)
    stated = {claim["id"]: claim["verdict"] for claim in json.loads((COMMITTED / "claims.json").read_text())["claims"]}
    assert {claim.id: claim.verdict for claim in judge(tables)} == stated


@committed
def test_the_page_states_verdicts_for_the_regimes_that_were_run():
    """With their settings, and with what the regime map says of C1 at other scales of the hyper-prior."""
    page = (COMMITTED.parents[2] / "docs" / "results" / "reproduction.md").read_text().replace("−", "-")
    assert (
        rf"$\sigma_P = {SINUSOID.prior_std:g}$, learning rate {SINUSOID.learning_rate:g}, {SINUSOID.n_steps:,} steps"
        in page
    )
    assert f"sigma_P = {SINUSOID.prior_std:g}, learning rate {SINUSOID.learning_rate:g} and" in SCOPE
    assert escape(SCOPE) in (COMMITTED / "report.html").read_text()
    table = read_tables(COMMITTED, ["regime"])["regime"].query("metric == 'rmse' and n_target == 15")
    for prior_std in (4, 8, 16):
        cells = []
        for deviation in profiles.FULL["regime"].deviations:
            cell = table[(table["prior_std"] == prior_std) & (table["deviation"] == deviation)].set_index("draw")
            wfem = cell[(cell["scheme"] == WFEM) & (cell["alpha"] == 0.5)]["value"]
            found = difference("", "", None, wfem, cell[cell["scheme"] != WFEM]["value"])
            cells.append(f"{found.difference:+.3f} [{found.low:z.3f}, {found.high:.3f}]")
        assert f"| {prior_std} | {' | '.join(cells)} |" in page


@committed
def test_what_needs_no_training_is_as_committed():
    """The untrained GP and the oracles on the first draws: tasks, initial parameters, adaptation and scores.

    The committed ones are of an accelerator: its single precision is not this processor's, and may move a query or two
    of 5,000 across a quantile.
    """
    study, deviation = replace(profiles.FULL["fig1"], n_draws=2), 1.0
    [gp, *_] = paper_schemes(30, study.n_source, None)
    now = {(GP, draw): scores[gp] for draw, scores in enumerate(score(study.draws(deviation), [gp], study.training))}
    for row in study.oracles(deviation, study.n_source, lambda what: None):
        now.setdefault((row["scheme"], row["draw"]), {})[row["metric"]] = row["value"]
    table = read_tables(COMMITTED, ["fig1"])["fig1"].query("deviation == @deviation")
    known = table.set_index(["scheme", "draw", "metric"])["value"]
    assert set(now) == {(scheme, draw) for scheme in (GP, ORACLE_GP, ORACLE_BAYES) for draw in (0, 1)}
    for key, scores in now.items():
        for metric, value in scores.items():
            assert value == pytest.approx(known[(*key, metric)], rel=1e-3, abs=4e-4), (key, metric)


@committed
@pytest.mark.slow
@pytest.mark.parametrize(("name", "deviation", "alpha"), [("fig1", 1.0, 0.5), ("fig5", 0.75, 0.7)])
def test_points_of_the_committed_results_are_reproduced(name, deviation, alpha):
    """The first eight draws again: means agree within three standard errors of the paired difference.

    Single draws differ: training amplifies the last digits, in which processors and accelerators are not alike. The
    points are such that the schemes are farther from each other than that.
    """
    study, n_draws = replace(profiles.FULL[name], n_draws=8), 8
    schemes = [s for s in paper_schemes(30, study.n_source, alpha) if s.name in (FEW, WFEM, ALL)]
    scores = score(study.draws(deviation), schemes, study.training)
    table, means = read_tables(COMMITTED, [name])[name], []
    for scheme in schemes:
        rows = table[(table["scheme"] == scheme.name) & (table["metric"] == "rmse") & (table["deviation"] == deviation)]
        if scheme.name == WFEM:
            rows = rows[np.isclose(rows["alpha"], alpha)]
        known = rows.sort_values("draw")["value"].to_numpy()
        assert len(known) == profiles.FULL[name].n_draws
        now = np.array([of_draw[scheme]["rmse"] for of_draw in scores])
        apart = now - known[:n_draws]
        assert abs(apart.mean()) <= max(3 * apart.std(ddof=1) / np.sqrt(n_draws), 0.005)
        means.append(now.mean())
    assert np.diff(np.sort(means)).min() > 0.03
