"""Exported tasks of labels: Laplace's approximation with NumPy alone, by the formulas of `softmax` for one task.

See `plain_process`.
"""

import math
from typing import Any

import numpy as np

from metaprior.prior.plain_probabilities import log_sum_exp, of_many, of_two
from metaprior.prior.plain_process import (
    PRIORS,
    as_inputs,
    as_queries,
    check_constant,
    covariance,
    describe,
    extrapolates,
    stable_cholesky,
    standardized,
    variance,
    with_covariates,
)

CLASSES: list[Any] = []
MAX_COVARIANCE = 10  # classes up to which the covariance of their latent functions is used
FAR = 30.0  # standard deviations from which on inputs count by their logarithm
SAMPLE_ROUNDING = 1e-11  # that a variance gains per sample, relative
LEAST = 1e-24  # probability
MAX_STEPS, MAX_HALVINGS = 100, 40


class Task:
    """The prior conditioned on the labels of a task; `X` has codes of levels, as `as_inputs` returns them."""

    def __init__(self, X: np.ndarray, y: Any, classes: Any = None):
        self.classes_ = list(CLASSES if classes is None else classes)
        self.X, self.y = check_constant(X), list(y)
        unknown = [label for label in self.y if label not in self.classes_]
        if unknown or len(self.X) != len(self.y):
            raise ValueError(f"y must be {len(self.X)} labels of {self.classes_}; got {len(self.y)}, {unknown[:1]}.")
        codes = np.array([self.classes_.index(label) for label in self.y], int)
        self._posteriors = [condition(prior, self.X, codes, len(self.classes_)) for prior in PRIORS]

    def update(self, X: Any, y: Any) -> "Task":
        """Condition on more labels."""
        x = with_covariates(as_inputs(X), self.X)
        return Task(np.concatenate([self.X, x]), [*self.y, *y], self.classes_)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each input."""
        return np.array(self.classes_)[np.argmax(self.predict_log_proba(X), axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities (n, classes), in the order of `classes_`."""
        probabilities = np.exp(self.predict_log_proba(X))
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return logarithms of class probabilities."""
        x, pairs = with_covariates(as_queries(X), self.X), zip(PRIORS, self._posteriors, strict=True)
        logs = np.array([math.log(prior["weight"]) + log_proba(prior, posterior, x) for prior, posterior in pairs])
        return log_sum_exp(logs, axis=0)

    def extrapolates(self, X: Any) -> np.ndarray:
        """Tell which inputs are outside the range of the tasks that the prior was fitted to."""
        return extrapolates(X)


def adapt(X: Any, y: Any, classes: Any = None) -> Task:
    """Condition the prior on the labels of another task, with the same classes or others that are given."""
    return Task(as_inputs(X), y, classes)


def within_reach(x: np.ndarray) -> np.ndarray:
    """Return standardized inputs, far ones by their logarithm."""
    far = np.sign(x) * FAR * (1.0 + np.log(np.maximum(np.abs(x), FAR) / FAR))
    return np.where(np.abs(x) > FAR, far, x)


@np.errstate(under="ignore")  # whatever a program has set: densities may be 1e-400
def condition(prior: dict[str, Any], x: np.ndarray, codes: np.ndarray, n_classes: int) -> tuple[Any, ...]:
    """Return the context, a of the mode, and roots of the precision of all latent functions; one for two classes."""
    if len(prior["rule"]) and len(prior["rule"]) != (1 if n_classes == 2 else n_classes):
        raise ValueError("classes must be those of the fit: the prior has a rule by which they are told apart.")
    x = standardized(prior, x)
    order = np.argsort(-np.sum(x**2, axis=1))
    context = describe(prior, within_reach(x[order]))
    y = (codes[order] == np.arange(n_classes)[:, None]).astype(float)[1 if n_classes == 2 else 0 :]
    kernel = unit(prior, n_classes) * np.add(*covariance(prior, context, context))
    kernel[np.diag_indices(len(kernel))] *= 1.0 + SAMPLE_ROUNDING * len(kernel)
    mean = rule_mean(prior, context, len(y))
    a = find_mode(y, mean, kernel)
    _, scaled, scale = curvature(mean + a @ kernel, kernel)
    roots = np.array([np.linalg.inv(stable_cholesky(each)) for each in scaled]) * scale[:, None, :]
    root_sum = None if n_classes == 2 else root_of_sum(np.swapaxes(roots, 1, 2) @ roots)
    return context, a, roots, root_sum


def unit(prior: dict[str, Any], n_classes: int) -> float:
    """Return the factor of the covariance: of two classes the latent function is a difference."""
    return prior["shrink"] ** 2 * (2.0 if n_classes == 2 else 1.0)


def rule_mean(prior: dict[str, Any], points: Any, n_latent: int) -> np.ndarray:
    """Return the means of the latent functions, (functions, n)."""
    if not len(prior["rule"]):
        return np.zeros((n_latent, len(points.x)))
    return prior["shrink"] * prior["rule"] @ points.common.T


def softmax(t: np.ndarray) -> np.ndarray:
    """Return class probabilities for latent functions (functions, n); of the second class if there are two."""
    t = np.concatenate([np.zeros_like(t), t]) if len(t) == 1 else t
    relative = np.exp(t - t.max(axis=0))
    probabilities = relative / relative.sum(axis=0)
    return probabilities[1:] if len(t) == 2 else probabilities


def log_posterior(y: np.ndarray, mean: np.ndarray, kernel: np.ndarray, a: np.ndarray) -> float:
    """Return log p(y | t) - (t - mu)' K^-1 (t - mu) / 2 at t = mu + K a."""
    deviation = a @ kernel
    t = mean + deviation
    total = log_sum_exp(np.concatenate([np.zeros_like(t), t]) if len(t) == 1 else t, axis=0)
    return float(np.sum(y * t) - np.sum(total) - 0.5 * np.sum(a * deviation))


