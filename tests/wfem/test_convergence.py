"""Laplace's approximation that misses the mode of labels is reported, in fit and in predict."""

import warnings

import jax
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from metaprior.tasks.types import Task
from metaprior.wfem import RBFKernel, Training, WFEMClassifier, ZeroMean, laplace
from metaprior.wfem import fit as fitting
from metaprior.wfem.hyperprior import merge
from metaprior.wfem.likelihoods import Bernoulli
from metaprior.wfem.loop import Result
from metaprior.wfem.objective import full_batch, value_and_score
from metaprior.wfem.runs import Settings, make_run, make_scaling

SIZE = 20


def make_tasks(n_tasks, seed, size=SIZE):
    """Labels without a rule: under a kernel of scale 1000 their modes take five to seven steps."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(size, 2)), (rng.random(size) < 0.5).astype(int)) for _ in range(n_tasks)]


def fit(output_scale, size=SIZE, **settings):
    given = {"temperature": "bayes", "training": Training(n_steps=2, **settings), "random_state": 0}
    meta = WFEMClassifier(RBFKernel(output_scale=output_scale), "zero", **given)
    return meta.fit(make_tasks(6, 0, size), make_tasks(3, 1, size))


def test_a_fit_says_that_modes_were_missed_and_what_to_try(monkeypatch):
    monkeypatch.setattr(laplace, "MAX_STEPS", 4)
    with pytest.warns(ConvergenceWarning, match=r"tasks with up to \d+% of the weight.*dtype='float64'"):
        fit(1e6, size=12, dtype="float32")  # a size that no other test has compiled with all steps


def test_the_weight_of_missed_modes_is_that_of_their_tasks(monkeypatch):
    monkeypatch.setattr(laplace, "MAX_STEPS", 6)
    environments = [[Task(x, y.astype(float)) for x, y in make_tasks(n, seed)] for n, seed in ((6, 0), (3, 1))]
    kernel = RBFKernel(output_scale=1e3)
    settings = Settings(mean=ZeroMean(), kernel=kernel, likelihood=Bernoulli(), standardize=False)
    weights = (0.2, 0.8)
    run = make_run(environments, weights, make_scaling(environments, weights, settings), settings, 0)
    theta = jax.tree.map(lambda leaf: leaf[0], run.particles)
    batches = full_batch(run.problem)
    _, _, unconverged = jax.jit(lambda theta: value_and_score(theta, run.problem, batches))(theta)
    prior = merge(theta, run.problem.rest)
    find_mode = jax.jit(lambda x, y, mask: laplace.find_mode(prior, prior.points(x), y, mask))
    expected, n_missed = 0.0, 0
    for batch, of_batch in batches:
        for x, y, mask, weight in zip(batch.x, batch.y, batch.mask, of_batch, strict=True):
            if not find_mode(x, y, mask).converged:
                expected, n_missed = expected + float(weight), n_missed + 1
    assert 0 < n_missed < 9
    assert float(unconverged) == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def compiled_anew():
    """Programs with another number of Newton's steps: not those of other tests, and not for them."""
    jax.clear_caches()
    yield
    jax.clear_caches()


def test_predictions_say_it_once_and_name_the_task(monkeypatch, compiled_anew):
    meta = fit(1.0)
    rng, size = np.random.default_rng(0), 11
    contexts = [*make_tasks(3, 2, size), (np.zeros((0, 2)), np.zeros(0, int))]
    queries = [rng.normal(size=(2, 2))] * 4
    monkeypatch.setattr(laplace, "MAX_STEPS", 0)
    many = meta.adapt_many(contexts)
    with pytest.warns(ConvergenceWarning, match=r"for task 0 and 2 more \(counted from 0\)") as caught:
        first = many.predict_proba(queries)
    assert len(caught) == 1
    np.testing.assert_array_equal(np.stack(many.predict_proba(queries)), np.stack(first))  # no second warning
    with pytest.warns(ConvergenceWarning, match=r"for task 0 \(counted from 0\): .*extreme values of X\.$"):
        meta.adapt(*contexts[0]).predict_proba(queries[0])


@pytest.mark.parametrize(
    ("unconverged", "best_step", "warned"),
    [
        ([0.0, 0.2, 0.0], 3, True),  # not only the last step
        ([0.0, 0.0, 0.2], 2, False),  # after the step that is kept
        ([0.2] + [0.0] * 100, 101, False),  # long before
        ([], 0, False),
    ],
)
def test_the_last_steps_before_the_one_that_is_kept_count(unconverged, best_step, warned):
    trace = np.array(unconverged)
    result = Result({}, np.zeros_like(trace), trace, np.empty(0), np.array(best_step))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitting._warn_unconverged([result])
    assert len(caught) == int(warned)
