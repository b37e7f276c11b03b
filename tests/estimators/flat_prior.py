"""The simplest third estimator, without JAX: a prior that predicts the mean of all readings, whatever the context.

It is a class with `fit`, `_fit_prior` and `_file_format`, and an entry of `files.ESTIMATORS`. As a program: fit,
save, load, adapt, predict and evaluate with it, and print which modules of JAX and of other fits were imported.
"""

import numpy as np

from metaprior.estimators import files
from metaprior.estimators.base import FittedPrior
from metaprior.estimators.regressor import ReadingsPrior
from metaprior.likelihoods.base import Prediction
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.predict.ensemble import Ensemble
from metaprior.search.averaging import Candidate, Choice
from metaprior.search.report import make_report
from metaprior.tasks.scaling import Scaling

TASKS = [([[0.0], [1.0]], [0.0, 1.0]), ([[0.0], [2.0]], [1.0, 3.0])]
SPREAD = 2.0


class Flat:
    """A member that knows nothing but a level."""

    input_dim, n_components = 1, 1

    def __init__(self, level):
        self.scaling = Scaling(np.zeros(1), np.ones(1), float(level), 1.0)

    likelihood, component_parameters = Gaussian(), np.zeros((1, 1))

    def condition(self, x, y, mask):
        return np.zeros(len(x))

    def take(self, posteriors, places):
        return np.concatenate(posteriors)[places]

    def marginals(self, posterior, x):
        zeros = np.zeros((1, *x.shape[:2]))
        return Prediction(zeros + self.scaling.y_mean, zeros, self.component_parameters)

    def weighted_covariance(self, posterior, x, shares):
        return np.zeros((x.shape[1], x.shape[1]))

    def float32_problem(self, largest_context, standardized):
        return None


def model_parts(model):
    return [{"is": "flat"}], {"level": np.array([member.scaling.y_mean for member in model.members])}


def read_model(meta, stored, header, arrays):
    assert stored.members == [{"is": "flat"}]
    return Ensemble(tuple(map(Flat, arrays["level"])), np.ones(stored.n_members))


class FlatRegressor(ReadingsPrior):
    """An estimator with one parameter of its own."""

    _kind = "gaussian"
    _file_format = files.FileFormat(model_parts, read_model, arrays=("level_",))

    def __init__(self, shift=0.0, *, alpha="auto", context="random", categorical=None, random_state=None):
        self.shift = shift
        self.alpha = alpha
        self.context = context
        self.categorical = categorical
        self.random_state = random_state

    def fit(self, source_tasks=None, target_tasks=None, *, target=None, times=1):
        return self._fit_anew(source_tasks, target_tasks, target, times=times)

    def _check_parameters(self):
        if not isinstance(self.shift, float):
            raise ValueError(f"shift must be a float; got {self.shift!r}.")

    def _fit_prior(self, environments, features, times):
        level = times * np.mean([task.y.mean() for tasks in environments.tasks for task in tasks]) + self.shift
        choice = Choice([Candidate((0.0, 1.0), None), Candidate((0.5, 0.5), None)], np.array([0.25, 0.75]), None)
        report = make_report(choice, environments.names, environments.target, 1, 1)
        model = Ensemble((Flat(level),), np.ones(1), SPREAD)
        return FittedPrior(model, report, "flat", {"particles": 1}, {"level_": np.array(level)}), None


def use(setitem):
    """Make its files known."""
    setitem(files.ESTIMATORS, "FlatRegressor", __name__)


if __name__ == "__main__":
    import sys
    import tempfile
    from pathlib import Path

    import metaprior
    from metaprior.tables.frames import predict_frame

    use(dict.__setitem__)
    fitted = FlatRegressor().fit(TASKS[:1], TASKS[1:])
    with tempfile.TemporaryDirectory() as folder:
        fitted.save(Path(folder) / "flat.prior")
        loaded = metaprior.load(Path(folder) / "flat.prior")
    assert loaded.adapt(*TASKS[0]).interval([[0.5]])[0] < loaded.adapt(*TASKS[0]).predict([[0.5]])
    assert loaded.predict_many([(*TASKS[0], [[0.5]])])[0] == 1.25
    assert loaded.evaluate([(*TASKS[0], [[0.5]], [1.25])]).rmse == 0.0
    assert len(predict_frame(loaded, {"x": [0.0], "y": [1.0]}, {"x": [1.0, 2.0]}, x="x", y="y")) == 2
    assert loaded.transfer_report().verdict
    others = ("jax", "jaxlib", "equinox", "optax", "tinygp", "jaxtyping", "metaprior.wfem")
    print(
        [
            name
            for name in sys.modules
            if name in others or name.startswith(("metaprior.estimators.hierarchical_", "metaprior.prior.files"))
        ]
    )
