"""A linear mixed model by statsmodels, and predictions of new groups in closed form.

y = F β + Z u + ε with u ~ N(0, Ψ) for every group and ε ~ N(0, σ²). Given Ψ and σ², the fixed effects have the
covariance C = (Σ F' V⁻¹ F)⁻¹ with V = Z Ψ Z' + σ² I, so the readings of a new group are jointly Gaussian with mean F β
and covariance F C F' + Z Ψ Z' + σ² I. Conditioning on its context gives the BLUP and its uncertainty, β's included.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from metaprior_studies.peers.designs import ENVIRONMENTS, KNOTS, Design
from metaprior_studies.peers.protocol import Array, Fitted, Rows, Scaling, Tasks

RANDOM_EFFECTS = ("slopes", "intercept")
SINGULAR = 1e-10  # smallest eigenvalue of Ψ, relative to σ², that is accepted as a covariance
METHODS = ["lbfgs", "bfgs"]


@dataclass(frozen=True)
class MixedModel:
    """A fitted mixed model in standardized units."""

    design: Design
    random: str
    coefficients: Array  # β
    coefficients_covariance: Array  # C
    random_covariance: Array  # Ψ
    noise_variance: float

    def condition(self, x_context: Array, y_context: Array, x_query: Array) -> tuple[Array, Array]:
        """Return mean and variance of new readings of a new group of the target environment."""
        x = np.concatenate([x_context, x_query])
        fixed, random = self.design(x), random_columns(x, self.random)
        covariance = fixed @ self.coefficients_covariance @ fixed.T + random @ self.random_covariance @ random.T
        covariance += self.noise_variance * np.eye(len(x))
        return condition(fixed @ self.coefficients, covariance, y_context)


def condition(mean: Array, covariance: Array, y_context: Array) -> tuple[Array, Array]:
    """Return mean and variance of the last entries of a Gaussian vector, given that the first ones are y_context."""
    n = len(y_context)
    gain = np.linalg.solve(covariance[:n, :n], covariance[:n, n:])
    return mean[n:] + gain.T @ (y_context - mean[:n]), np.diag(covariance)[n:] - np.sum(
        gain * covariance[:n, n:], axis=0
    )


def random_columns(x: Array, random: str) -> Array:
    """Return the columns Z of random effects."""
    ones = np.ones((len(x), 1))
    return np.concatenate([ones, x], axis=1) if random == "slopes" else ones


def fit_mixed(source: Tasks, target: Tasks, seed: int) -> Fitted:
    """Choose fixed and random effects by AIC, fit by REML, and predict new groups in closed form."""
    scaling = Scaling.of(Rows.of(source, target))
    rows = Rows.of([scaling.task(task) for task in source], [scaling.task(task) for task in target])
    model, choice = choose_model(rows)

    def predict(contexts: Any, queries: Any) -> Any:
        predicted = []
        for context, x_query in zip(contexts, queries, strict=True):
            scaled = scaling.task(context)
            predicted.append(scaling.predictive(*model.condition(scaled.x, scaled.y, scaling.inputs(x_query))))
        return predicted

    return Fitted(predict, choice)


def choose_model(rows: Rows) -> tuple[MixedModel, str]:
    """Return the model of least AIC, refitted by REML, and what was chosen.

    The fixed effects are chosen with random intercepts and slopes, or with a random intercept where these are singular.
    """
    designs: dict[str, Design] = {}
    for curve in KNOTS:
        for environment in ENVIRONMENTS:
            design = Design.fit(rows.x, rows.in_target, curve, environment)
            if not any(
                len(other.kept) == len(design.kept) and other.environment == environment for other in designs.values()
            ):
                designs[f"{curve}, {environment}"] = design
    ranked = []
    for name, design in designs.items():
        for random in RANDOM_EFFECTS:
            result = _fit(rows, design, random, reml=False)
            if result is not None:
                ranked.append((_aic(result), f"{name}, {random}", design, random))
    for _, name, design, random in sorted(ranked, key=lambda each: each[0]):
        result = _fit(rows, design, random, reml=True)
        if result is not None:
            return as_model(rows, design, random, result), name
    raise RuntimeError("statsmodels could not fit any mixed model.")


def as_model(rows: Rows, design: Design, random: str, result: Any) -> MixedModel:
    """Return statsmodels' estimates with the covariance of the fixed effects."""
    noise, covariance = float(result.scale), np.asarray(result.cov_re, float)
    fixed, columns = design(rows.x, rows.in_target), random_columns(rows.x, random)
    precision = np.zeros((fixed.shape[1], fixed.shape[1]))
    for part in rows.parts():
        of_group = columns[part] @ covariance @ columns[part].T + noise * np.eye(len(part))
        precision += fixed[part].T @ np.linalg.solve(of_group, fixed[part])
    return MixedModel(design, random, np.asarray(result.fe_params, float), np.linalg.inv(precision), covariance, noise)


def _fit(rows: Rows, design: Design, random: str, reml: bool) -> Any:
    """Return statsmodels' result, or None where it fails or the covariance of random effects is not one."""
    mixed: Callable[..., Any] = import_module("statsmodels.regression.mixed_linear_model").MixedLM
    model = mixed(rows.y, design(rows.x, rows.in_target), rows.group, exog_re=random_columns(rows.x, random))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence and estimates at the boundary, both judged below
        try:
            result = model.fit(reml=reml, method=METHODS)
            covariance, noise = np.asarray(result.cov_re, float), float(result.scale)
            smallest = np.linalg.eigvalsh(covariance).min()
        except (np.linalg.LinAlgError, ValueError, ZeroDivisionError):
            return None
    singular = random == "slopes" and smallest < SINGULAR * noise
    return result if np.isfinite(result.llf) and noise > 0 and smallest >= -1e-8 and not singular else None


def _aic(result: Any) -> float:
    n_random = len(result.cov_re)
    return -2 * float(result.llf) + 2 * (len(result.fe_params) + n_random * (n_random + 1) // 2 + 1)
