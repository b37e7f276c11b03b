"""Inputs to draw predictions at.

Plots of predictions: for one task given its context, and of the prior.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaprior.checks import check_integer, counted, draw_seed
from metaprior.plots.classes import draw_classes
from metaprior.plots.style import (
    BAND,
    DIAGONAL,
    DOTS,
    LINE,
    POINTS,
    RINGS,
    as_drawn,
    grid_over,
    legend,
    plot_posterior,
    prior_range,
    resolve_axes,
    tidy,
)
from metaprior.predict.ensemble import predicts_labels
from metaprior.tasks.columns import no_extrapolation_warnings
from metaprior.tasks.labels import as_labels
from metaprior.tasks.types import Task, as_inputs, as_numbers, as_task

N_DRAWN = 2000  # functions, for the band of counts and ranks


class Band(NamedTuple):
    """Which band of new readings is drawn."""

    coverage: Any
    method: str

    def of(self, adapted: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return its ends."""
        return adapted.interval(x, self.coverage, method=self.method)


@no_extrapolation_warnings()
def plot_prediction(
    meta: Any,
    X_context: Any,
    y_context: Any,
    X_query: Any = None,
    y_query: Any = None,
    *,
    coverage: Any = 0.9,
    method: str = "model",
    names: Sequence[str] | None = None,
    axes: Any = None,
) -> Any:
    """Plot the prediction for one task given its context.

    With one input column: mean and central band of new observations over a grid. With several: mean and interval at
    every query along the first column; if the y of queries are given, mean and interval of every query against its y.
    For labels, with one input column: the probability of the second of two classes, or of each of more. With two: a map
    of the most probable class. With more: the probability at every query along the first column.

    Parameters
    ----------
    meta : fitted MetaGPRegressor or MetaGPClassifier
    X_context, y_context : array-like
        The context, which may be empty.
    X_query, y_query : array-like, optional
        Queries, drawn as rings if y_query is given.
    coverage : float, default=0.9
        Probability of the band or interval.
    method : "model" or "conformal", default="model"
        Which band, as for `interval` of an adapted task.
    names : (str, str), optional
        Of input and output, for the axes.
    axes : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    labeled, features, input_dim = predicts_labels(meta), meta.features_, meta.n_features_in_
    outputs = as_labels if labeled else as_numbers
    context = as_task(X_context, y_context, "context", features, outputs)
    if X_query is None and y_query is not None:
        raise ValueError("y_query was given without X_query: pass both, or neither.")
    x_query = as_inputs([] if X_query is None else X_query, "query", features)
    queries = None if y_query is None else as_task(X_query, y_query, "query", features, outputs)
    if names is not None and (isinstance(names, str) or len(names) != 2):
        raise ValueError(f"names must be a pair (input name, output name); got {names!r}.")
    names = None if names is None else tuple(map(as_drawn, names))
    if input_dim > (2 if labeled else 1) and not len(x_query):
        raise ValueError(f"With {input_dim} input columns predictions are drawn at queries: pass X_query.")
    axes = resolve_axes(axes, (5.2, 4.8) if input_dim > 1 else (6.4, 4.2))
    if labeled:
        draw_classes(axes, meta, context, x_query, queries, names)
    else:
        _draw_readings(axes, meta, context, x_query, queries, Band(coverage, method), names or ("x", "y"))
    if not len(context.y) and not axes.get_title():
        axes.set_title("Without context: the prediction of the prior", fontsize=10)
    tidy(axes)
    legend(axes, below=labeled, **({"ncols": 3} if labeled else {}))
    return axes


@no_extrapolation_warnings()
def plot_prior_samples(
    meta: Any, *, x: Any = None, n_samples: Any = 10, random_state: Any = 0, column: Any = 0, axes: Any = None
) -> Any:
    """Plot noise-free functions drawn from the learned prior, with its mean and 90% band.

    Of counts these are rates, for an exposure of one, and of ranks expected levels; the line is then the median.

    Parameters
    ----------
    meta : fitted MetaGPRegressor
    x : array-like of shape (n,), optional
        Inputs to draw at. Default: a grid over the meta-training inputs.
    n_samples : int, default=10
    random_state : int, RandomState or None, default=0
    column : int, default=0
        The input column that varies; the others stay at their mean.
    axes : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes
    """
    if predicts_labels(meta):
        raise ValueError(
            "plot_prior_samples needs a MetaGPRegressor: labels have probabilities, not values to draw. With one input "
            "column, plot_prediction(meta, [], []) shows the probabilities of the prior."
        )
    column = check_integer("column", column, least=0)
    if column >= meta.n_features_in_:
        raise ValueError(f"column must be less than {meta.n_features_in_}, the number of inputs; got {column}.")
    grid = prior_range(meta, column) if x is None else np.sort(as_inputs(x, "x", 1)[:, 0])
    if len(grid) == 0:
        raise ValueError("x is empty: there is nothing to draw at.")
    inputs = np.tile(meta.model_.members[0].scaling.x_mean, (len(grid), 1))
    inputs[:, column] = grid
    if meta.features_.exposure is not None:
        inputs[:, meta.features_.exposure] = 1.0
    prior, likelihood = meta.adapt([], []), meta.model_.likelihood
    in_units = _expected_draws(prior, inputs, meta.model_) if likelihood.discrete else None
    if in_units is None:
        samples = prior.sample(inputs, n_samples, latent=True, random_state=random_state)
    else:
        samples = in_units(check_integer("n_samples", n_samples, least=0), draw_seed(random_state))
    axes = resolve_axes(axes)
    for i, sample in enumerate(samples):
        label = counted(len(samples), "sample") if i == 0 else None
        axes.plot(grid, sample, color=POINTS, linewidth=1.0, alpha=0.7, label=label)
    if in_units is None:
        plot_posterior(axes, grid, prior.predictive(inputs, latent=True), np.empty(0), np.empty(0))
    else:
        lower, median, upper = np.quantile(in_units(N_DRAWN, 0), [0.05, 0.5, 0.95], axis=0)
        axes.fill_between(grid, lower, upper, color=BAND, alpha=0.6, linewidth=0, label="90% band")
        axes.plot(grid, median, color=LINE, linewidth=1.8, label="median")
    several = meta.n_features_in_ > 1
    axes.set_xlabel(f"input column {column} (the others at their mean)" if several else "x")
    axes.set_ylabel(likelihood.without_noise + " per unit of exposure" * (meta.features_.exposure is not None))
    axes.set_title("The learned prior, before any observation", fontsize=11)
    axes.margins(x=0)
    legend(axes)
    return axes


def _expected_draws(prior: Any, x: np.ndarray, model: Any) -> Callable[[int, int], np.ndarray]:
    """Return a function that draws the expected counts or levels given the latent function, in the units of y."""
    likelihood, parameters = model.likelihood, model.parameters

    def expected(t: np.ndarray, drawn: np.ndarray, _: np.random.Generator) -> np.ndarray:
        return likelihood.moments(t, np.zeros_like(t), parameters[drawn][:, None])[0]

    (latent,) = prior._joint(x, latent=True)
    latent = latent._replace(observe=expected)
    return lambda n, seed: latent.sample(n, np.random.default_rng(seed))


def _draw_readings(
    axes: Any, meta: Any, context: Task, x_query: np.ndarray, queries: Task | None, band: Band, names: Sequence[str]
) -> None:
    if x_query.shape[1] == 1:
        _draw_over_grid(axes, meta, context, x_query, queries, band, names)
    elif queries is not None:
        _draw_against_observed(axes, meta.adapt(*context), queries, band, names[1])
    else:
        _draw_along_first(axes, meta.adapt(*context), context, x_query, band, names)


def _draw_over_grid(
    axes: Any, meta: Any, context: Task, x_query: np.ndarray, queries: Task | None, band: Band, names: Sequence[str]
) -> None:
    grid = grid_over(meta, 0, context.x, x_query)
    adapted = meta.adapt(*context)
    of_grid = {"coverage": band.coverage, "band": band.of(adapted, grid)}
    plot_posterior(axes, grid, adapted.predictive(grid), context.x[:, 0], context.y, **of_grid)
    if queries is not None and len(queries.y):
        axes.plot(queries.x[:, 0], queries.y, label="queries", **RINGS)
        axes.set_title(_score(adapted, queries, band), fontsize=10)
    axes.set(xlabel=names[0], ylabel=names[1])
    axes.margins(x=0)


def _draw_along_first(
    axes: Any, adapted: Any, context: Task, x_query: np.ndarray, band: Band, names: Sequence[str]
) -> None:
    predictive, first = adapted.predictive(x_query), x_query[:, 0]
    axes.vlines(first, *band.of(adapted, x_query), color=BAND, linewidth=1.6, label=f"{band.coverage:.0%} interval")
    axes.plot(first, predictive.mean(), label="mean", **{**DOTS, "color": LINE})
    if len(context.y):
        axes.plot(context.x[:, 0], context.y, label="context", **DOTS)
    axes.set(xlabel=f"{names[0]}, one of {x_query.shape[1]} inputs", ylabel=names[1])


def _draw_against_observed(axes: Any, adapted: Any, queries: Task, band: Band, name: str) -> None:
    predictive = adapted.predictive(queries.x)
    ends, label = band.of(adapted, queries.x), f"{band.coverage:.0%} interval"
    axes.vlines(queries.y, *ends, color=BAND, linewidth=1.6, label=label)
    axes.plot(queries.y, predictive.mean(), label="mean", **{**DOTS, "color": LINE})
    middle = float(np.mean(queries.y))
    axes.axline((middle, middle), slope=1.0, label="predicted = observed", **DIAGONAL)
    axes.set(xlabel=f"{name}, observed", ylabel=f"{name}, predicted")
    axes.set_title(_score(adapted, queries, band), fontsize=10)


def _score(adapted: Any, queries: Task, band: Band) -> str:
    predictive = adapted.predictive(queries.x)
    lower, upper = band.of(adapted, queries.x)
    inside = np.mean((lower <= queries.y) & (queries.y <= upper))
    error = np.sqrt(np.mean((predictive.mean() - queries.y) ** 2))
    return f"RMSE {error:.3g}, {inside:.0%} of {len(queries.y)} queries inside the {band.coverage:.0%} interval"
