"""Hierarchical priors with all kinds of terms and random numbers, made without a fit."""

import numpy as np
from metaprior.prior.hierarchical_prior import HierarchicalPrior

from metaprior import MetaGPRegressor
from metaprior.predict.adapted import AdaptedRegressor, AdaptedRegressors
from metaprior.predict.adapted_labels import AdaptedClassifier, AdaptedClassifiers
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.features import draw_network
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.layout import Layout, Parts
from metaprior.prior.modes import CommonCurve
from metaprior.prior.task_scales import ONE_SCALE, TaskScales
from metaprior.tasks.class_rules import ClassRules
from metaprior.tasks.padding import Ragged
from metaprior.tasks.scaling import Scaling, with_kinds

SMOOTH = Parts(smooth=True)
THREE_SCALES = TaskScales(np.array([0.4, 1.0, 2.5]), np.log([0.2, 0.5, 0.3]), False)
NOISE_SCALES = THREE_SCALES._replace(noise_only=True)


def make_prior(parts=SMOOTH, input_dim=1, shapes=False, scales=ONE_SCALE, seed=0, x_map=False, kinds=None):
    """Return a prior whose theta is near its hyper-prior mean, with random weights of the common mean.

    With `kinds` of columns they decide about the number of inputs.
    """
    rng, layout, columns = np.random.default_rng(seed), Layout(parts, input_dim), input_dim
    if kinds is not None:
        input_dim, columns = sum(kinds.input_widths), len(kinds.levels)
        layout = Layout(parts, input_dim, widths=kinds.input_widths, covariates=kinds.covariate_widths)
    theta = layout.center + 0.2 * layout.spread * rng.normal(size=len(layout.center))
    points = rng.uniform(-2.0, 2.0, (5, input_dim))
    n_weights = layout.n_weights(len(points))
    n_functions = 1 + input_dim + layout.n_curve + len(points)
    width = input_dim if kinds is None else sum(kinds.widths)
    mapped = np.eye(width) + 0.2 * rng.normal(size=(width, width)) if x_map else None
    scaling = Scaling(rng.normal(size=columns), rng.uniform(0.5, 2.0, columns), *rng.uniform(1.0, 3.0, 2), mapped)
    if kinds is not None:
        scaling = with_kinds(scaling, kinds, rng.uniform(0.0, 0.5, width))
    curve = None
    if parts.curve:
        lengths = rng.uniform(0.5, 1.5, input_dim if layout.ard else 1)
        curve = CommonCurve(rng.normal(size=1 + input_dim), rng.normal(size=len(points)), points, lengths)
    return HierarchicalPrior(
        scaling,
        layout,
        theta,
        points,
        weights=0.3 * rng.normal(size=n_weights),
        weights_root=0.1 * np.tril(rng.normal(size=(n_weights, n_weights))),
        noise_variance=layout.noise_variance(theta),
        scales=scales,
        curve=curve,
        shape_root=0.3 * rng.normal(size=(n_functions, n_functions)) if shapes else None,
        network=draw_network(input_dim, layout.n_features) if parts.features else None,
    )


def make_label_prior(n_rules=0, parts=SMOOTH, input_dim=1, seed=0, **calibration):
    """Return a prior of labels, with a common rule for `n_rules` latent functions."""
    process = make_prior(parts, input_dim, seed=seed, x_map=True)
    weights = np.random.default_rng(seed).normal(size=(n_rules, len(process.weights)))
    scaling = process.scaling._replace(y_mean=np.asarray(0.0), y_std=np.asarray(1.0))
    return LabelPrior(HierarchicalPrior(**{**vars(process), "scaling": scaling}), weights, **calibration)


def as_meta(*priors, weights=None, spread=1.0, levels=(), covariates=(), names=None) -> MetaGPRegressor:
    """Return an estimator, with the levels of its columns if some are categories or covariates."""
    meta = MetaGPRegressor()
    meta.model_ = as_regressor(*priors, weights=weights, spread=spread)._posteriors.model
    meta.n_features_in_ = meta.model_.input_dim
    meta.column_levels_, meta.covariates_ = levels, covariates
    if names is not None:
        meta.feature_names_in_ = np.array(names, object)
    return meta


def as_regressor(*priors, weights=None, spread=1.0) -> AdaptedRegressor:
    """Return a task without readings."""
    shares = np.full(len(priors), 1 / len(priors)) if weights is None else np.asarray(weights)
    model = Ensemble(tuple(priors), shares, spread)
    input_dim = model.input_dim
    nothing = Ragged.of([np.empty((0, input_dim))], (input_dim,)), Ragged.of([np.empty(0)])
    return AdaptedRegressors(model, *nothing, "float64")[0]


def as_classifier(*priors, rules=ClassRules()) -> AdaptedClassifier:  # noqa: B008
    """Return a task without labels."""
    model, input_dim = Ensemble(tuple(priors), np.full(len(priors), 1 / len(priors))), priors[0].input_dim
    nothing = Ragged.of([np.empty((0, input_dim))], (input_dim,)), Ragged.of([np.empty(0)])
    classes, _ = rules.of_task(np.empty(0), "adapt")
    return AdaptedClassifiers(model, *nothing, [classes], "float64", None, rules)[0]
