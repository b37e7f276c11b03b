"""Predictions of held-out counts, ranks and readings with outliers: mixtures of responses at every query."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaprior.predict.count_responses import NegativeBinomial, Poisson
from metaprior.predict.mixtures import stretch
from metaprior.predict.rank_responses import Ordinal
from metaprior.predict.response_mixtures import ResponseMixture
from metaprior.predict.responses import Response
from metaprior.predict.robust_responses import StudentT, robust_std
from metaprior.prior.fitted import Prior
from metaprior.search.folds import Folds
from metaprior.search.held_out import Queries, largest_context
from metaprior.tasks.padding import pad_to
from metaprior.tasks.types import Task

ARRAYS = ("means", "variances", "parameters", "log_weights")


class HeldOutResponses(NamedTuple):
    """A mixture at every query of every split of the held-out tasks; padding is NaN."""

    response: Response
    means: np.ndarray  # of t, with the log exposure, (components, rows, queries)
    variances: np.ndarray  # the same
    parameters: np.ndarray  # (components, rows, parameters)
    log_weights: np.ndarray  # (components, rows)

    def log_densities(self, y: np.ndarray) -> np.ndarray:
        """Return log p(y), (rows, queries)."""
        mixture = ResponseMixture(self.response, self.means, self.variances, self.parameters, self.log_weights)
        asked = np.isfinite(y)
        return np.where(asked, mixture.log_density(np.where(asked, y, np.nan)), np.nan)

    def moments(self, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and log standard deviations of noisy readings of t, at the queries that are asked for."""
        weights, parameters = np.exp(self.log_weights)[..., None], self.parameters[..., None, :]
        mean = np.sum(weights * self.means, axis=0)
        noisy = self.variances + self.response.noise(self.means, parameters)
        variance = np.sum(weights * (noisy + (self.means - mean) ** 2), axis=0)
        return mean[asked], 0.5 * np.log(variance[asked])

    def stretched(self, factor: float) -> "HeldOutResponses":
        """Return the mixture with t stretched about its mean."""
        means, variances = stretch(self.means, self.variances, self.log_weights, factor)
        return self._replace(
            means=means, variances=variances, parameters=self.response.stretched(self.parameters, factor)
        )


class ResponseQueries(Queries):
    """The splits of all held-out tasks, one row each."""

    def __init__(self, tasks: Sequence[Task], folds: Folds, response: Response, exposure: int | None):
        self.response, self.exposure = response, exposure
        super().__init__(tasks, folds)

    def _reference(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return the log density of every query in a broad reference, that of all observations without inputs."""
        y = np.concatenate([task.y for task in tasks])
        offset, of_tasks = np.zeros(self.y.shape), np.zeros(len(y))
        if self.exposure is not None:
            of_tasks = np.log(np.concatenate([task.x[:, self.exposure] for task in tasks]))
            for row, split in enumerate(self.splits):
                offset[row, : len(split.y_query)] = np.log(split.x_query[:, self.exposure])
        broad = broad_response(self.response, y, of_tasks)
        found = broad.response.log_density(
            np.where(np.isfinite(self.y), self.y, 0.0), broad.mean + offset, np.array(broad.variance), broad.parameters
        )
        return np.where(np.isfinite(self.y), found, np.nan)

    def predict(self, prior: Prior, rows: np.ndarray) -> HeldOutResponses:
        """Return a prior's predictions."""
        splits = [self.splits[row] for row in rows.tolist()]
        contexts = [Task(prior.scaling.inputs(split.x_context), split.y_context) for split in splits]
        x, y, mask = pad_to(contexts, max(largest_context(splits), 1), np.float64)
        queries = [Task(prior.scaling.inputs(split.x_query), split.y_query) for split in splits]
        x_query, _, is_query = pad_to(queries, self.n_queries, np.float64)
        prediction = prior.marginals(prior.condition(x, y, mask), x_query)
        offset = 0.0 if prediction.offset is None else prediction.offset
        means = np.where(is_query, prediction.mean + offset, np.nan)
        parameters = np.broadcast_to(prior.parameters, (1, len(rows), len(prior.parameters)))
        return HeldOutResponses(
            *(self.response, means, np.where(is_query, prediction.variance, np.nan)),
            *(parameters, np.zeros((1, len(rows)))),
        )

    def join(self, members: Sequence[HeldOutResponses], weights: np.ndarray) -> HeldOutResponses:
        """Return the weighted average of predictive distributions."""
        pairs = [(member, weight) for member, weight in zip(members, weights.tolist(), strict=True) if weight > 0]
        means, variances, parameters = (
            np.concatenate([getattr(member, name) for member, _ in pairs]) for name in ARRAYS[:3]
        )
        log_weights = np.concatenate([member.log_weights + np.log(weight) for member, weight in pairs])
        return HeldOutResponses(self.response, means, variances, parameters, log_weights)


class Broad(NamedTuple):
    """A distribution of observations that does not depend on inputs."""

    response: Response
    mean: np.ndarray
    variance: float
    parameters: np.ndarray


def broad_response(response: Response, y: np.ndarray, offset: np.ndarray) -> Broad:
    """Return a distribution as broad as all observations: counts that vary as theirs do, frequencies, a wide t."""
    if isinstance(response, Ordinal):
        cuts, _ = response.initial(y, np.ones(len(y)))  # for a total standard deviation of two
        return Broad(response, np.zeros(()), 3.0, cuts)
    if isinstance(response, StudentT):
        return Broad(response, np.asarray(np.median(y)), 0.0, np.log([robust_std(y), 3.0]))
    assert isinstance(response, Poisson | NegativeBinomial)
    exposure = np.exp(offset)
    rate = (y.sum() + 0.5) / exposure.sum()
    expected = rate * exposure
    excess = np.sum((y - expected) ** 2 - expected) / np.sum(expected**2)  # 1 / r, by the method of moments
    return Broad(NegativeBinomial(), np.log(rate), 0.0, np.array([-np.log(np.clip(excess, 0.05, 20.0))]))


def gather_responses(parts: Sequence[tuple[np.ndarray, HeldOutResponses]], n_rows: int) -> HeldOutResponses:
    """Put the predictions of folds together."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    assert len(order) == n_rows, "every row is predicted once"
    arrays = {name: np.concatenate([getattr(part, name) for _, part in parts], axis=1)[:, order] for name in ARRAYS}
    return HeldOutResponses(parts[0][1].response, **arrays)
