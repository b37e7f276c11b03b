"""The sinusoid problem of the WFEM paper (section "Sinusoidal Regression") and its two oracles.

The oracles learn nothing: they know the target environment, and so bound what meta-learning can reach.
In the names below mu_c is `source_phase`, mu'_c is `target_phase`, and sigma is `noise_std`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from metaprior.tasks.types import Task, TestTask

FREQUENCY = 1.5  # eq. groundtruth; the rest is eq. taskdistribution_source
SLOPE_MEAN, SLOPE_STD = 0.5, 0.2  # a
AMPLITUDE_MEAN, AMPLITUDE_HALF_WIDTH = 1.0, 0.3  # b ~ U(0.7, 1.3)
PHASE_STD = 0.1  # c
OFFSET_MEAN, OFFSET_STD = 5.0, 0.1  # d
INPUT_LOW, INPUT_HIGH = -5.0, 5.0  # x

# The quadrature over (b, c) of `bayes_oracle`: about the coarsest that keeps the predictive mean within 1e-3
# of a fine grid's in each of 5000 tasks of 5 to 20 points. Sizes are for 20 points at noise_std 0.1, where
# posterior standard deviations get down to 0.026 for b and 0.013 for c: nodes may lie two of these apart.
AMPLITUDE_NODES = 19  # Gauss-Legendre, since the posterior of b may end abruptly at 0.7 and 1.3
PHASE_NODES = 35  # evenly spaced: nothing is better for a smooth density that vanishes at both ends
PHASE_REACH = 4.5  # standard deviations of c: with 4, tasks of extreme phase are already off by 3e-3
COARSEST = 0.75  # least share of these sizes: with few points some posteriors stay about as narrow

Array = np.ndarray
Seed = int | np.random.Generator


class Functions(NamedTuple):
    """n task functions f(x) = a x + b sin(1.5 (x - c)) + d (eq. groundtruth)."""

    a: Array  # (n,)
    b: Array  # (n,)
    c: Array  # (n,)
    d: Array  # (n,)

    def __call__(self, x: Array) -> Array:
        """Values (n, m) at x: (n, m), a row of inputs per function, or (m,), inputs common to all."""
        a, b, c, d = (parameter[:, None] for parameter in self)
        return a * x + b * np.sin(FREQUENCY * (x - c)) + d


class OraclePrediction(NamedTuple):
    """A Gaussian mixture of the latent f at the queries, per task; the observation noise is not included."""

    log_weights: Array  # (components, tasks)
    mean: Array  # (components, tasks, queries)
    variance: Array  # (components, tasks, queries)


@dataclass(frozen=True)
class Sinusoid:
    """Source and target environments that differ in the mean of the phase c alone.

    a ~ N(0.5, 0.2^2), b ~ U(0.7, 1.3), d ~ N(5, 0.1^2) in both (eq. taskdistribution_source);
    c ~ N(source_phase, 0.1^2) in the source, c ~ N(source_phase + deviation, 0.1^2) in the target;
    x ~ U(-5, 5) and y ~ N(f(x), noise_std^2).
    """

    deviation: float = 0.5
    source_phase: float = 0.0
    noise_std: float = 0.1

    def __post_init__(self):
        for name, value in vars(self).items():
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value}")
        if self.noise_std <= 0:
            raise ValueError(f"noise_std must be positive, got {self.noise_std}")

    @property
    def target_phase(self) -> float:
        """mu'_c, the mean of c in the target environment."""
        return self.source_phase + self.deviation

    def source_functions(self, n_tasks: int, rng: Seed) -> Functions:
        """Task functions from the source environment."""
        return _draw_functions(self.source_phase, n_tasks, rng)

    def target_functions(self, n_tasks: int, rng: Seed) -> Functions:
        """Task functions from the target environment; at equal seeds only c differs from the source's."""
        return _draw_functions(self.target_phase, n_tasks, rng)

    def observe(self, functions: Functions, n_samples: int, rng: Seed) -> tuple[Array, Array]:
        """Draw x ~ U(-5, 5) and y ~ N(f(x), noise_std^2), each (n_functions, n_samples)."""
        _check_count("n_samples", n_samples)
        rng = np.random.default_rng(rng)
        x = rng.uniform(INPUT_LOW, INPUT_HIGH, (len(functions.a), n_samples))
        return x, functions(x) + self.noise_std * rng.standard_normal(x.shape)

    def source_tasks(self, n_tasks: int, n_samples: int, rng: Seed) -> list[Task]:
        """Meta-training tasks from the source environment."""
        rng = np.random.default_rng(rng)
        x, y = self.observe(self.source_functions(n_tasks, rng), n_samples, rng)
        return list(map(Task, x[..., None], y))

    def target_tasks(self, n_tasks: int, n_samples: int, rng: Seed) -> list[Task]:
        """Meta-training tasks from the target environment."""
        rng = np.random.default_rng(rng)
        x, y = self.observe(self.target_functions(n_tasks, rng), n_samples, rng)
        return list(map(Task, x[..., None], y))

    def test_tasks(self, n_tasks: int, n_context: int, n_query: int, rng: Seed) -> list[TestTask]:
        """Meta-test tasks, from the target environment."""
        _check_count("n_context", n_context)
        _check_count("n_query", n_query)
        tasks = self.target_tasks(n_tasks, n_context + n_query, rng)
        return [TestTask(x[:n_context], y[:n_context], x[n_context:], y[n_context:]) for x, y in tasks]

    def target_mean(self, x: Array) -> Array:
        """E[f(x)] in the target environment, shaped like x.

        With c ~ N(mu, s^2) and w = 1.5, E[sin(w (x - c))] = exp(-(w s)^2 / 2) sin(w (x - mu)).
        """
        sine = math.exp(-((FREQUENCY * PHASE_STD) ** 2) / 2) * np.sin(FREQUENCY * (x - self.target_phase))
        return SLOPE_MEAN * x + AMPLITUDE_MEAN * sine + OFFSET_MEAN

    def target_covariance(self, x: Array, x_other: Array) -> Array:
        """Cov[f(x), f(x')] in the target environment, with x and x' broadcast against each other.

        Var[a] x x' + Var[d] + E[b^2] E[sin sin'] - E[b]^2 E[sin] E[sin'], where
        E[sin sin'] = 1/2 (cos(w (x - x')) - exp(-2 (w s)^2) cos(w (x + x' - 2 mu))).
        """
        spread = (FREQUENCY * PHASE_STD) ** 2
        angle, angle_other = (FREQUENCY * (inputs - self.target_phase) for inputs in (x, x_other))
        product = (np.cos(angle - angle_other) - math.exp(-2 * spread) * np.cos(angle + angle_other)) / 2
        means = AMPLITUDE_MEAN**2 * math.exp(-spread) * np.sin(angle) * np.sin(angle_other)
        amplitude_square = AMPLITUDE_MEAN**2 + AMPLITUDE_HALF_WIDTH**2 / 3
        return _linear_covariance(x, x_other) + amplitude_square * product - means

    def gp_oracle(self, x_context: Array, y_context: Array, x_query: Array) -> OraclePrediction:
        """Predict with the GP of the target's own mean and covariance: the best predictor affine in y.

        Shapes: x_context and y_context (tasks, m), x_query (tasks, q). One component.
        """
        _check_oracle_inputs(x_context, y_context, x_query)
        whitener, gain, variance = _condition(self.target_covariance, x_context, x_query, self.noise_std)
        residual = np.einsum("tmn,tn->tm", whitener, y_context - self.target_mean(x_context))
        mean = self.target_mean(x_query) + np.einsum("tmq,tm->tq", gain, residual)
        return OraclePrediction(np.zeros((1, len(x_context))), mean[None], variance[None])

    def bayes_oracle(self, x_context: Array, y_context: Array, x_query: Array) -> OraclePrediction:
        """Predict with the exact posterior under the true prior of (a, b, c, d): the best predictor there is.

        Given (b, c), f is a GP with mean 0.5 x + b sin(1.5 (x - c)) + 5 and covariance
        K = 0.2^2 x x' + 0.1^2, since a and d are Gaussian. What remains is a quadrature over (b, c):
        a component is a node, its weight the share of p(b) p(c) N(y; mean at context, K + noise_std^2 I).

        Shapes as in `gp_oracle`. `variance` is a read-only view, as it is the same in all components.
        """
        _check_oracle_inputs(x_context, y_context, x_query)
        whitener, gain, variance = _condition(_linear_covariance, x_context, x_query, self.noise_std)
        b, c, log_prior = _quadrature(self.target_phase, self.noise_std, x_context.shape[1])
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


