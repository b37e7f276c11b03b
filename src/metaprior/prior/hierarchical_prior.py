"""A fitted hierarchical prior: for a new task a Gaussian process, or a mixture of them over the task's noise."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from metaprior.likelihoods.gaussian import Gaussian
from metaprior.predict.ensemble import Plain, Prediction
from metaprior.predict.mixtures import blocks
from metaprior.prior.blocks import line, squared_distances
from metaprior.prior.features import FeatureNetwork
from metaprior.prior.layout import Layout
from metaprior.prior.modes import CommonCurve
from metaprior.prior.small_matrices import FLOPS, ROUNDING, invert_roots, log_sum_exp
from metaprior.prior.task_scales import TaskScales
from metaprior.prior.terms import Basis, add_noise, covariate_features, make_basis, rbf_between, whitening
from metaprior.tasks.scaling import Scaling

UNKNOWN = 1e-9  # degrees of freedom per reading that are rounding
MOST_NUMBERS, MIN_BLOCK = 2**24, 64  # of work arrays of a prediction, and queries that are worth a product of matrices
WORK_ARRAYS = 4  # as large as a covariance of the context, beside those of all noises


class Points(NamedTuple):
    """What the prior says about inputs: the mean is F m, the covariance around it A A' + a^2 k(x, x') - B B'."""

    x: np.ndarray  # (tasks, n, input_dim)
    mask: np.ndarray  # (tasks, n), 0.0 for padding, where the rest is zero too
    features: np.ndarray  # F, (tasks, n, m)
    own: np.ndarray  # A, (tasks, n, functions)
    removed: np.ndarray  # B, (tasks, n, functions or none): already in A


class Posterior(NamedTuple):
    """A prior conditioned on contexts, for each noise of the mixture."""

    context: Points
    inverse_root: np.ndarray  # (noises, tasks, n, n): L^-1, where L L' is the covariance of the context
    residual: np.ndarray  # (noises, tasks, n): L^-1 (y - mean)
    log_weights: np.ndarray  # (noises, tasks): log probability of the noise given the context


