"""The terms of a prior as they were fitted, and a prior of numbers: for a new task a mixture of Gaussian processes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from metaprior.likelihoods.base import Likelihood, Prediction
from metaprior.linalg import FLOPS, ROUNDING
from metaprior.memory import blocks
from metaprior.prior.features import FeatureNetwork
from metaprior.prior.layout import Layout
from metaprior.prior.modes import CommonCurve
from metaprior.prior.process import Factors, Points, Posterior, Process, add_noise, condition, far_first, moments
from metaprior.prior.shapes import ONE_SCALE, TaskScales, whitening
from metaprior.prior.sites import Observed, SitePosterior, find_sites
from metaprior.prior.terms import N_BENT, n_deformations
from metaprior.tasks.scaling import Scaling

UNKNOWN = 1e-9  # degrees of freedom per reading that are rounding
MOST_NUMBERS, MIN_BLOCK = 2**24, 64  # of work arrays of a prediction, and queries that are worth a product of matrices
WORK_ARRAYS = 4  # as large as a covariance of the context, beside those of all factors
SITE_STEPS = 10  # until sites are found, about


@dataclass(frozen=True, eq=False)
class FittedTerms:
    """The terms of a prior at the mode of theta, with the posterior of the weights of its common mean."""

    scaling: Scaling
    layout: Layout
    theta: np.ndarray
    points: np.ndarray  # (points, n_inputs), inducing points in standardized units
    weights: np.ndarray  # (m,), posterior mean of the weights of the common mean
    weights_root: np.ndarray  # (m, m): R, where R R' is their posterior covariance
    curve: CommonCurve | None = None
    shape_root: np.ndarray | None = None  # (functions, functions): root of the covariance S of the shapes
    counts: np.ndarray | None = None  # (environments,): how much the evidence of a task of each has counted
    network: FeatureNetwork | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Without what is cached, so that predictions do not change a prior's pickle, or joblib's hash of it.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def n_inputs(self) -> int:
        """Number of columns of scaled inputs, without those of covariates."""
        return self.layout.columns.n_inputs

    @cached_property
    def mean_map(self) -> np.ndarray:
        """From weights of the common mean to those of its columns, (columns, weights), those of environments alone."""
        at = self.layout.at(self.theta, self.points)
        maps = [term.mean_map(at.parameters, at.basis) for term in self.layout.terms]
        return np.asarray(block_diag(*(np.diag(each) if each.ndim == 1 else each for each in maps if each.size)))

    @property
    def target_map(self) -> np.ndarray:
        """The same in the target environment, whose mean may have a deviation."""
        if not self.layout.has("environment"):
            return self.mean_map
        return np.hstack([self.mean_map, self.layout.scale(self.theta, "environment")[0] * self.mean_map])

    @cached_property
    def process(self) -> Process:
        """The Gaussian process of a new task."""
        common = self.target_map
        return self.process_with(common @ self.weights, common @ self.weights_root)

    def process_with(self, common_mean: np.ndarray, common_root: np.ndarray) -> Process:
        """Return the process with weights of its mean that have another mean, and another root of the covariance."""
        layout, columns = self.layout, self.layout.columns
        at = layout.at(self.theta, self.points)
        found: dict[str, Any] = {"n_inputs": self.n_inputs, "common_mean": common_mean}
        found["common_root"] = _shortened(common_root)
        if at.basis is not None:
            deviation = layout.find("deviation")
            found |= {"points": self.points, "mean_lengths": columns.lengths_by_column(at.basis.lengths)}
            found |= {"kernel": deviation.kernel, "smooth_variance": float(at.parameters.scale("deviation")[0] ** 2)}
            found["lengths"] = columns.lengths_by_column(at.parameters.scale("lengths"))
        if self.curve is not None:
            found |= {f"curve_{name}": value for name, value in self.curve._asdict().items()}
            found["n_slopes"] = n_deformations(columns) - 1
        if self.network is not None:
            found |= self.network._asdict()
        if layout.has("shift"):
            found["covariates"] = True
        if layout.has("bend"):
            found |= {"bent": columns.bent.tolist(), "n_numbers": columns.n_numbers}
            found["bend_map"] = None if at.basis is None else at.basis.map[:, :N_BENT]
        if layout.has("curved"):
            found["curved"] = columns.curved.tolist()
        maps = [term.own_map(at.parameters) for term in layout.terms]
        maps = [each for each in maps if each.size]
        if self.shape_root is not None:
            to_functions = whitening(at.parameters, layout.find("deviation").kernel)
            n_kept = len(self.shape_root) - len(to_functions)
            found["own"] = block_diag(np.eye(n_kept), to_functions) @ self.shape_root
            found["removed"] = np.sqrt(found["smooth_variance"]) * to_functions
        elif all(each.ndim == 1 for each in maps):
            found["own"] = np.concatenate(maps)
        else:
            found["own"] = np.asarray(block_diag(*(np.diag(each) if each.ndim == 1 else each for each in maps)))
        return Process(**found)

    def mean_features(self, points: Points, is_target: np.ndarray) -> np.ndarray:
        """Return F of tasks of the target or of other environments, (tasks, n, weights)."""
        features = points.common @ self.mean_map
        if not self.layout.has("environment"):
            return features
        own = self.layout.scale(self.theta, "environment")[0] * is_target[:, None, None] * features
        return np.concatenate([features, own], axis=-1)


@dataclass(frozen=True, eq=False)
class Prior:
    """A prior of tasks of numbers: a process of a latent function t, and what is observed of it.

    Inputs have a column with the exposure, if there is one: it is no input of the process, whose scaling does not know
    it, and its logarithm is added to t.
    """

    terms: FittedTerms  # of u, with t = y_mean + y_std u by its scaling
    likelihood: Likelihood
    parameters: np.ndarray  # of the likelihood
    scales: TaskScales = ONE_SCALE
    exposure: int | None = None  # column

    @property
    def process(self) -> Process:
        """The process of u."""
        return self.terms.process

    @property
    def scaling(self) -> Scaling:
        """The scaling of inputs and readings; other outputs, and the exposure, are taken as they are."""
        own = self.terms.scaling
        if self.likelihood.normal:
            return own
        own = own._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
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
        return self.terms.n_inputs + (self.exposure is not None)

    @property
    def n_components(self) -> int:
        """Number of Gaussian components of its predictions."""
        return len(self.scales.factors)

    @property
    def counts(self) -> np.ndarray | None:
        """(environments,): how much the evidence of a task of each has counted."""
        return self.terms.counts

    @property
    def noise_variance(self) -> float:
        """Of readings with Gaussian noise, in standardized units; zero for other likelihoods."""
        if not self.likelihood.normal:
            return 0.0
        return float(np.exp(2.0 * self.parameters[0]) / self.terms.scaling.y_std**2)

    @property
    def component_parameters(self) -> np.ndarray:
        """Parameters of the likelihood of every component, (components, parameters)."""
        if not self.likelihood.normal:
            return self.parameters[None]
        return self.parameters + np.log(self.scales.factors)[:, None]

    @property
    def factors(self) -> Factors:
        """What the components scale: the noise, and unless that is all, the tasks' own functions but for lines."""
        scales = np.ones(self.n_components) if self.scales.noise_only else self.scales.factors
        return Factors(scales, self.noise_variance * self.scales.factors**2, self.scales.log_weights)

    def condition(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Posterior:
        """Condition on contexts x (tasks, n, columns), y and mask (tasks, n), scaled."""
        if self.likelihood.normal:
            return condition(self.process, self.factors, x, y, mask)
        x, y, mask = far_first(x, y, mask)
        inputs, offset = self.split(x)
        context = self.process.describe(inputs, mask)
        mean = (context.common @ self.process.common_mean) * mask
        covariance = np.add(*self.process.covariance(context, context))
        found = self.sites(y, offset, mask, mean, covariance)
        posterior = Posterior(context, found.inverse_root[None], found.residual[None], np.zeros((1, len(mask))))
        return posterior._replace(converged=found.converged[None], site_variances=found.sites.variance[None])

    def sites(
        self, y: np.ndarray, offset: np.ndarray, mask: np.ndarray, mean: np.ndarray, covariance: np.ndarray
    ) -> SitePosterior:
        """Return Gaussian readings of u that stand for y, given its prior mean and covariance."""
        scaling = self.terms.scaling
        units = float(scaling.y_mean), float(scaling.y_std)
        observed = Observed(self.likelihood, y * mask, offset * mask, mask, *units)
        return find_sites(observed, self.parameters, mean, covariance)

    def split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs of the process, and the logarithm of the exposure, given scaled inputs."""
        if self.exposure is None:
            return x, np.zeros(x.shape[:-1])
        kinds = self.terms.scaling.kinds
        place = self.exposure if kinds is None else kinds.with_number(self.exposure).place(self.exposure)
        exposure = x[..., place]
        log_exposure = np.log(np.where(exposure > 0.0, exposure, 1.0))  # padding of empty contexts is zero
        return np.delete(x, place, axis=-1), log_exposure

    def latent_distances(self, posterior: Posterior) -> np.ndarray:
        """Return how far the latent functions of contexts are from the prior's, see `Member`.

        With the covariance K of u at a context, D of its noise and a = (K + D)^-1 (y - mean), the square is a' K a. The
        noise of a response is what readings have as a rule: sites of outliers are so wide that any u would be far.
        """
        context, inverse_root = posterior.context, posterior.inverse_root
        a = (posterior.residual[..., None, :] @ inverse_root)[..., 0, :]
        if self.likelihood.normal:
            noise = np.where(context.mask > 0, self.factors.noise[:, None, None], 1.0)
            square = np.sum(posterior.residual**2, axis=-1) - np.sum(noise * a**2, axis=-1)
            share = np.eye(noise.shape[2]) - noise[..., None] * (np.swapaxes(inverse_root, -1, -2) @ inverse_root)
            return as_chi_square(square, share)
        covariance, scaling = np.add(*self.process.covariance(context, context)), self.terms.scaling
        mean = scaling.undo_mean(context.common @ self.process.common_mean)
        usual = self.likelihood.noise(mean, self.parameters) / float(scaling.y_std) ** 2
        total, mask = covariance.copy(), context.mask
        noise = np.minimum(posterior.site_variances[0], usual)
        add_noise(total, mask, noise, ROUNDING * mask.sum(axis=1, keepdims=True))
        square = np.sum(a[0] * (covariance @ a[0][..., None])[..., 0], axis=1)
        return as_chi_square(square, np.linalg.solve(total, covariance))[:, None]

    def marginals(self, posterior: Posterior, x: np.ndarray) -> Prediction:
        """Predict the latent function at scaled queries x (tasks, queries, columns)."""
        inputs, offset = self.split(np.asarray(x, np.float64))
        n, factors = x.shape[1], self.factors
        found = np.empty((2, self.n_components, *x.shape[:2]))
        for rows in blocks(n, max(MOST_NUMBERS // max(posterior.residual.size, 1), MIN_BLOCK)):
            found[..., rows] = moments(self.process, factors.scales, posterior, inputs[:, rows])
        scaling, parameters = self.terms.scaling, self.component_parameters
        log_weights = posterior.log_weights if self.likelihood.normal else None
        return Prediction(scaling.undo_mean(found[0]), scaling.undo_variance(found[1]), parameters, log_weights, offset)

    def weighted_covariance(self, posterior: Posterior, x: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return sum_k shares_k C_k of t at scaled queries x (1, n, columns) of one task, (n, n).

        It is added up in place: C_k = fixed + f_k^2 scaled - S_k' S_k are as large as the result.
        """
        shares = self.terms.scaling.undo_variance(shares)
        inputs, _ = self.split(np.asarray(x, np.float64))
        process, scales = self.process, self.factors.scales
        queries, total = process.describe(inputs), np.empty(2 * x.shape[1:2])
        for rows in blocks(x.shape[1]):
            some = Points(*(None if part is None else part[:, rows] for part in queries))
            fixed, scaled = process.covariance(some, queries)
            np.multiply(scaled[0], float(shares @ scales**2), out=total[rows])
            total[rows] += shares.sum() * fixed[0]
        fixed, scaled = process.covariance(posterior.context, queries)
        for k in np.flatnonzero(shares).tolist():
            solved = posterior.inverse_root[k, 0] @ (fixed[0] + scales[k] ** 2 * scaled[0])
            solved *= np.sqrt(shares[k])
            for rows in blocks(x.shape[1]):
                total[rows] -= solved[:, rows].T @ solved
        return total

    def take(self, posteriors: Sequence[Posterior], places: np.ndarray) -> Posterior:
        """Join posteriors and pick tasks."""
        context = taken_points([posterior.context for posterior in posteriors], places)
        rest = zip(*(posterior[1:] for posterior in posteriors), strict=True)
        joined = (None if parts[0] is None else np.concatenate(parts, axis=1)[:, places] for parts in rest)
        return Posterior(context, *joined)

    def float32_problem(self, largest_context: int, standardized: bool) -> str | None:
        """Return None: hierarchical priors always compute in double precision."""
        return None

    def expected_seconds(self, sizes: np.ndarray, n_classes: np.ndarray | None = None) -> float:
        """Return about how long it takes to condition on contexts of such sizes, one after the other."""
        n_times = self.n_components if self.likelihood.normal else SITE_STEPS
        return n_times * float(np.sum(2.0 / 3.0 * sizes.astype(np.float64) ** 3)) / FLOPS

    def expected_bytes(self, size: int) -> float:
        """Return about how much memory it takes to condition on a context of such a size."""
        return 8.0 * size**2 * (self.n_components + WORK_ARRAYS)


def noise_parameters(variance: float, scaling: Scaling) -> np.ndarray:
    """Return the parameters of Gaussian noise of a variance in standardized units."""
    return np.array([0.5 * np.log(max(variance, np.finfo(np.float64).tiny)) + np.log(scaling.y_std)])


def taken_points(contexts: Sequence[Points], places: np.ndarray) -> Points:
    """Join contexts along their tasks and pick tasks."""
    return Points(*(np.concatenate(parts)[places] for parts in zip(*contexts, strict=True)))


def as_chi_square(square: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return squared distances of latent functions from the prior mean, and their degrees of freedom, (2, ..., tasks).

    Under the prior the square is a sum of chi-square variables, times the eigenvalues of the share K (K + D)^-1. It is
    scaled to have the mean and the variance of one chi-square variable (Satterthwaite).
    """
    first = np.trace(share, axis1=-2, axis2=-1)
    second = np.sum(share * np.swapaxes(share, -1, -2), axis=(-2, -1))
    known = first > UNKNOWN * share.shape[-1]  # else the noise hides the latent function
    ratio = first / np.where(known, second, 1.0)
    return np.stack([np.where(known, np.maximum(square, 0.0) * ratio, 0.0), np.where(known, first * ratio, 1.0)])


def _shortened(root: np.ndarray) -> np.ndarray:
    """Return a root with as many columns as rows at most: R' with R' R'' = R R^T."""
    return np.asarray(np.linalg.qr(root.T, mode="r")).T if root.shape[1] > root.shape[0] else root
