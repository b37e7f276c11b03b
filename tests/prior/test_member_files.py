"""Members of the default as files hold them: read back they are the same, and whatever does not fit is refused."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from metaprior.predict.response_mixtures import make_response
from metaprior.prior.hierarchical_prior import HierarchicalPrior
from metaprior.prior.response_prior import ResponsePrior
from small_problems import make_tasks, make_theta

from metaprior.predict.ensemble import Ensemble
from metaprior.prior.blocks import place_points
from metaprior.prior.files import Known, model_parts, read_model
from metaprior.prior.label_prior import LabelPrior
from metaprior.prior.layout import Layout, Parts
from metaprior.prior.task_scales import ONE_SCALE
from metaprior.tasks.scaling import identity_scaling


def make_process(n_scales=1):
    layout, points = Layout(Parts(smooth=True), 2, 0.0, learned_trend=True), place_points(make_tasks(2))
    n, rng = 3 + len(points), np.random.default_rng(0)
    scales = ONE_SCALE._replace(factors=np.ones(n_scales), log_weights=np.full(n_scales, -np.log(n_scales)))
    arrays = make_theta(layout, seed=1), points, rng.normal(size=n), 0.1 * rng.normal(size=(n, n))
    return HierarchicalPrior(identity_scaling(2), layout, *arrays, 1.0, scales)


def make_labels(n_rules, **process):
    own = make_process(**process)
    return LabelPrior(own, np.random.default_rng(1).normal(size=(n_rules, len(own.weights))), factor=1.7, ratio=0.3)


def make_ranks(**process):
    return ResponsePrior(make_process(**process), make_response("ordinal", 4, -1), np.array([-1.0, 0.0, 0.5]))


def read_back(prior, likelihood="gaussian", n_classes=0, kinds=None, change=None):
    """Write and read a member, with a change of its description and of its arrays in between."""
    members, arrays = model_parts(Ensemble((prior,), np.ones(1)))
    members = json.loads(json.dumps(members))
    if change is not None:
        change(members[0], arrays)
    own = getattr(prior, "process", prior).scaling
    recorded = SimpleNamespace(x_mean=[], x_std=[], y_mean=float(own.y_mean), y_std=float(own.y_std))
    input_dim = len(prior.scaling.x_mean)
    return read_model(members, arrays, Known(input_dim, recorded, likelihood, n_classes, kinds)).members[0]


def class_probabilities(prior, n_classes):
    rng = np.random.default_rng(1)
    x, queries = rng.normal(size=(2, 6, 2)), rng.normal(size=(2, 3, 2))
    y = rng.integers(0, n_classes, (2, 6)).astype(float)
    posterior = prior.condition_labels(x, y, np.ones(y.shape), np.full(2, n_classes))
    return prior.class_log_probabilities(posterior, queries)


@pytest.mark.parametrize(("n_rules", "n_shared"), [(0, 0), (0, 3), (1, 2), (3, 3)])
def test_a_prior_of_labels_read_back_predicts_the_same(n_rules, n_shared):
    prior = make_labels(n_rules)
    found = read_back(prior, "bernoulli", n_shared)
    assert (found.factor, found.ratio) == (prior.factor, prior.ratio)
    np.testing.assert_array_equal(found.weights, prior.weights)
    np.testing.assert_array_equal(*(class_probabilities(each, n_shared or 4) for each in (found, prior)))


def test_a_prior_of_ranks_read_back_is_the_same():
    prior = make_ranks()
    found = read_back(prior, "ordinal")
    assert (found.response, found.exposure) == (prior.response, None)
    np.testing.assert_array_equal(found.parameters, prior.parameters)


@pytest.mark.parametrize(("n_rules", "n_shared"), [(1, 3), (3, 2), (2, 3), (3, 0), (1, 0)])
def test_rules_must_be_those_of_the_classes(n_rules, n_shared):
    with pytest.raises(ValueError, match="class_weights must be float64"):
        read_back(make_labels(n_rules), "bernoulli", n_shared)


def described(**changes):
    """Change the description: with `labels__factor=-1.0` the factor of labels."""

    def change(member, arrays):
        for name, value in changes.items():
            *outer, last = name.split("__")
            (member[outer[0]] if outer else member)[last] = value

    return change


def with_array(name, edit):
    return lambda member, arrays: arrays.update({f"member0.{name}": edit(arrays[f"member0.{name}"])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (described(labels__factor=-1.0), "members[0].labels.factor must be a number >= 1e-06"),
        (described(labels__factor=float("nan")), "members[0].labels.factor must be a number >= 1e-06"),
        (described(labels__ratio=1e9), "members[0].labels.ratio must be a number <= 1000000.0"),
        (described(labels={}), "members[0].labels lacks factor"),
        (described(labels=None), "members must be those of likelihood 'bernoulli'"),
        (described(input_dim=3), "members must have 2 input columns"),
        (described(parts__other=True), "members have parts ['other'] that this version does not know"),
        (described(parts__bend=True), "members have effects of covariates, which the header does not name"),
        (described(color="red"), "members[0] has an unknown field color"),
        (with_array("class_weights", lambda _: np.ones((3, 1))), "class_weights must be float64[3, "),
        (with_array("class_weights", lambda _: np.zeros((3, 0))), "class_weights must be float64[0, "),
        (with_array("class_weights", lambda each: each * np.nan), "class_weights must have finite numbers"),
        (with_array("theta", lambda each: each + 100.0), "theta must have finite numbers of at most 50"),
        (with_array("weights_root", lambda each: each[:, 1:]), "weights_root must be float64["),
        (with_array("scales.factors", lambda each: -each), "scales.factors must be positive, and at least 1e-50"),
        (with_array("scales.log_weights", lambda each: each - 1.0), "scales.log_weights must be positive numbers of"),
        (with_array("scaling.x_std", lambda each: 0.0 * each), "scaling.x_std and scaling.y_std must be positive"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_back(make_labels(3), "bernoulli", 3, change=change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (described(response=None), "members must be those of likelihood 'ordinal'"),
        (described(response__name="poisson"), "members must be those of likelihood 'ordinal'"),
        (described(response__n_levels=1), "members[0].response.n_levels must be an integer >= 2"),
        (described(response={"name": "ordinal", "exposure": None}), "members must have levels if they predict ranks"),
        (described(response__exposure=0), "response.exposure must be an input column of counts"),
        (with_array("response_parameters", lambda each: each[1:]), "response_parameters must be float64[3]"),
        (with_array("response_parameters", lambda each: each + 1e4), "response_parameters must have finite numbers"),
    ],
)
def test_what_does_not_fit_to_ranks_is_refused_with_its_name(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_back(make_ranks(), "ordinal", change=change)


def test_scales_of_tasks_are_for_readings():
    assert len(read_back(make_process(n_scales=2)).scales.factors) == 2
    for prior, likelihood in ((make_labels(0, n_scales=2), "bernoulli"), (make_ranks(n_scales=2), "ordinal")):
        with pytest.raises(ValueError, match="must have one scale"):
            read_back(prior, likelihood)
    with_shapes = replace(make_process(), shape_root=np.eye(3 + len(make_process().points)))
    with pytest.raises(ValueError, match="neither a curve nor shapes"):
        read_back(replace(make_labels(0), process=with_shapes), "bernoulli")
