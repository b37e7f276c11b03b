"""Members of the default as files hold them: read back they are the same, and whatever does not fit is refused."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hand_made_priors import CURVE, make_label_prior, make_prior, make_terms
from metaprior.likelihoods.gaussian import Gaussian
from metaprior.likelihoods.ordinal import Ordinal
from metaprior.prior.files import Known, members_to_parts, read_members
from metaprior.prior.shapes import ONE_SCALE

TERMS = make_terms("curve", "deviation", learned_trend=True)


def make_numbers(likelihood=Gaussian(), parameters=(0.0,), n_scales=1):  # noqa: B008
    scales = ONE_SCALE._replace(factors=np.ones(n_scales), log_weights=np.full(n_scales, -np.log(n_scales)))
    return replace(make_prior(TERMS, 2), likelihood=likelihood, parameters=np.array(parameters), scales=scales)


def make_ranks(n_scales=1):
    parameters = -1.0, 0.0, 0.5
    prior = make_numbers(Ordinal(lowest=-1, n_levels=4), parameters, n_scales)
    layout = replace(prior.terms.layout, of_likelihood=((0.0,) * 3, (1.0,) * 3))
    terms = replace(prior.terms, layout=layout, theta=np.append(prior.terms.theta, parameters))
    return replace(prior, terms=terms)


def make_labels(n_rules):
    return make_label_prior(n_rules, TERMS, 2, factor=1.7, ratio=0.3)


def read_back(prior, likelihood="gaussian", n_classes=0, kinds=None, change=None):
    """Write and read a member, with a change of its description and of its arrays in between."""
    members, arrays = members_to_parts([prior])
    members = json.loads(json.dumps(members))
    if change is not None:
        change(members[0], arrays)
    own = prior.terms.scaling
    recorded = SimpleNamespace(x_mean=[], x_std=[], y_mean=float(own.y_mean), y_std=float(own.y_std))
    input_dim = len(prior.scaling.x_mean)
    return read_members(members, arrays, Known(input_dim, recorded, likelihood, n_classes, kinds))[0]


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
    assert (found.likelihood, found.exposure) == (prior.likelihood, None)
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


def with_terms(edit):
    """Change the list of terms."""
    return lambda member, arrays: member.update(terms=edit(member["terms"]))


OF_LABELS = [
    (described(labels__factor=-1.0), "members[0].labels.factor must be a number >= 1e-06"),
    (described(labels__factor=float("nan")), "members[0].labels.factor must be a number >= 1e-06"),
    (described(labels__ratio=1e9), "members[0].labels.ratio must be a number <= 1000000.0"),
    (described(labels={}), "members[0].labels lacks factor"),
    (described(labels=None), "members must be those of likelihood 'bernoulli'"),
    (described(n_inputs=3), "members must have 2 inputs, as the header says"),
    (described(color="red"), "members[0] has an unknown field color"),
    (with_terms(lambda each: [*each, {"name": "shift"}]), "effects of covariates, which the header does not name"),
    (with_terms(lambda each: each[1:]), "members have terms ['curve', 'deviation'], which do not go together"),
    (with_terms(lambda each: each[:2]), "members have terms ['line', 'curve'], which do not go together"),
    (with_terms(lambda each: each[::-1]), "members have terms ['deviation', 'curve', 'line'], which do not go"),
    (with_terms(lambda each: [*each, {"name": "wave"}]), "members[0].terms"),
    (with_terms(lambda each: [*each[:2], {"name": "deviation", "kernel": "wave"}]), "members[0].terms"),
    (with_terms(lambda each: [{"name": "line", "kernel": "rbf"}, *each[1:]]), "members have a line with kernel"),
    (with_array("class_weights", lambda _: np.ones((3, 1))), "class_weights must be float64[3, "),
    (with_array("class_weights", lambda _: np.zeros((3, 0))), "class_weights must be float64[0, "),
    (with_array("class_weights", lambda each: each * np.nan), "class_weights must have finite numbers"),
    (with_array("theta", lambda each: each + 100.0), "theta must be between -50 and 50"),
    (with_array("theta", lambda each: each[1:]), "theta must be float64["),
    (with_array("weights_root", lambda each: each[:, 1:]), "weights_root must be float64["),
    (with_array("scaling.x_std", lambda each: 0.0 * each), "scaling.x_std and scaling.y_std must be positive"),
]
OF_RANKS = [
    (described(likelihood=None), "likelihood"),
    (described(likelihood__name="poisson"), "members must be those of likelihood 'ordinal'"),
    (described(likelihood__n_levels=1), "likelihood.n_levels must be an integer >= 2"),
    (described(likelihood={"name": "ordinal"}), "likelihood lacks"),
    (described(exposure=0), "exposure must be an input column of counts"),
    (with_array("parameters", lambda each: each[1:]), "parameters must be float64[3]"),
    (with_array("parameters", lambda each: each + 1e4), "parameters must have finite numbers"),
]
OF_READINGS = [
    (with_array("parameters", lambda each: each + 500.0), "parameters must be about the size of training.scaling"),
    (with_array("scales.factors", lambda each: -each), "scales.factors must be positive, and at least 1e-50"),
    (with_array("scales.log_weights", lambda each: each - 1.0), "scales.log_weights must be positive numbers of"),
]
BAD = [(make_labels(3), "bernoulli", 3, *each) for each in OF_LABELS]
BAD += [(make_ranks(), "ordinal", 0, *each) for each in OF_RANKS]
BAD += [(make_numbers(), "gaussian", 0, *each) for each in OF_READINGS]
BAD += [(make_ranks(2), "ordinal", 0, None, "members of likelihood 'ordinal' must have one scale")]
of_shapes = replace(make_labels(0), terms=make_prior(CURVE, 2, shapes=True).terms)
BAD += [(of_shapes, "bernoulli", 0, None, "members of labels must have neither a curve nor shapes")]


@pytest.mark.parametrize(("prior", "likelihood", "n_classes", "change", "message"), BAD, ids=[each[-1] for each in BAD])
def test_what_does_not_fit_is_refused_with_its_name(prior, likelihood, n_classes, change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_back(prior, likelihood, n_classes, change=change)


def test_scales_of_tasks_are_kept():
    assert len(read_back(make_numbers(n_scales=2)).scales.factors) == 2
