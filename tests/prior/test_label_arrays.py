"""Priors of labels as arrays and plain values."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hand_made_priors import CURVE, make_label_prior, make_terms
from hand_made_priors import make_prior as prior_of_numbers
from metaprior.prior.label_arrays import from_label_arrays, label_arrays
from metaprior.schema import Mismatch
from metaprior.tasks.scaling import identity_scaling


def make_prior(n_rules):
    prior = make_label_prior(n_rules, make_terms("curve", "deviation", learned_trend=True), 2, factor=1.7, ratio=0.3)
    return replace(prior, terms=replace(prior.terms, scaling=identity_scaling(2)))


def read_back(prior, n_shared, **changed):
    description, arrays = label_arrays(prior)
    return from_label_arrays(json.loads(json.dumps(description)), {**arrays, **changed}, 2, None, n_shared)


def predict(prior, n_classes):
    rng = np.random.default_rng(1)
    x, queries = rng.normal(size=(2, 6, 2)), rng.normal(size=(2, 3, 2))
    y = rng.integers(0, n_classes, (2, 6)).astype(float)
    posterior = prior.condition_labels(x, y, np.ones(y.shape), np.full(2, n_classes))
    return prior.class_log_probabilities(posterior, queries)


@pytest.mark.parametrize(("n_rules", "n_shared"), [(0, None), (0, 3), (1, 2), (3, 3)])
def test_a_prior_read_back_predicts_the_same(n_rules, n_shared):
    prior = make_prior(n_rules)
    found = read_back(prior, n_shared)
    assert (found.factor, found.ratio) == (prior.factor, prior.ratio)
    np.testing.assert_array_equal(found.weights, prior.weights)
    np.testing.assert_array_equal(predict(found, n_shared or 4), predict(prior, n_shared or 4))


@pytest.mark.parametrize(("n_rules", "n_shared"), [(1, 3), (3, 2), (2, 3), (3, None), (1, None)])
def test_rules_must_be_those_of_the_classes(n_rules, n_shared):
    with pytest.raises(Mismatch, match="class_weights"):
        read_back(make_prior(n_rules), n_shared)


@pytest.mark.parametrize("change", [{"factor": -1.0}, {"factor": float("nan")}, {"ratio": -0.1}, {"ratio": 1e9}, {}])
def test_a_calibration_out_of_range_is_refused(change):
    description, arrays = label_arrays(make_prior(0))
    description["labels"] = {**description["labels"], **change} if change else {}
    with pytest.raises(Mismatch, match="labels"):
        from_label_arrays(description, arrays, 2, None, 3)


@pytest.mark.parametrize("weights", [np.full((3, 1), 1.0), np.zeros((3, 0)), np.full((3, 43), np.nan)])
def test_rules_of_another_shape_or_of_no_numbers_are_refused(weights):
    with pytest.raises(Mismatch, match="class_weights"):
        read_back(make_prior(3), 3, class_weights=weights)


def test_deformations_and_shapes_are_for_numbers():
    prior = make_prior(0)
    terms = prior_of_numbers(CURVE, 2, shapes=True).terms
    description, arrays = label_arrays(replace(prior, terms=terms))
    with pytest.raises(Mismatch, match="neither a deformation nor shapes"):
        from_label_arrays(description, arrays, 2, None, 3)
