"""What the paper's prior reaches on the sinusoid with default settings, on draws that were not used to choose them."""

from pathlib import Path

import choose_defaults
import numpy as np
import pandas as pd
import pytest
from choose_defaults import BASE, candidates, measure
from draw_loop import ResultTable

from metaprior.wfem import Gaussian, Training, WFEMRegressor
from metaprior_studies.estimator_schemes import PAPER_PRIOR

SEEDS = range(8)
REACHED = Path(__file__).resolve().parents[1] / "results" / "tables" / "reached.csv"


def score_draws(arguments):
    table = ResultTable(None, ("candidate", "draw"))
    measure(table, "tested", arguments, SEEDS)
    return table.frame()


def test_the_search_for_defaults_starts_from_the_defaults_and_names_arguments_of_the_estimator():
    named = dict(candidates())
    assert next(iter(named)) == "base"
    assert named["base"] == {}
    given = {"alpha": 0.0, "likelihood": Gaussian(0.1), "training": Training(progress=False)}
    assert {**PAPER_PRIOR, **given} == BASE  # the paper's prior, its noise known
    known = WFEMRegressor().get_params(deep=False)
    for name, arguments in named.items():
        assert set(arguments) <= set(known), name
        assert name == "base" or all(BASE.get(key, known[key]) != value for key, value in arguments.items())


class Quick:
    """In place of WFEMRegressor: it learns nothing, and remembers what it was given."""

    made: list["Quick"]
    loss_trace_ = np.array([2.0, 1.23456])

    def __init__(self, **arguments):
        self.arguments = arguments
        Quick.made.append(self)

    def fit(self, source, target):
        self.source, self.target = source, target

    def evaluate(self, tests):
        self.tests = tests
        return dict.fromkeys(("rmse", "nll", "calibration_error", "coverage", "width"), 0.5)


def test_a_candidate_is_fitted_as_pacoh_on_thirty_target_tasks_of_every_draw(monkeypatch):
    Quick.made = []
    monkeypatch.setattr(choose_defaults, "WFEMRegressor", Quick)
    table = ResultTable(None, ("candidate", "draw"))
    measure(table, "tested", {"likelihood": Gaussian(0.2)}, range(3, 5))
    assert table.frame()[["candidate", "draw", "train_loss"]].to_numpy().tolist() == [
        ["tested", 3, 1.235],
        ["tested", 4, 1.235],
    ]
    for seed, meta in zip((3, 4), Quick.made, strict=True):
        assert meta.arguments == {**BASE, "likelihood": Gaussian(0.2), "random_state": seed}
        assert (meta.source, len(meta.target), len(meta.tests)) == (None, 30, 100)
    assert not np.array_equal(Quick.made[0].target[0].y, Quick.made[1].target[0].y)


@pytest.fixture(scope="module")
def map_scores():
    return score_draws({})


@pytest.mark.slow
def test_pacoh_on_thirty_target_tasks_reaches_030_with_map(map_scores):
    """About one fit in fifty ends in a poor local optimum: the mean is held against the committed one of 128 draws."""
    rmse, committed = map_scores["rmse"], pd.read_csv(REACHED).set_index("candidate").loc["base"]
    assert rmse.median() <= 0.30
    assert abs(rmse.mean() - committed["rmse"]) <= 3 * np.hypot(rmse.sem(), committed["rmse_se"])


@pytest.mark.slow
def test_ten_svgd_particles_are_better_than_map(map_scores):
    """On 128 draws the difference in RMSE is -0.015 ± 0.004 (studies/results/tables/reached.csv)."""
    svgd = score_draws(dict(candidates())["10 particles, svgd"])
    for metric in ("rmse", "nll", "calibration_error"):
        assert svgd[metric].mean() < map_scores[metric].mean()
