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

METHODS = ("lbfgs", "powell")  # of statsmodels; the fit with the higher likelihood is kept
RANDOM_EFFECTS = {"slopes": "lbfgs", "intercept": "powell"}  # and what compares them: lbfgs often fails for intercepts
SINGULAR = {"slopes": 1e-10, "intercept": 0.0}  # least eigenvalue of Ψ, relative to σ²


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
    """Return the model of least AIC, refitted by REML, and what was chosen."""
    ranked = []
    for name, design in _designs(rows).items():
        for random, method in RANDOM_EFFECTS.items():
            result = fit_by(rows, design, random, False, method)
            if result is not None:
                ranked.append((_aic(result), f"{name}, {random}", design, random))
    for _, name, design, random in sorted(ranked, key=lambda each: each[0]):
        fits = [fit_by(rows, design, random, True, method) for method in METHODS]
        found = [result for result in fits if result is not None]
        if found:
            return as_model(rows, design, random, max(found, key=lambda result: result.llf)), name
    raise RuntimeError("statsmodels could not fit any mixed model.")


def _designs(rows: Rows) -> dict[str, Design]:
    """Return designs of different size; a finer spline of few different inputs may be none."""
    designs: dict[tuple[str, int], tuple[str, Design]] = {}
    for curve in KNOTS:
        for environment in ENVIRONMENTS:
            design = Design.fit(rows.x, rows.in_target, curve, environment)
            designs.setdefault((environment, len(design.kept)), (f"{curve}, {environment}", design))
    return dict(designs.values())


def as_model(rows: Rows, design: Design, random: str, result: Any) -> MixedModel:
    """Return statsmodels' estimates with the covariance of the fixed effects."""
    noise, covariance = float(result.scale), np.asarray(result.cov_re, float)
    fixed, columns = design(rows.x, rows.in_target), random_columns(rows.x, random)
    precision = np.zeros((fixed.shape[1], fixed.shape[1]))
    for part in rows.parts():
        of_group = columns[part] @ covariance @ columns[part].T + noise * np.eye(len(part))
        precision += fixed[part].T @ np.linalg.solve(of_group, fixed[part])
    return MixedModel(design, random, np.asarray(result.fe_params, float), np.linalg.inv(precision), covariance, noise)


def fit_by(rows: Rows, design: Design, random: str, reml: bool, method: str) -> Any:
    """Return statsmodels' result, or None where it fails or the covariance of random effects is singular."""
    mixed: Callable[..., Any] = import_module("statsmodels.regression.mixed_linear_model").MixedLM
    model = mixed(rows.y, design(rows.x, rows.in_target), rows.group, exog_re=random_columns(rows.x, random))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence and estimates at the boundary, both judged below
        try:
            result = model.fit(reml=reml, method=method)
            smallest = np.linalg.eigvalsh(np.asarray(result.cov_re, float)).min()
        except (np.linalg.LinAlgError, ValueError, ZeroDivisionError):
            return None
    sound = np.isfinite(result.llf) and result.scale > 0
    return result if sound and smallest >= SINGULAR[random] * result.scale else None


def _aic(result: Any) -> float:
    n_random = len(result.cov_re)
    return -2 * float(result.llf) + 2 * (len(result.fe_params) + n_random * (n_random + 1) // 2 + 1)
