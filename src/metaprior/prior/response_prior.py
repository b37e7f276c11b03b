"""A fitted prior of counts, ranks or readings with outliers: for a new task a Gaussian process of what they show."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metaprior.likelihoods.base import Likelihood
from metaprior.predict.ensemble import Prediction
from metaprior.prior.hierarchical_prior import (
    HierarchicalPrior,
    Points,
    Posterior,
    as_chi_square,
    from_far_to_near,
)
from metaprior.prior.sites import Observed, SitePosterior, find_sites
from metaprior.tasks.scaling import Scaling

SITE_STEPS = 10  # until sites are found, about


class ResponsePosterior(NamedTuple):
    """A prior conditioned on contexts, by Gaussian sites."""

    process: Posterior
    converged: np.ndarray  # (1, tasks)
    site_variances: np.ndarray  # (1, tasks, n)


@dataclass(frozen=True, eq=False)
class ResponsePrior:
    """A hierarchical prior of a latent function t, and the response that is observed of it.

    Inputs have a column with the exposure, if there is one: it is no input of the process, whose scaling does not know
    it, and its logarithm is added to t.
    """

    process: HierarchicalPrior  # of u, with t = y_mean + y_std u by its scaling
    likelihood: Likelihood
    parameters: np.ndarray  # of the response
    exposure: int | None = None  # column

    @property
    def scaling(self) -> Scaling:
        """The scaling of inputs; outputs and the exposure are taken as they are."""
        own = self.process.scaling._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
        if self.exposure is None:
            return own
        own = own._replace(
            x_mean=np.insert(np.asarray(own.x_mean), self.exposure, 0.0),
            x_std=np.insert(np.asarray(own.x_std), self.exposure, 1.0),
        )
        if own.kinds is None or own.shares is None:
            return own
        kinds = own.kinds.with_number(self.exposure)
        return own._replace(kinds=kinds, shares=np.insert(own.shares, kinds.place(self.exposure), 0.0))

    @property
    def input_dim(self) -> int:
        """Number of columns of scaled inputs, with the exposure, without those of covariates."""
        return self.process.input_dim + (self.exposure is not None)

    @property
    def n_components(self) -> int:
        """One: theta and the parameters are points."""
        return 1

    @property
    def component_parameters(self) -> np.ndarray:
        """Parameters of the response of every component, (1, parameters)."""
        return self.parameters[None]

    @property
    def counts(self) -> np.ndarray | None:
        """(environments,): how much the evidence of a task of each has counted."""
        return self.process.counts

    def condition(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> ResponsePosterior:
        """Condition on contexts x (tasks, n, d), scaled but for the exposure, y and mask (tasks, n)."""
        x, y, mask = from_far_to_near(x, y, mask)
        context, found = self.sites(x, y, mask)
        log_weights = np.zeros((1, len(mask)))
        process = Posterior(context, found.inverse_root[None], found.residual[None], log_weights)
        return ResponsePosterior(process, found.converged[None], found.sites.variance[None])

    def sites(
        self, x: np.ndarray, y: np.ndarray, mask: np.ndarray, is_target: np.ndarray | None = None
    ) -> tuple[Points, SitePosterior]:
        """Return what the prior says about contexts, and sites that stand for their observations."""
        inputs, offset = self.split(np.asarray(x, np.float64))
        real = mask.astype(np.float64)
        context = self.process.describe(inputs, real, is_target)
        covariance = np.add(*self.process.covariance(context, context))
        mean = (context.features @ self.process.weights) * real
        own = self.process.scaling
        observed = Observed(
            self.likelihood, np.asarray(y, np.float64) * real, offset * real, real, float(own.y_mean), float(own.y_std)
        )
        return context, find_sites(observed, self.parameters, mean, covariance)

    def split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs of the process, and the logarithm of the exposure, given scaled inputs."""
        if self.exposure is None:
            return x, np.zeros(x.shape[:-1])
        kinds = self.process.scaling.kinds
        place = self.exposure if kinds is None else kinds.with_number(self.exposure).place(self.exposure)
        exposure = x[..., place]
        log_exposure = np.log(np.where(exposure > 0.0, exposure, 1.0))  # padding of empty contexts is zero
        return np.delete(x, place, axis=-1), log_exposure

    def latent_distances(self, posterior: ResponsePosterior) -> np.ndarray:
        """Return how far the latent functions of contexts are from the prior's, see `Member`.

        The noise is what readings have as a rule: sites of outliers are so wide that any t would be far.
        """
        context, residual, own = posterior.process.context, posterior.process.residual, self.process.scaling
        covariance = np.add(*self.process.covariance(context, context))
        a = (residual[0][:, None, :] @ posterior.process.inverse_root[0])[:, 0]
        mean = own.undo_mean(context.features @ self.process.weights)
        usual = self.likelihood.noise(mean, self.parameters) / float(own.y_std) ** 2
        noise = np.where(context.mask > 0, np.minimum(posterior.site_variances[0], usual), 1.0)
        total = covariance + noise[:, :, None] * np.eye(noise.shape[1])
        square = np.sum(a * (covariance @ a[..., None])[..., 0], axis=1)
        return as_chi_square(square, np.linalg.solve(total, covariance))[:, None]

    def marginals(self, posterior: ResponsePosterior, x: np.ndarray) -> Prediction:
        """Predict t at queries x (tasks, queries, d)."""
        inputs, offset = self.split(np.asarray(x, np.float64))
        found = self.process.marginals(posterior.process, inputs)
        return Prediction(found.mean, found.variance, self.component_parameters, offset=offset)

    def weighted_covariance(self, posterior: ResponsePosterior, x: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return the covariance of t at queries x (1, n, d) of one task, times its share, (n, n)."""
        inputs, _ = self.split(np.asarray(x, np.float64))
        return self.process.weighted_covariance(posterior.process, inputs, shares)

    def expected_seconds(self, sizes: np.ndarray, n_classes: np.ndarray | None = None) -> float:
        """Return about how long it takes to find the sites of contexts of such sizes, one after the other."""
        return SITE_STEPS * self.process.expected_seconds(sizes)

    def expected_bytes(self, size: int) -> float:
        """Return about how much memory it takes to find the sites of a context of such a size."""
        return self.process.expected_bytes(size)

    def take(self, posteriors: Sequence[ResponsePosterior], places: np.ndarray) -> ResponsePosterior:
        """Join posteriors and pick tasks."""
        process = self.process.take([posterior.process for posterior in posteriors], places)
        rest = zip(*(posterior[1:] for posterior in posteriors), strict=True)
        return ResponsePosterior(process, *(np.concatenate(parts, axis=1)[:, places] for parts in rest))

    def float32_problem(self, largest_context: int, standardized: bool) -> str | None:
        """Return None: hierarchical priors always compute in double precision."""
        return None
