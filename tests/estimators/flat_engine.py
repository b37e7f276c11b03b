"""The simplest engine, without JAX: a prior that predicts the mean of all readings, whatever the context.

As a program: fit, save, load, adapt, predict and evaluate with it, and print which modules of JAX were imported.
"""

import numpy as np

from metaprior.estimators.fitted_prior import FittedPrior
from metaprior.prediction.ensemble import Ensemble, Prediction
from metaprior.search.candidates import Candidate, Choice
from metaprior.search.report import make_report
from metaprior.tasks.scaling import Scaling

TASKS = [([[0.0], [1.0]], [0.0, 1.0]), ([[0.0], [2.0]], [1.0, 3.0])]
SPREAD = 2.0


class Flat:
    """A member that knows nothing but a level."""

    input_dim, n_components = 1, 1

    def __init__(self, level):
        self.scaling = Scaling(np.zeros(1), np.ones(1), float(level), 1.0)

    def condition(self, x, y, mask):
        return np.zeros(len(x))

    def take(self, posteriors, places):
        return np.concatenate(posteriors)[places]

    def marginals(self, posterior, x):
        zeros = np.zeros((1, *x.shape[:2]))
        return Prediction(zeros, zeros, np.ones(1))

    def weighted_covariance(self, posterior, x, shares):
        return np.zeros((x.shape[1], x.shape[1]))

    def float32_problem(self, largest_context, standardized):
        return None


def fit_prior(meta, environments, tests, patience, checkpoint):
    level = np.mean([task.y.mean() for tasks in environments.tasks for task in tasks])
    choice = Choice([Candidate((0.0, 1.0), None), Candidate((0.5, 0.5), None)], np.array([0.25, 0.75]), None)
    report = make_report(choice, environments.names, environments.target, 1, 1)
    model, nothing = Ensemble((Flat(level),), np.ones(1), SPREAD), np.empty(0)
    training, replaced = {"components": 1}, {"n_steps": 0}
    return FittedPrior(model, report, "flat", "float64", 1.0, nothing, nothing, 0, training, replaced, "flat")


def model_parts(model):
    return {"members": "flat"}, {"level": np.array([member.scaling.y_mean for member in model.members])}


def read_model(meta, header, tensors):
    assert header["model"] == {"members": "flat"}
    return Ensemble(tuple(map(Flat, tensors["level"])), np.ones(header["n_members"]))


def use(setitem):
    """Make this what fits the default."""
    from metaprior.estimators import base, persistence

    setitem(base.ENGINES, "hierarchical", __name__)
    setitem(persistence.ENGINES, "flat", __name__)


if __name__ == "__main__":
    import sys
    import tempfile
    from pathlib import Path

    import metaprior
    from metaprior.tables.frames import predict_frame

    use(dict.__setitem__)
    fitted = metaprior.MetaGPRegressor().fit(TASKS[:1], TASKS[1:])
    with tempfile.TemporaryDirectory() as folder:
        fitted.save(Path(folder) / "flat.prior")
        loaded = metaprior.load(Path(folder) / "flat.prior")
    assert loaded.adapt(*TASKS[0]).interval([[0.5]])[0] < loaded.adapt(*TASKS[0]).predict([[0.5]])
    assert loaded.predict_many([(*TASKS[0], [[0.5]])])[0] == 1.25
    assert loaded.evaluate([(*TASKS[0], [[0.5]], [1.25])]).rmse == 0.0
    assert len(predict_frame(loaded, {"x": [0.0], "y": [1.0]}, {"x": [1.0, 2.0]}, x="x", y="y")) == 2
    assert loaded.transfer_report().verdict
    print([name for name in ("jax", "jaxlib", "equinox", "optax", "tinygp", "jaxtyping") if name in sys.modules])