def curvature(t: np.ndarray, kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return D of every function, I + D^1/2 K D^1/2 with a unit diagonal, and its scale."""
    p = softmax(t)
    d = np.maximum(p * (1.0 - p) if len(t) == 1 else p, LEAST)
    scale = np.sqrt(d / (1.0 + d * np.diagonal(kernel)))
    scaled, places = scale[:, :, None] * kernel * scale[:, None, :], np.arange(len(kernel))
    scaled[:, places, places] = 1.0
    return d, scaled, scale


def root_of_sum(parts: np.ndarray) -> np.ndarray:
    """Return L with L L' = (sum_c E_c)^-1."""
    total = parts.sum(axis=0)
    size = np.sqrt(np.diagonal(total))
    return np.linalg.inv(stable_cholesky(total / np.outer(size, size))).T / size[:, None]


def find_mode(y: np.ndarray, mean: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Return a of the mode t = mu + K a, by Newton's method with backtracking (Rasmussen and Williams, 2006)."""
    a = first_step(y, mean, kernel)
    for _ in range(MAX_STEPS):
        t = mean + a @ kernel
        d, scaled, scale = curvature(t, kernel)
        parts = scale[:, :, None] * np.linalg.inv(scaled) * scale[:, None, :]  # E_c = (K + D_c^-1)^-1
        v = y - softmax(t) - a
        step = (parts @ (v / d)[..., None])[..., 0]
        if len(y) > 1:
            root = root_of_sum(parts)
            step = step + parts @ (root @ (root.T @ np.sum(v - step, axis=0)))
        value, fraction = log_posterior(y, mean, kernel, a), 1.0
        for _ in range(MAX_HALVINGS):
            if log_posterior(y, mean, kernel, a + fraction * step) >= value - 1e-11 * (1.0 + abs(value)):
                break
            fraction *= 0.5
        a = a + fraction * step
        if np.max(np.abs(step @ kernel), initial=0.0) < 1e-12 * (1.0 + np.max(np.abs(t), initial=0.0)):
            break
    return a


def first_step(y: np.ndarray, mean: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Return a after a step of Newton's method from t = 0, or zero if t = mu is more probable."""
    share = 0.5 if len(y) == 1 else 1.0 / len(y)
    w = 0.25 if len(y) == 1 else share
    centered = mean if len(y) == 1 else mean - mean.mean(axis=0)
    a = np.linalg.solve(np.eye(len(kernel)) + w * kernel, (y - share - w * centered).T).T
    nothing = np.zeros(a.shape)
    better = log_posterior(y, mean, kernel, a) > log_posterior(y, mean, kernel, nothing)
    return a if better else nothing


@np.errstate(under="ignore")
def log_proba(prior: dict[str, Any], posterior: tuple[Any, ...], x: np.ndarray) -> np.ndarray:
    """Return the log class probabilities of one prior, (n, classes)."""
    context, a, roots, root_sum = posterior
    n_classes = max(len(a), 2)
    queries = describe(prior, within_reach(standardized(prior, x)))
    factor, size = prior["factor"], unit(prior, n_classes)
    cross = size * np.add(*covariance(prior, context, queries))
    mean = factor * (rule_mean(prior, queries, len(a)) + a @ cross).T  # (n, functions)
    if prior["ratio"] == 0.0 or n_classes > MAX_COVARIANCE:
        mean = np.column_stack([np.zeros(len(mean)), mean]) if n_classes == 2 else mean
        return mean - log_sum_exp(mean, axis=1)[:, None]
    solved = roots @ cross
    own = np.maximum(size * np.add(*variance(prior, queries)) - np.sum(solved**2, axis=1), 0.0).T
    if n_classes == 2:
        return of_two(mean[:, 0], prior["ratio"] * factor**2 * own[:, 0])
    across = np.moveaxis(np.swapaxes(roots @ root_sum, 1, 2) @ solved, 2, 0)
    spread = own[..., None] * np.eye(n_classes) + across @ np.swapaxes(across, 1, 2)
    return of_many(mean, prior["ratio"] * factor**2 * spread)