@dataclass(frozen=True, eq=False)
class HierarchicalPrior:
    """A hierarchical prior with the weights of its common mean integrated out."""

    scaling: Scaling
    layout: Layout
    theta: np.ndarray
    points: np.ndarray  # (points, input_dim), inducing points in standardized units
    weights: np.ndarray  # (m,), posterior mean of the weights of the common mean
    weights_root: np.ndarray  # (m, m): R, where R R' is their posterior covariance
    noise_variance: float  # common to all tasks
    scales: TaskScales
    curve: CommonCurve | None = None
    shape_root: np.ndarray | None = None  # (functions, functions): root of the covariance S of the shapes
    counts: np.ndarray | None = None  # (environments,): how much the evidence of a task of each has counted
    network: FeatureNetwork | None = None

    likelihood = Gaussian()

    def __getstate__(self) -> dict[str, Any]:
        # Without what is cached, so that predictions do not change a prior's pickle, or joblib's hash of it.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def input_dim(self) -> int:
        """Number of columns of scaled inputs, without those of covariates."""
        return self.layout.input_dim

    @property
    def n_components(self) -> int:
        """Number of noises."""
        return len(self.scales.factors)

    @property
    def component_parameters(self) -> np.ndarray:
        """Log standard deviations of the noise in the units of y, (noises, 1)."""
        variances = np.maximum(self.scaling.undo_variance(self.noise_variances), np.finfo(np.float64).tiny)
        return 0.5 * np.log(variances)[:, None]

    def condition(self, x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> Posterior:
        """Condition on standardized contexts x (tasks, n, d), y and mask (tasks, n)."""
        x, y, mask = from_far_to_near(x, y, mask)
        context = self.describe(np.asarray(x, np.float64), mask.astype(np.float64))
        fixed, scaled = self.covariance(context, context)
        deviation = (np.asarray(y, np.float64) - context.features @ self.weights) * context.mask
        inverse, floor = np.empty((self.n_components, *fixed.shape)), ROUNDING * context.mask.sum(axis=1, keepdims=True)
        factors, noises = self._factors.tolist(), self.noise_variances.tolist()
        for k, (factor, noise) in enumerate(zip(factors, noises, strict=True)):
            np.multiply(scaled, factor**2, out=inverse[k])
            inverse[k] += fixed
            add_noise(inverse[k], context.mask, noise, floor)
        del fixed, scaled  # of thousands of readings these take gigabytes
        invert_roots(inverse)
        residual = (inverse @ deviation[..., None])[..., 0]
        evidence = np.log(np.diagonal(inverse, axis1=2, axis2=3)).sum(axis=-1) - 0.5 * np.sum(residual**2, axis=-1)
        log_weights = self.scales.log_weights[:, None] + evidence
        return Posterior(context, inverse, residual, log_weights - log_sum_exp(log_weights, axis=0))

    def latent_distances(self, posterior: Posterior) -> np.ndarray:
        """Return how far the latent functions of contexts are from the prior's, see `Member`."""
        inverse_root, mask = posterior.inverse_root, posterior.context.mask
        noise = np.where(mask > 0, self.noise_variances[:, None, None], 1.0)
        a = (posterior.residual[..., None, :] @ inverse_root)[..., 0, :]
        square = np.sum(posterior.residual**2, axis=-1) - np.sum(noise * a**2, axis=-1)
        share = np.eye(mask.shape[1]) - noise[..., None] * (np.swapaxes(inverse_root, -1, -2) @ inverse_root)
        return as_chi_square(square, share)

    def marginals(self, posterior: Posterior, x: np.ndarray) -> Prediction:
        """Predict the latent function at standardized queries x (tasks, queries, d), in the units of y."""
        n, moments = x.shape[1], np.empty((2, self.n_components, *x.shape[:2]))
        for rows in blocks(n, max(MOST_NUMBERS // max(posterior.residual.size, 1), MIN_BLOCK)):
            moments[..., rows] = self._moments(posterior, x[:, rows])
        mean, variance = self.scaling.undo_mean(moments[0]), self.scaling.undo_variance(moments[1])
        return Prediction(mean, variance, self.component_parameters, posterior.log_weights)

    def weighted_covariance(self, posterior: Posterior, x: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Return sum_k shares_k C_k of the latent function at standardized queries x (1, n, d) of one task, (n, n).

        In the units of y.
        It is added up in place: C_k = fixed + f_k^2 scaled - S_k' S_k are as large as the result.
        """
        queries, total, shares = self._queries(x), np.empty(2 * x.shape[1:2]), self.scaling.undo_variance(shares)
        of_scaled = float(shares @ self._factors**2)
        for rows in blocks(x.shape[1]):
            fixed, scaled = self.covariance(Points(*(part[:, rows] for part in queries)), queries)
            np.multiply(scaled[0], of_scaled, out=total[rows])
            total[rows] += shares.sum() * fixed[0]
        fixed, scaled = self.covariance(posterior.context, queries)
        for k in np.flatnonzero(shares).tolist():
            solved = posterior.inverse_root[k, 0] @ (fixed[0] + self._factors[k] ** 2 * scaled[0])
            solved *= np.sqrt(shares[k])
            for rows in blocks(x.shape[1]):
                total[rows] -= solved[:, rows].T @ solved
        return total

    def take(self, posteriors: Sequence[Posterior], places: np.ndarray) -> Posterior:
        """Join posteriors and pick tasks."""
        contexts = [posterior.context for posterior in posteriors]
        context = Points(*(np.concatenate(parts)[places] for parts in zip(*contexts, strict=True)))
        rest = zip(*(posterior[1:] for posterior in posteriors), strict=True)
        return Posterior(context, *(np.concatenate(parts, axis=1)[:, places] for parts in rest))

    def plain(self) -> Plain:
        """Return code that predicts with NumPy alone, and what it needs of this prior."""
        from metaprior.prior.plain_arrays import arrays_of_readings, source  # which imports this module

        return Plain(source("plain_process", "plain_readings"), arrays_of_readings(self))

    def float32_problem(self, largest_context: int, standardized: bool) -> str | None:
        """Return None: hierarchical priors always compute in double precision."""
        return None

    def expected_seconds(self, sizes: np.ndarray, n_classes: np.ndarray | None = None) -> float:
        """Return about how long it takes to condition on contexts of such sizes, one after the other."""
        return self.n_components * float(np.sum(2.0 / 3.0 * sizes.astype(np.float64) ** 3)) / FLOPS

    def expected_bytes(self, size: int) -> float:
        """Return about how much memory it takes to condition on a context of such a size."""
        return 8.0 * size**2 * (self.n_components + WORK_ARRAYS)

    @property
    def smooth_variance(self) -> float:
        """Of the smooth deviation of a task."""
        return float(self.layout.scale(self.theta, "deviation")[0] ** 2) if self.layout.parts.smooth else 0.0

    @cached_property
    def basis(self) -> Basis | None:
        """Of the common curve."""
        return make_basis(self.layout, self.theta, self._point_distances)

    @cached_property
    def whitening(self) -> np.ndarray:
        """Of the smooth deviation."""
        return whitening(self._point_distances, self.layout.scale(self.theta, "lengths"))

    @cached_property
    def _point_distances(self) -> np.ndarray:
        return squared_distances(self.points, self.points, self.layout.ard, self.layout.widths)

    def describe(
        self, x: np.ndarray, mask: np.ndarray, is_target: np.ndarray | None = None, mean: bool = True
    ) -> Points:
        """Return what the prior says about standardized inputs x (tasks, n, d), by default of the target.

        Without `mean` there are no features of a common mean: it is known to be zero.
        """
        layout, theta, real = self.layout, self.theta, mask[..., None]
        x, covariates = x[..., : self.input_dim], x[..., self.input_dim :]
        lines = line(x, mask)
        features = np.zeros((*mask.shape, 0)) if self.network is None else self.network(x) * real
        common = np.zeros((*mask.shape, 0))
        if mean:
            common = self._mean_features(x, covariates, lines, features, is_target) * real
        curve = np.zeros((*mask.shape, 0)) if self.curve is None else self.curve(x, layout.n_curve) * real
        if self.shape_root is None:
            curve *= 1.0 if self.curve is None else layout.scale(theta, "curve")
            features *= 1.0 if self.network is None else layout.scale(theta, "features")
            own = np.concatenate([layout.own_lines(theta, lines), curve, features], axis=-1)
            return Points(x, mask, common, own, np.zeros((*mask.shape, 0)))
        whitened = (rbf_between(x, self.points, self._lengths) @ self.whitening) * real
        own = np.concatenate([lines, curve, whitened], axis=-1) @ self.shape_root
        return Points(x, mask, common, own, np.sqrt(self.smooth_variance) * whitened)

    def _mean_features(
        self,
        x: np.ndarray,
        covariates: np.ndarray,
        lines: np.ndarray,
        features: np.ndarray,
        is_target: np.ndarray | None,
    ) -> np.ndarray:
        """Return F, given (1, x) and the features of the network."""
        layout, theta, curve = self.layout, self.theta, None
        parts = [lines * layout.trend_stds(theta)]
        if self.basis is not None:
            lengths = layout.column_lengths(self.basis.lengths)
            curve = self.basis.functions(rbf_between(x, self.points, lengths))
            parts.append(curve)
        if self.network is not None:
            parts.append(layout.scale(theta, "feature_mean")[0] * features)
        parts += covariate_features(layout, theta, covariates, x, curve)
        if layout.parts.environment:
            share = layout.scale(theta, "environment")[0] * (1.0 if is_target is None else is_target[:, None, None])
            parts += [share * part for part in parts]
        return np.concatenate(parts, axis=-1)

    def deviations(self, left: Points, right: Points) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariance around the common mean, without noise: of lines, and what factors may multiply."""
        n_line = 1 + self.input_dim
        lines = left.own[..., :n_line] @ np.swapaxes(right.own[..., :n_line], 1, 2)
        scaled = left.own[..., n_line:] @ np.swapaxes(right.own[..., n_line:], 1, 2)
        if self.layout.parts.smooth:
            smooth = rbf_between(left.x, right.x, self._lengths)
            smooth *= self.smooth_variance * left.mask[:, :, None]
            scaled += smooth if right.mask.all() else smooth * right.mask[:, None, :]
        if right.removed.shape[-1]:
            scaled -= left.removed @ np.swapaxes(right.removed, 1, 2)
        return lines, scaled

    def covariance(self, left: Points, right: Points) -> tuple[np.ndarray, np.ndarray]:
        """Return the same for a new task: the uncertainty of the common mean adds to the fixed part."""
        lines, scaled = self.deviations(left, right)
        if not left.features.shape[-1]:
            return lines, scaled
        of_left = left.features @ self.weights_root
        of_right = of_left if right is left else right.features @ self.weights_root
        lines += of_left @ np.swapaxes(of_right, 1, 2)
        return lines, scaled

    def variance(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """Return the diagonals of `covariance`, (tasks, n) each."""
        n_line = 1 + self.input_dim
        fixed = np.sum(points.own[..., :n_line] ** 2, axis=-1)
        if points.features.shape[-1]:
            fixed += np.sum((points.features @ self.weights_root) ** 2, axis=-1)
        scaled = np.sum(points.own[..., n_line:] ** 2, axis=-1) - np.sum(points.removed**2, axis=-1)
        return fixed, scaled + self.smooth_variance

    @property
    def _lengths(self) -> np.ndarray:
        """Length scales of the smooth deviation, (input_dim or 1,)."""
        return self.layout.column_lengths(self.layout.scale(self.theta, "lengths"))

    @property
    def noise_variances(self) -> np.ndarray:
        """(components,): the noise variance of each component."""
        return self.noise_variance * self.scales.factors**2

    @property
    def _factors(self) -> np.ndarray:
        return np.ones(len(self.scales.factors)) if self.scales.noise_only else self.scales.factors

    def _queries(self, x: np.ndarray) -> Points:
        return self.describe(np.asarray(x, np.float64), np.ones(x.shape[:2]))

    def _moments(self, posterior: Posterior, x: np.ndarray) -> np.ndarray:
        """Return posterior means and variances, (2, noises, tasks, queries)."""
        queries = self._queries(x)
        fixed, scaled = self.covariance(posterior.context, queries)
        if self.scales.noise_only:
            solved = posterior.inverse_root @ (fixed + scaled)
        else:
            solved = posterior.inverse_root @ (fixed + self._factors[:, None, None, None] ** 2 * scaled)
        mean = queries.features @ self.weights + (posterior.residual[:, :, None, :] @ solved)[:, :, 0]
        fixed, scaled = self.variance(queries)
        prior_variance = fixed + self._factors[:, None, None] ** 2 * scaled
        explained = np.sum(np.square(solved, out=solved), axis=2)
        return np.stack([mean, np.maximum(prior_variance - explained, ROUNDING * prior_variance)])


def from_far_to_near(x: np.ndarray, y: np.ndarray, mask: np.ndarray) -> list[np.ndarray]:
    """Sort the readings of every task: with large variances first rounding is least, and no order is special."""
    distances = np.sum(np.square(x, dtype=np.float64), axis=-1)
    order = np.argsort(np.where(mask, -distances, np.inf), axis=1)
    return [np.take_along_axis(x, order[..., None], 1), *(np.take_along_axis(part, order, 1) for part in (y, mask))]


def as_chi_square(square: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return squared distances of latent functions from the prior mean, and their degrees of freedom, (2, ..., tasks).

    With the covariance K of t at a context, D of its noise and a = (K + D)^-1 (y - mean), the square a' K a is under
    the prior a sum of chi-square variables, times the eigenvalues of the share K (K + D)^-1. It is scaled to have the
    mean and the variance of one chi-square variable (Satterthwaite).
    """
    first = np.trace(share, axis1=-2, axis2=-1)
    second = np.sum(share * np.swapaxes(share, -1, -2), axis=(-2, -1))
    known = first > UNKNOWN * share.shape[-1]  # else the noise hides the latent function
    ratio = first / np.where(known, second, 1.0)
    return np.stack([np.where(known, np.maximum(square, 0.0) * ratio, 0.0), np.where(known, first * ratio, 1.0)])
