"""Counts by group in other libraries: log probabilities of held-out readings of new groups, given some of them.

Each is fitted to the training groups. What it has learned, effects of inputs and variances of random effects, is
conditioned on the readings that are given of a new group by `find_sites`, as metaprior's priors are: all know the same.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.likelihoods import make_likelihood
from metaprior.prior.sites import Observed, find_sites
from metaprior.tasks.types import Task
from metaprior_studies.drawn_tasks import DrawnTasks

Peer = Callable[[DrawnTasks], list[np.ndarray]]


class Rows(NamedTuple):
    """Readings of the training groups, with standardized inputs."""

    x: np.ndarray  # with a column of ones first
    y: np.ndarray
    group: np.ndarray
    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> "Rows":
        """Pool the readings of tasks."""
        x = np.concatenate([task.x for task in tasks])
        center, scale = x.mean(axis=0), np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
        group = np.repeat(np.arange(len(tasks)), [len(task.y) for task in tasks])
        y = np.concatenate([task.y for task in tasks])
        return cls(np.column_stack([np.ones(len(x)), (x - center) / scale]), y, group, center, scale)

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """Return standardized inputs of other readings, with a column of ones."""
        return np.column_stack([np.ones(len(x)), (x - self.center) / self.scale])


class MixedModel(NamedTuple):
    """Effects of inputs on the logarithmic rate, and standard deviations of random intercepts and slopes of groups."""

    likelihood: str
    effects: np.ndarray
    random_stds: np.ndarray  # of the first columns of the inputs
    parameters: np.ndarray  # of the likelihood

    def predict(self, rows: Rows, tasks: DrawnTasks) -> list[np.ndarray]:
        """Return the log probabilities of all queries, task by task."""
        likelihood, found = make_likelihood(self.likelihood), []
        for test in tasks.test:
            x, query = rows.inputs(test.x_context), rows.inputs(test.x_query)
            own, of_query = (each[:, : len(self.random_stds)] * self.random_stds for each in (x, query))
            ones = np.ones((1, len(x)))
            observed = Observed(likelihood, test.y_context[None], 0.0 * ones, ones, 0.0, 1.0)
            prior_mean, covariance = (x @ self.effects)[None], (own @ own.T)[None]
            posterior = find_sites(observed, self.parameters, prior_mean, covariance)
            solved = posterior.inverse_root[0] @ (own @ of_query.T)
            mean = query @ self.effects + solved.T @ posterior.residual[0]
            variance = np.sum(of_query**2, axis=1) - np.sum(solved**2, axis=0)
            found.append(likelihood.log_density(test.y_query, mean, np.maximum(variance, 1e-8), self.parameters))
        return found


def gpboost(likelihood: str, slopes: bool) -> Peer:
    """Fit linear effects and random intercepts of groups, with slopes of the first input if asked for."""

    def predict(tasks: DrawnTasks) -> list[np.ndarray]:
        import gpboost as gpb

        rows = Rows.of(tasks.target)
        options: dict[str, Any] = {}
        if slopes:
            options = {"group_rand_coef_data": rows.x[:, 1:2], "ind_effect_group_rand_coef": [1]}
        model = gpb.GPModel(group_data=rows.group, likelihood=likelihood.replace("-", "_"), **options)
        model.fit(y=rows.y, X=rows.x)
        effects = np.asarray(model.get_coef(format_pandas=False), float).ravel()[: rows.x.shape[1]]
        variances = np.asarray(model.get_cov_pars(format_pandas=False), float).ravel()[: 1 + slopes]
        parameters = np.zeros(0)
        if likelihood == "negative-binomial":
            parameters = np.log(np.asarray(model.get_aux_pars(format_pandas=False), float).ravel()[:1])
        return MixedModel(likelihood, effects, np.sqrt(variances), parameters).predict(rows, tasks)

    return predict


def poisson_mixed_model(tasks: DrawnTasks) -> list[np.ndarray]:
    """Fit statsmodels' Poisson mixed model with random intercepts, by its variational Bayes."""
    from statsmodels.genmod.bayes_mixed_glm import PoissonBayesMixedGLM

    rows = Rows.of(tasks.target)
    n_groups = len(tasks.target)
    indicators = np.eye(n_groups)[rows.group]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = PoissonBayesMixedGLM(rows.y, rows.x, indicators, np.zeros(n_groups, int), vcp_p=0.5).fit_vb()  # type: ignore[arg-type]
    return MixedModel("poisson", found.fe_mean, np.exp(found.vcp_mean), np.zeros(0)).predict(rows, tasks)


PEERS: dict[str, Peer] = {
    "GPBoost, poisson": gpboost("poisson", slopes=False),
    "GPBoost, poisson, slopes": gpboost("poisson", slopes=True),
    "GPBoost, negative-binomial": gpboost("negative-binomial", slopes=False),
    "GPBoost, negative-binomial, slopes": gpboost("negative-binomial", slopes=True),
    "statsmodels, Poisson mixed model": poisson_mixed_model,
}