def _draw_functions(phase_mean, n_tasks, rng):
    _check_count("n_tasks", n_tasks)
    rng = np.random.default_rng(rng)
    a = rng.normal(SLOPE_MEAN, SLOPE_STD, n_tasks)
    b = AMPLITUDE_MEAN + AMPLITUDE_HALF_WIDTH * rng.uniform(-1, 1, n_tasks)
    c = rng.normal(phase_mean, PHASE_STD, n_tasks)
    return Functions(a, b, c, rng.normal(OFFSET_MEAN, OFFSET_STD, n_tasks))


def _linear_covariance(x, x_other):
    """Cov[a x + d, a x' + d]."""
    return SLOPE_STD**2 * x * x_other + OFFSET_STD**2


def _condition(covariance, x_context, x_query, noise_std):
    """W with W' W = (K + noise_std^2 I)^-1, the gain G = W K(context, query), and the posterior variance.

    The posterior mean is prior mean + G' W (y - prior mean), whatever the prior mean.
    """
    noise = noise_std**2 * np.eye(x_context.shape[1])
    marginal = covariance(x_context[:, :, None], x_context[:, None, :]) + noise
    whitener = np.linalg.inv(np.linalg.cholesky(marginal))
    gain = whitener @ covariance(x_context[:, :, None], x_query[:, None, :])
    return whitener, gain, covariance(x_query, x_query) - np.sum(gain**2, axis=1)


def _quadrature(phase_mean, noise_std, n_context):
    """Nodes b (amplitudes,) and c (phases,), and log prior masses (amplitudes, phases) up to a constant."""
    # The posterior narrows like noise_std / sqrt(n_context), and the spacing of the nodes follows it.
    refinement = max(COARSEST, 0.1 / noise_std * math.sqrt(n_context / 20))
    u, weights = np.polynomial.legendre.leggauss(math.ceil(AMPLITUDE_NODES * refinement))
    z = np.linspace(-PHASE_REACH, PHASE_REACH, math.ceil(PHASE_NODES * refinement))
    log_prior = np.log(weights)[:, None] - z**2 / 2
    return AMPLITUDE_MEAN + AMPLITUDE_HALF_WIDTH * u, phase_mean + PHASE_STD * z, log_prior


def _check_count(name, value):
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def _check_oracle_inputs(x_context, y_context, x_query):
    if x_context.ndim != 2:
        raise ValueError(f"x_context must have shape (tasks, m), got {x_context.shape}")
    if y_context.shape != x_context.shape:
        raise ValueError(f"y_context must have x_context's shape {x_context.shape}, got {y_context.shape}")
    if x_query.ndim != 2 or len(x_query) != len(x_context):
        raise ValueError(f"x_query must have shape ({len(x_context)}, q), got {x_query.shape}")
