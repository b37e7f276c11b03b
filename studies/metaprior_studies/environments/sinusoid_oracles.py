"""Two oracles for the sinusoid: predictors that know the target environment and bound what can be learned.

In the paper's symbols, mu'_c is `source_phase + deviation` and sigma is `noise_std`.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from metaprior.datasets import (
    AMPLITUDE_HALF_WIDTH,
    AMPLITUDE_MEAN,
    FREQUENCY,
    OFFSET_MEAN,
    OFFSET_STD,
    PHASE_STD,
    SLOPE_MEAN,
    SLOPE_STD,
    Sinusoid,
)
from metaprior.metrics import Scores, report, summarize
from metaprior.predict.predictive import GaussianMixture
from metaprior.tasks.types import TestTask

# The quadrature over (b, c) of `bayes_oracle`: about the coarsest that keeps the predictive mean within 1e-3
# of a fine grid's in each of 5000 tasks of 5 to 20 points. Sizes are for 20 points at noise_std 0.1, where
# posterior standard deviations get down to 0.026 for b and 0.013 for c: nodes may lie two of these apart.
AMPLITUDE_NODES = 19  # Gauss-Legendre, since the posterior of b may end abruptly at 0.7 and 1.3
PHASE_NODES = 35  # evenly spaced, which is optimal for a smooth density that vanishes at both ends
PHASE_REACH = 4.5  # standard deviations of c: with 4, tasks of extreme phase are already off by 3e-3
MIN_REFINEMENT = 0.75  # relative to these sizes: with few points some posteriors stay about as narrow

Array = np.ndarray


class OraclePrediction(NamedTuple):
    """Gaussian mixture of the latent f at the queries, per task; the observation noise is not included."""

    log_weights: Array  # (components, tasks)
    mean: Array  # (components, tasks, queries)
    variance: Array  # (components, tasks, queries)


def target_mean(environment: Sinusoid, x: Array) -> Array:
    """Return E[f(x)] in the target environment, shaped like x.

    With c ~ N(mu, s^2) and w = 1.5, E[sin(w (x - c))] = exp(-(w s)^2 / 2) sin(w (x - mu)).
    """
    sine = math.exp(-((FREQUENCY * PHASE_STD) ** 2) / 2) * np.sin(FREQUENCY * (x - _target_phase(environment)))
    return SLOPE_MEAN * x + AMPLITUDE_MEAN * sine + OFFSET_MEAN


def target_covariance(environment: Sinusoid, x: Array, x_other: Array) -> Array:
    """Return Cov[f(x), f(x')] in the target environment, with x and x' broadcast against each other.

    Var[a] x x' + Var[d] + E[b^2] E[sin sin'] - E[b]^2 E[sin] E[sin'], where
    E[sin sin'] = 1/2 (cos(w (x - x')) - exp(-2 (w s)^2) cos(w (x + x' - 2 mu))).
    """
    spread = (FREQUENCY * PHASE_STD) ** 2
    angle, angle_other = (FREQUENCY * (inputs - _target_phase(environment)) for inputs in (x, x_other))
    product = (np.cos(angle - angle_other) - math.exp(-2 * spread) * np.cos(angle + angle_other)) / 2
    means = AMPLITUDE_MEAN**2 * math.exp(-spread) * np.sin(angle) * np.sin(angle_other)
    amplitude_square = AMPLITUDE_MEAN**2 + AMPLITUDE_HALF_WIDTH**2 / 3
    return _linear_covariance(x, x_other) + amplitude_square * product - means


def gp_oracle(environment: Sinusoid, x_context: Array, y_context: Array, x_query: Array) -> OraclePrediction:
    """Predict with the GP that has the target's mean and covariance: the best predictor that is affine in y.

    Shapes: x_context and y_context (tasks, m), x_query (tasks, q). The mixture has one component.
    """
    _check_shapes(x_context, y_context, x_query)

    def covariance(x: Array, x_other: Array) -> Array:
        return target_covariance(environment, x, x_other)

    whitener, gain, variance = _condition(covariance, x_context, x_query, environment.noise_std)
    residual = np.einsum("tmn,tn->tm", whitener, y_context - target_mean(environment, x_context))
    mean = target_mean(environment, x_query) + np.einsum("tmq,tm->tq", gain, residual)
    return OraclePrediction(np.zeros((1, len(x_context))), mean[None], variance[None])


def bayes_oracle(environment: Sinusoid, x_context: Array, y_context: Array, x_query: Array) -> OraclePrediction:
    """Predict with the exact posterior under the true prior of (a, b, c, d): the best possible predictor.

    Given (b, c), f is a GP with mean 0.5 x + b sin(1.5 (x - c)) + 5 and covariance
    K = 0.2^2 x x' + 0.1^2, since a and d are Gaussian. What remains is a quadrature over (b, c):
    a component is a node, its weight the share of p(b) p(c) N(y; mean at context, K + noise_std^2 I).

    Shapes as in `gp_oracle`. `variance` is a read-only view, as it is the same in all components.
    """
    _check_shapes(x_context, y_context, x_query)
    whitener, gain, variance = _condition(_linear_covariance, x_context, x_query, environment.noise_std)
    b, c, log_prior = _quadrature(_target_phase(environment), environment.noise_std, x_context.shape[1])
    sine_context, sine_query = (np.sin(FREQUENCY * (x - c[:, None, None])) for x in (x_context, x_query))
    line = np.einsum("tmn,tn->tm", whitener, y_context - SLOPE_MEAN * x_context - OFFSET_MEAN)
    sine = np.einsum("tmn,ctn->ctm", whitener, sine_context)
    residual = line - b[:, None, None, None] * sine  # (amplitudes, phases, tasks, m)
    log_weights = log_prior[..., None] - np.sum(residual**2, axis=-1) / 2
    log_weights = (log_weights - logsumexp(log_weights, axis=(0, 1))).reshape(log_prior.size, -1)
    # The mean is affine in b, so the products with the gain are needed once per phase, not once per node.
    intercept = SLOPE_MEAN * x_query + OFFSET_MEAN + np.einsum("tmq,tm->tq", gain, line)
    slope = sine_query - np.einsum("tmq,ctm->ctq", gain, sine)
    mean = (intercept + b[:, None, None, None] * slope).reshape(log_prior.size, *x_query.shape)
    return OraclePrediction(log_weights, mean, np.broadcast_to(variance, mean.shape))


def score_oracle(oracle: Callable[..., OraclePrediction], environment: Sinusoid, tests: Sequence[TestTask]) -> Scores:
    """Return what `evaluate` of an estimator returns, for an oracle on test tasks of one size."""
    x_context, y_context, x_query, y_query = (np.stack(parts) for parts in zip(*tests, strict=True))
    log_weights, mean, variance = oracle(environment, x_context[..., 0], y_context, x_query[..., 0])
    predictive = GaussianMixture(mean, variance + environment.noise_std**2, log_weights)
    return report(summarize(predictive, y_query))


def _target_phase(environment: Sinusoid) -> float:
    return environment.source_phase + environment.deviation


def _linear_covariance(x, x_other):
    """Cov[a x + d, a x' + d]."""
    return SLOPE_STD**2 * x * x_other + OFFSET_STD**2


def _condition(covariance, x_context, x_query, noise_std):
    """Return W with W' W = (K + noise_std^2 I)^-1, the gain G = W K(context, query), and the posterior variance.

    The posterior mean is prior mean + G' W (y - prior mean), whatever the prior mean.
    """
    noise = noise_std**2 * np.eye(x_context.shape[1])
    marginal = covariance(x_context[:, :, None], x_context[:, None, :]) + noise
    whitener = np.linalg.inv(np.linalg.cholesky(marginal))
    gain = whitener @ covariance(x_context[:, :, None], x_query[:, None, :])
    return whitener, gain, covariance(x_query, x_query) - np.sum(gain**2, axis=1)


def _quadrature(phase_mean, noise_std, n_context):
    """Return nodes b (amplitudes,) and c (phases,), and log prior masses (amplitudes, phases) up to a constant."""
    # The posterior narrows like noise_std / sqrt(n_context), and the spacing of the nodes follows it.
    refinement = max(MIN_REFINEMENT, 0.1 / noise_std * math.sqrt(n_context / 20))
    u, weights = np.polynomial.legendre.leggauss(math.ceil(AMPLITUDE_NODES * refinement))
    z = np.linspace(-PHASE_REACH, PHASE_REACH, math.ceil(PHASE_NODES * refinement))
    log_prior = np.log(weights)[:, None] - z**2 / 2
    return AMPLITUDE_MEAN + AMPLITUDE_HALF_WIDTH * u, phase_mean + PHASE_STD * z, log_prior


def _check_shapes(x_context, y_context, x_query):
    if x_context.ndim != 2:
        raise ValueError(f"x_context must have shape (tasks, m), got {x_context.shape}")
    if y_context.shape != x_context.shape:
        raise ValueError(f"y_context must have x_context's shape {x_context.shape}, got {y_context.shape}")
    if x_query.ndim != 2 or len(x_query) != len(x_context):
        raise ValueError(f"x_query must have shape ({len(x_context)}, q), got {x_query.shape}")
