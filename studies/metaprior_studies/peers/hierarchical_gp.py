"""A hierarchical Gaussian process by evidence: a shared curve, one per environment if wanted, one per task, and noise.

Each curve has the kernel a exp(−½ r²) + c + Σ_j s_j x_j x'_j with r² = Σ_j (x_j − x'_j)² / l_j²: a smooth part, an
intercept and slopes. That of a task may be rough instead, a (1 + √3 r) exp(−√3 r). The logarithms of all parameters
maximize evidence plus a weak Gaussian prior, with analytic gradients; the same criterion chooses between smooth and
rough. A new task is predicted exactly, given the readings of all training tasks and of its context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_solve, get_lapack_funcs, solve_triangular
from scipy.optimize import minimize

from metaprior_studies.peers.mixed_model import condition
from metaprior_studies.peers.protocol import Array, Fitted, Rows, Scaling, Tasks

SHARED, ENVIRONMENT, TASK = "shared", "environment", "task"
JITTER = 1e-6  # of the variance of y
CENTER = {"variance": np.log(0.3), "length": 0.0, "noise": np.log(0.1)}  # of the prior of logarithms, standardized
WIDTH = {"variance": 2.0, "length": 1.0, "noise": 2.0}
START_LENGTHS = (1.0, 0.3)  # the best fit of all starts is kept
MAX_ITERATIONS = 200
ROOT = np.sqrt(3.0)
POTRF, POTRI = get_lapack_funcs(("potrf", "potri"), dtype=np.float64)  # Cholesky factor, and the inverse from it


@dataclass(frozen=True)
class Curve:
    """The kernel of one curve, for given logarithms (a, l_1..d, c, s_1..d)."""

    log_parameters: Array
    rough: bool = False

    @property
    def parts(self) -> tuple[float, Array, float, Array]:
        """Return variance a, length scales l, variance of the intercept c and of the slopes s."""
        d = (len(self.log_parameters) - 2) // 2
        values = np.exp(self.log_parameters)
        return float(values[0]), values[1 : 1 + d], float(values[1 + d]), values[2 + d :]

    def matrix(self, x: Array, other: Array) -> Array:
        """Return the covariance of the curve at two sets of inputs."""
        variance, length, intercept, slopes = self.parts
        scaled, scaled_other = x / length, other / length
        squares = (scaled**2).sum(1)[:, None] + (scaled_other**2).sum(1) - 2 * scaled @ scaled_other.T
        return variance * self.correlation(np.maximum(squares, 0.0))[0] + intercept + (x * slopes) @ other.T

    def correlation(self, squares: Array) -> tuple[Array, Array]:
        """Return the correlation at squared distances r², and −2 times its derivative with respect to r²."""
        if not self.rough:
            correlation = np.exp(-0.5 * squares)
            return correlation, correlation
        distance = ROOT * np.sqrt(squares)
        decay = np.exp(-distance)
        return (1 + distance) * decay, 3 * decay


class Pairs:
    """Pairs of rows, i <= j, whose covariance has a curve in common: squared differences and products of inputs."""

    def __init__(self, x: Array, same: Array | None = None):
        upper = np.triu(np.ones((len(x), len(x)), bool) if same is None else same[:, None] == same)
        self.i, self.j = np.nonzero(upper)
        self.squares = (x[self.i] - x[self.j]) ** 2
        self.products = x[self.i] * x[self.j]
        self.counts = np.where(self.i == self.j, 1.0, 2.0)  # entries of the symmetric matrix

    def smooth(self, curve: Curve) -> tuple[Array, Array]:
        """Return the smooth part of the covariance of every pair, and −2 times its derivative with respect to r²."""
        variance, length, _, _ = curve.parts
        correlation, slope = curve.correlation(self.squares @ length**-2)
        return variance * correlation, variance * slope

    def gradient(self, curve: Curve, smooth: tuple[Array, Array], weights: Array) -> Array:
        """Return the derivatives of Σ weight · covariance with respect to the logarithms of the curve."""
        _, length, intercept, slopes = curve.parts
        of_length = (weights * smooth[1]) @ self.squares / length**2
        of_slopes = weights @ self.products * slopes
        return np.concatenate([[weights @ smooth[0]], of_length, [weights.sum() * intercept], of_slopes])


class Evidence:
    """The negative log posterior of the logarithms of all parameters, and its gradient."""

    def __init__(self, rows: Rows, environments: bool, rough: bool = False):
        self.y, self.n_inputs, self.rough = rows.y, rows.x.shape[1], rough
        self.pairs = {SHARED: Pairs(rows.x)}
        if environments:
            self.pairs[ENVIRONMENT] = Pairs(rows.x, rows.in_target)
        self.pairs[TASK] = Pairs(rows.x, rows.group)
        kinds = ["variance", *["length"] * self.n_inputs, *["variance"] * (1 + self.n_inputs)]
        self.kinds = [*kinds * len(self.pairs), "noise"]
        self.center = np.array([CENTER[kind] for kind in self.kinds])
        self.width = np.array([WIDTH[kind] for kind in self.kinds])

    def start(self, length: float) -> Array:
        """Return initial parameters: the center of the prior with other length scales."""
        return np.where(np.array(self.kinds) == "length", np.log(length), self.center)

    def curves(self, parameters: Array) -> dict[str, Curve]:
        """Return the curves of a vector of parameters."""
        parts = np.split(parameters[:-1], len(self.pairs))
        return {name: Curve(part, self.rough and name == TASK) for name, part in zip(self.pairs, parts, strict=True)}

    def factor(self, parameters: Array) -> tuple[Array, dict[str, tuple[Array, Array]]]:
        """Return the upper Cholesky factor of the covariance of all readings, and the smooth part of every curve."""
        covariance, smooth = np.zeros((len(self.y), len(self.y))), {}
        for name, curve in self.curves(parameters).items():
            pairs, (_, _, intercept, slopes) = self.pairs[name], curve.parts
            smooth[name] = pairs.smooth(curve)
            covariance[pairs.i, pairs.j] += smooth[name][0] + intercept + pairs.products @ slopes
        covariance[np.diag_indices(len(self.y))] += np.exp(parameters[-1]) + JITTER
        upper, failed = POTRF(covariance, lower=0, clean=1)
        if failed:
            raise np.linalg.LinAlgError("the covariance of the readings is not positive definite")
        return upper, smooth

    def __call__(self, parameters: Array) -> tuple[float, Array]:
        """Return −log posterior and its gradient; a large value where the covariance cannot be factorized."""
        try:
            upper, smooth = self.factor(parameters)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(parameters)
        solved = cho_solve((upper, False), self.y)
        inverse, _ = POTRI(upper, lower=0)
        deviation = (parameters - self.center) / self.width
        value = 0.5 * self.y @ solved + np.log(np.diag(upper)).sum() + 0.5 * deviation @ deviation
        gradient = []
        for name, curve in self.curves(parameters).items():
            pairs = self.pairs[name]
            weights = 0.5 * pairs.counts * (inverse[pairs.i, pairs.j] - solved[pairs.i] * solved[pairs.j])
            gradient.append(pairs.gradient(curve, smooth[name], weights))
        gradient.append([0.5 * np.exp(parameters[-1]) * (np.trace(inverse) - solved @ solved)])
        return float(value), np.concatenate(gradient) + deviation / self.width


def fit_hierarchical(source: Tasks, target: Tasks, seed: int, environments: bool = False) -> Fitted:
    """Fit by evidence from several starts; `environments` adds a curve for each environment."""
    scaling = Scaling.of(Rows.of(source, target))
    rows = Rows.of([scaling.task(task) for task in source], [scaling.task(task) for task in target])
    options: dict[str, Any] = {"maxiter": MAX_ITERATIONS}
    fits = []
    for rough in (False, True):
        evidence = Evidence(rows, environments, rough)
        for length in START_LENGTHS:
            fit = minimize(evidence, evidence.start(length), jac=True, method="L-BFGS-B", options=options)
            fits.append((fit.fun, evidence, fit.x))
    _, evidence, parameters = min(fits, key=lambda each: each[0])

    def predict(contexts: Tasks, queries: Sequence[Array]) -> Any:
        scaled = [scaling.task(task) for task in contexts]
        inputs = [scaling.inputs(x) for x in queries]
        return [scaling.predictive(*each) for each in predict_tasks(evidence, rows, parameters, scaled, inputs)]

    return Fitted(predict, "rough" if evidence.rough else "smooth")


def predict_tasks(
    evidence: Evidence, rows: Rows, parameters: Array, contexts: Tasks, queries: Sequence[Array]
) -> list[tuple[Array, Array]]:
    """Return mean and variance of the queries of new tasks of the target environment, standardized."""
    curves, noise = evidence.curves(parameters), np.exp(parameters[-1]) + JITTER
    upper, _ = evidence.factor(parameters)
    solved = cho_solve((upper, False), rows.y)
    predicted = []
    for context, x_query in zip(contexts, queries, strict=True):
        x = np.concatenate([context.x, x_query])
        cross = curves[SHARED].matrix(x, rows.x)
        if ENVIRONMENT in curves:
            cross += curves[ENVIRONMENT].matrix(x, rows.x) * rows.in_target
        halfway = solve_triangular(upper, cross.T, trans=1)
        prior = np.sum([curve.matrix(x, x) for curve in curves.values()], axis=0) + noise * np.eye(len(x))
        predicted.append(condition(cross @ solved, prior - halfway.T @ halfway, context.y))
    return predicted
