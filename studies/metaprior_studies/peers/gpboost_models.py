"""Mixed models of GPBoost: linear, spline or boosted means, with random slopes or a GP for every task.

Among all variants, cross-validation over target and source tasks chooses one by log density. A new group is
predicted as GPBoost does it: a model of the contexts with the fitted covariance parameters, from which the fixed
effects are subtracted. GPBoost does not count the uncertainty of fixed effects.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from metaprior_studies.peers.designs import Design
from metaprior_studies.peers.protocol import Array, Fitted, Rows, Scaling, Tasks, cross_validate, rank

MEANS = ("linear", "spline", "fine spline", "boosted 20", "boosted 60")  # boosted: number of trees
DATA = ("pooled", "environment column", "target only")
RANDOM = ("slopes", "GP", "slopes and GP")  # all with a random intercept of the task
TREES = {
    "learning_rate": 0.1,
    "max_depth": 2,
    "num_leaves": 4,
    "min_data_in_leaf": 20,
    "lambda_l2": 5.0,
    "num_threads": 1,
    "verbose": -1,
}
DIVERGED = 20.0  # standard deviations of y from its mean: no fixed effect of a sound fit is so large
NOISE, EFFECT, RANGE = 0.2, 0.3, 1.0  # initial variances, and the range of a GP, of standardized readings and inputs


@dataclass(frozen=True)
class Variant:
    """A mean, the rows it is learned from, and the random effects of a task."""

    mean: str
    data: str
    random: str

    def __str__(self) -> str:
        return f"{self.mean}, {self.data}, {self.random}"


def variants() -> list[Variant]:
    """Return all combinations."""
    return [Variant(*each) for each in product(MEANS, DATA, RANDOM)]


def fit_gpboost(source: Tasks, target: Tasks, seed: int) -> Fitted:
    """Choose a variant by cross-validation and fit it to all tasks."""
    _quieten()
    candidates = {str(variant): partial(fit_variant, variant, seed=seed) for variant in variants()}
    for name in rank(candidates, lambda fit: cross_validate(fit, source, target, seed)):
        with suppress(Exception):  # GPBoost's own kinds; boosting diverges now and then
            return Fitted(candidates[name](source, target).predict, name)
    raise RuntimeError("GPBoost could not fit any variant.")


def fit_variant(variant: Variant, source: Tasks, target: Tasks, seed: int = 0) -> Fitted:
    """Fit one variant."""
    source = () if variant.data == "target only" else source
    scaling = Scaling.of(Rows.of(source, target))
    rows = Rows.of([scaling.task(task) for task in source], [scaling.task(task) for task in target])
    model = random_effects(rows.x, rows.group, variant.random)
    fixed = fit_mean(variant, rows, model, seed)
    parameters = np.asarray(model.get_cov_pars(), float).ravel()
    largest = np.abs(fixed(rows.x)).max()
    if not np.isfinite(parameters).all() or not largest < DIVERGED:
        raise ValueError(f"GPBoost diverged: covariance parameters {parameters}, fixed effects up to {largest:g}.")

    def predict(contexts: Tasks, queries: Sequence[Array]) -> Any:
        scaled = Rows.of([scaling.task(task) for task in contexts], ())
        x = scaling.inputs(np.concatenate(queries))
        group = np.repeat(np.arange(len(queries)), [len(each) for each in queries])
        mean, variance = predict_groups(variant.random, parameters, scaled, scaled.y - fixed(scaled.x), x, group)
        places = [np.flatnonzero(group == number) for number in range(len(queries))]
        mean = mean + fixed(x)
        return [scaling.predictive(mean[each], variance[each]) for each in places]

    return Fitted(predict, str(variant))


def fit_mean(variant: Variant, rows: Rows, model: Any, seed: int) -> Callable[[Array], Array]:
    """Fit fixed effects and covariance parameters together; return the fixed effects of the target environment."""
    has_environment = variant.data == "environment column"
    if not variant.mean.startswith("boosted"):
        environment = "shift and slope" if has_environment else "pooled"
        design = Design.fit(rows.x, rows.in_target, variant.mean, environment)
        model.fit(y=rows.y, X=design(rows.x, rows.in_target))
        coefficients = np.asarray(model.get_coef(), float).ravel()
        return lambda x: design(x) @ coefficients
    gpboost: Any = import_module("gpboost")

    def columns(x: Array, in_target: Array) -> Array:
        return np.column_stack([x, in_target]) if has_environment else x

    parameters = TREES | {"seed": seed}
    data = gpboost.Dataset(columns(rows.x, rows.in_target), rows.y, params={"verbose": -1})
    booster = gpboost.train(parameters, data, num_boost_round=int(variant.mean.split()[1]), gp_model=model)
    return lambda x: booster.predict(columns(x, np.ones(len(x))), ignore_gp_model=True)


def random_effects(x: Array, group: Array, random: str) -> Any:
    """Return GPBoost's model of a random intercept, and slopes or a GP, for every group."""
    gpboost: Any = import_module("gpboost")
    effects: dict[str, Any] = {"group_data": group}
    start = [NOISE, EFFECT]
    if "slopes" in random:
        effects |= {"group_rand_coef_data": x, "ind_effect_group_rand_coef": [1] * x.shape[1]}
        start += [EFFECT] * x.shape[1]
    if "GP" in random:  # clusters are independent: a GP for every group, at no great cost
        function = "matern" if x.shape[1] == 1 else "matern_ard"
        effects |= {"gp_coords": x, "cluster_ids": group, "cov_function": function, "cov_fct_shape": 1.5}
        start += [EFFECT] + [RANGE] * x.shape[1]
    model = gpboost.GPModel(
        likelihood="gaussian", num_parallel_threads=1, matrix_inversion_method="cholesky", **effects
    )
    # GPBoost finds no initial range of an input that is constant within the first group.
    model.set_optim_params(params={"init_cov_pars": np.array(start)})
    return model


def predict_groups(
    random: str, parameters: Array, rows: Rows, residual: Array, x: Array, group: Array
) -> tuple[Array, Array]:
    """Return mean and variance of readings of groups, given residuals of other readings from the fixed effects."""
    model = random_effects(rows.x, rows.group, random)
    new: dict[str, Any] = {"group_data_pred": group}
    if "slopes" in random:
        new |= {"group_rand_coef_data_pred": x}
    if "GP" in random:
        new |= {"gp_coords_pred": x, "cluster_ids_pred": group}
    predicted = model.predict(y=residual, cov_pars=parameters, predict_var=True, predict_response=True, **new)
    return np.asarray(predicted["mu"], float), np.asarray(predicted["var"], float)


def _quieten() -> None:
    """Drop GPBoost's messages about optimizers that stop early; cross-validation judges the fits."""
    logger = logging.getLogger("gpboost")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    import_module("gpboost").register_logger(logger)
