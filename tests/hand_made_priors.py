"""Hierarchical priors with all kinds of terms and random numbers, made without a fit."""

import importlib.util
from dataclasses import replace

import numpy as np

from metaprior import MetaGPRegressor
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.predict.adapted import AdaptedClassifier, AdaptedRegressor, AdaptedRegressors, adapt_labels
from metaprior.predict.batches import Posteriors
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.columns import Columns
from metaprior.prior.features import draw_network
from metaprior.prior.fitted import FittedTerms, Prior, noise_parameters
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.layout import Layout
from metaprior.prior.modes import CommonCurve
from metaprior.prior.process import KERNELS
from metaprior.prior.shapes import ONE_SCALE, TaskScales
from metaprior.prior.terms import N_FEATURES, TERMS, Deviation, Line, n_deformations
from metaprior.tasks.columns import Features
from metaprior.tasks.labels import ClassRules
from metaprior.tasks.scaling import Scaling, with_kinds
from metaprior.tasks.types import Ragged

THREE_SCALES = TaskScales(np.array([0.4, 1.0, 2.5]), np.log([0.2, 0.5, 0.3]), False)
NOISE_SCALES = THREE_SCALES._replace(noise_only=True)


def make_terms(*names, kernel="rbf", **line):
    """Return a line and terms of other names, in the order of theta."""
    given = {"line": Line(**line), "deviation": Deviation(kernel)}
    return tuple(given.get(name) or kind() for name, kind in TERMS.items() if name in ("line", *names))


SMOOTH = make_terms("curve", "deviation")
CURVE = make_terms("curve", "deviation", "deformation")
LINES = make_terms()
EVERYTHING = make_terms("curve", "deviation", "deformation", "features", "environment", correlated=True)
ALL_TERMS = {
    "line": LINES,
    "correlated line": make_terms(correlated=True),
    "learned trend": make_terms(learned_trend=True),
    "environment": make_terms("environment"),
    "deviation": SMOOTH,
    **{f"deviation, {name}": make_terms("curve", "deviation", kernel=name) for name in KERNELS if name != "rbf"},
    "deformation": CURVE,
    "features": make_terms("curve", "deviation", "features"),
    "everything": EVERYTHING,
}
TERMS_OF_COVARIATES = {
    "shift": make_terms("shift"),
    "bend": make_terms("shift", "bend"),
    "curved": make_terms("shift", "curved"),
    "bent curve": make_terms("curve", "deviation", "shift", "bend"),
    "everything": (*EVERYTHING[:-1], *make_terms("shift", "bend", "curved", "environment")[1:]),
}


def make_prior(terms=SMOOTH, columns=1, shapes=False, scales=ONE_SCALE, seed=0, x_map=False, kinds=None):
    """Return a prior whose theta is near its hyper-prior mean, with random weights of the common mean.

    `columns` are those of inputs, or their number; `kinds` those of the columns of X.
    """
    rng, n_columns = np.random.default_rng(seed), columns if kinds is None else len(kinds.levels)
    columns = columns if isinstance(columns, Columns) else Columns.of(n_columns, kinds)
    layout, input_dim = Layout(terms, columns), columns.n_inputs
    theta = layout.center + 0.2 * layout.spread * rng.normal(size=len(layout.center))
    points = rng.uniform(-2.0, 2.0, (5, input_dim))
    n_weights = layout.n_weights(len(points))
    n_functions = 1 + input_dim + len(points) + (n_deformations(columns) if layout.has("deformation") else 0)
    width = n_columns if kinds is None else sum(kinds.widths)
    mapped = np.eye(width) + 0.2 * rng.normal(size=(width, width)) if x_map else None
    scaling = Scaling(rng.normal(size=n_columns), rng.uniform(0.5, 2.0, n_columns), *rng.uniform(1.0, 3.0, 2), mapped)
    if kinds is not None:
        scaling = with_kinds(scaling, kinds, rng.uniform(0.0, 0.5, width))
    fitted = FittedTerms(
        scaling,
        layout,
        theta,
        points,
        weights=0.3 * rng.normal(size=n_weights),
        weights_root=0.1 * np.tril(rng.normal(size=(n_weights, n_weights))),
        curve=make_curve(rng, points, columns) if layout.has("deformation") else None,
        shape_root=0.3 * rng.normal(size=(n_functions, n_functions)) if shapes else None,
        network=draw_network(input_dim, N_FEATURES) if layout.has("features") else None,
    )
    noise = noise_parameters(layout.noise_variance(theta), scaling)
    return Prior(fitted, Gaussian(), noise, scales)


def make_curve(rng, points, columns):
    """Draw a common curve."""
    lengths = rng.uniform(0.5, 1.5, points.shape[1] if columns.ard else 1)
    return CommonCurve(rng.normal(size=1 + points.shape[1]), rng.normal(size=len(points)), points, lengths)


def make_label_prior(n_rules=0, terms=SMOOTH, input_dim=1, seed=0, **calibration):
    """Return a prior of labels, with a common rule for `n_rules` latent functions."""
    fitted = make_prior(terms, input_dim, seed=seed, x_map=True).terms
    weights = np.random.default_rng(seed).normal(size=(n_rules, len(fitted.weights)))
    scaling = fitted.scaling._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
    return LabelPrior(replace(fitted, scaling=scaling), weights, **calibration)


def as_meta(*priors, weights=None, spread=1.0, levels=(), covariates=(), names=None) -> MetaGPRegressor:
    """Return an estimator, with the levels of its columns if some are categories or covariates."""
    meta = MetaGPRegressor()
    meta.model_ = as_regressor(*priors, weights=weights, spread=spread)._posteriors.model
    meta.n_features_in_ = meta.model_.input_dim
    meta.likelihood_, meta.column_levels_, meta.covariates_ = "gaussian", levels, covariates
    if names is not None:
        meta.feature_names_in_ = np.array(names, object)
    return meta


def as_regressor(*priors, weights=None, spread=1.0) -> AdaptedRegressor:
    """Return a task without readings."""
    shares = np.full(len(priors), 1 / len(priors)) if weights is None else np.asarray(weights)
    model = Ensemble(tuple(priors), shares, spread)
    input_dim = model.input_dim
    nothing = Ragged.of([np.empty((0, input_dim))], (input_dim,)), Ragged.of([np.empty(0)])
    return AdaptedRegressors(Posteriors(model, *nothing))[0]


def as_classifier(*priors, rules=ClassRules()) -> AdaptedClassifier:  # noqa: B008
    """Return a task without labels."""
    model, input_dim = Ensemble(tuple(priors), np.full(len(priors), 1 / len(priors))), priors[0].input_dim
    nothing = Ragged.of([np.empty((0, input_dim))], (input_dim,))
    return adapt_labels(model, nothing, [np.empty(0)], "float64", Features(input_dim), rules, "adapt", True)[0]


def export(task, folder, name="exported"):
    """Return the module that a task is exported as."""
    path = folder / f"{name}.py"
    task.export(path)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
