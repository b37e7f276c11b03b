"""What the estimators share, whatever fits the prior."""

import numpy as np
import pytest

from metaprior import MetaGPRegressor
from metaprior.estimators import arguments, base
from metaprior.estimators.fitted_prior import FittedPrior
from metaprior.meta import objective
from metaprior.prediction.ensemble import Ensemble, Prediction
from metaprior.search.candidates import Candidate, Choice
from metaprior.search.report import make_report
from metaprior.tasks.scaling import Scaling
from metaprior.training import steps

TASKS = [([[0.0], [1.0]], [0.0, 1.0]), ([[0.0], [2.0]], [1.0, 3.0])]


class Flat:
    """Predicts the mean of all readings, whatever the context."""

    scaling, input_dim, n_components = Scaling(np.zeros(1), np.ones(1), 1.25, 1.0), 1, 1

    def condition(self, x, y, mask):
        return np.zeros(len(x))

    def take(self, posteriors, places):
        return np.concatenate(posteriors)[places]

    def marginals(self, posterior, x):
        zeros = np.zeros((1, *x.shape[:2]))
        return Prediction(zeros, zeros, np.ones(1))

    def joint(self, posterior, x):
        return Prediction(np.zeros((1, *x.shape[:2])), np.zeros((1, *x.shape[:2], x.shape[1])), np.ones(1))

    def float32_problem(self, largest_context, standardized):
        return None


def fit_flat(meta, environments, tests, patience, checkpoint):
    choice = Choice([Candidate((0.0, 1.0), None), Candidate((0.5, 0.5), None)], np.array([0.25, 0.75]), None)
    report = make_report(choice, environments.names, environments.target, 1, 1)
    model = Ensemble((Flat(),), np.ones(1))
    training = {"components": 1}
    return FittedPrior(model, report, "flat", "float64", 1.0, np.empty(0), np.empty(0), 0, training, {"kernel": "flat"})


@pytest.fixture
def flat(monkeypatch):
    monkeypatch.setattr(base.MetaGP, "_engine", lambda self, environments: fit_flat)
    return MetaGPRegressor().fit(TASKS[:1], TASKS[1:])


def test_names_are_those_of_the_modules_that_training_imports():
    assert set(arguments.TEMPERATURES) == set(objective.TEMPERATURES)
    assert tuple(steps.OPTIMIZERS) == arguments.OPTIMIZERS
    assert tuple(steps.SCHEDULES) == arguments.SCHEDULES


def test_an_estimator_records_what_fitted_it(flat):
    assert (flat.alpha_, flat.family_, flat.dtype_, flat.n_features_in_) == (0.375, "flat", "float64", 1)
    assert flat.environment_weights_.tolist() == [0.375, 0.625]
    assert (flat.parameters_["kernel"], flat.kernel) == ("flat", "auto")
    assert flat.training_["environments"]["source"] == {"tasks": 1, "samples": 2}
    assert flat.training_["components"] == 1
    assert flat.adapt(*TASKS[0]).predict([[0.5]]) == pytest.approx([1.25])
    assert flat.evaluate([(*TASKS[0], [[0.5]], [1.25])]).rmse == 0.0
    np.testing.assert_array_equal(flat.transfer_report().temperature, [1.0, 1.0])


@pytest.mark.parametrize("name", ["particles_", "particle_weights_", "particle_interaction"])
def test_priors_without_particles_say_so(flat, name):
    with pytest.raises(AttributeError, match=r"have no particles\. Fit with kernel='inducing'"):
        _ = getattr(flat, name)()
