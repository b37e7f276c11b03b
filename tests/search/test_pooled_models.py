"""The mixed model and the hierarchical GP that a prior is compared with."""

import numpy as np
import pytest
from searches import search_for, training_tasks

from metaprior.predict.batches import predict_tasks
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.families import fit_families, fit_mixed_model
from metaprior.prior.terms import Line
from metaprior.search import numbers as module
from metaprior.search.numbers import HIERARCHICAL_GP, MIXED_MODEL, Numbers, pooled_models, pooled_option
from metaprior.search.search import Option
from metaprior.tasks.types import Task, TestTask

TARGET_ONLY = [Option((0.0, 1.0))]
POOLED = Option((0.5, 0.5))


def draw_tasks(n_tasks, n_readings, rng, curved=False):
    """Lines with an intercept and a slope of their own, and curves around them."""
    tasks = []
    for _ in range(n_tasks):
        x, own = rng.uniform(-1, 1, (n_readings, 1)), rng.normal(size=2) * [0.8, 0.5]
        y = 1 + 2 * x[:, 0] + own[0] + own[1] * x[:, 0] + 0.3 * rng.normal(size=n_readings)
        if curved:
            y += np.sin(4 * x[:, 0]) + 0.5 * np.sin(3 * x[:, 0] + rng.uniform(0, 6))
        tasks.append(Task(x, y))
    return tasks


def as_test(task, n_context=4):
    return TestTask(task.x[:n_context], task.y[:n_context], task.x[n_context:], task.y[n_context:])


def moments(prior, tests):
    predictive, _, _ = predict_tasks(Ensemble((prior,), np.ones(1)), tests)
    return predictive.mean(), predictive.std()


def test_the_mixed_model_has_correlated_lines_and_one_noise():
    """`tests/prior/test_mixed_model.py` compares it with statsmodels."""
    tasks = draw_tasks(30, 8, np.random.default_rng(0))
    prior = pooled_models(Numbers(), [[], tasks], 1, TARGET_ONLY)[MIXED_MODEL]
    assert prior.terms.layout.terms == (Line(correlated=True),)
    assert prior.n_components == 1
    given = pooled_models(Numbers(noise_std=0.5), [[], tasks], 1, TARGET_ONLY)[MIXED_MODEL]
    assert given.noise_variance * given.scaling.y_std**2 == pytest.approx(0.25)


def test_the_hierarchical_gp_is_that_of_a_peer():
    """The peer has other weak priors, and all readings in place of inducing points: a few percent of a prediction."""
    from metaprior_studies.peers.hierarchical_gp import fit_hierarchical

    rng = np.random.default_rng(0)
    tasks = draw_tasks(24, 8, rng, curved=True)
    tests = [as_test(task) for task in draw_tasks(20, 12, rng, curved=True)]
    prior = pooled_models(Numbers(), [[], tasks], 1, TARGET_ONLY)[HIERARCHICAL_GP]
    peer = fit_hierarchical([], tasks, 0)
    expected = peer.predict([Task(*test[:2]) for test in tests], [test.x_query for test in tests])
    means, stds = moments(prior, tests)
    differences = [(means[i] - each.mean()) / each.std() for i, each in enumerate(expected)]
    assert np.sqrt(np.mean(np.square(differences))) < 0.1
    ratios = [stds[i] / each.std() for i, each in enumerate(expected)]
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.05)


def test_a_search_has_fitted_them_where_tasks_count_once(monkeypatch):
    rng = np.random.default_rng(1)
    environments = [draw_tasks(6, 5, rng), draw_tasks(6, 5, rng)]
    search = search_for(environments)
    for option in (Option((0.0, 1.0)), Option((0.5, 0.5), environment=True), POOLED):
        search.add(option)
    expected = pooled_models(Numbers(), environments, 1, search.options)
    monkeypatch.setattr(module, "fit_families", None)
    found = pooled_models(Numbers(), environments, 1, search.options, search=search)
    assert list(found) == list(expected) == [MIXED_MODEL, HIERARCHICAL_GP]
    for name, prior in found.items():
        assert prior.counts.tolist() == [1.0, 1.0]
        assert not prior.terms.layout.has("environment")
        assert prior.n_components == 1  # one noise for all tasks
        np.testing.assert_allclose(prior.terms.theta, expected[name].terms.theta, atol=0.02)  # from another start


def test_only_environments_with_weight_take_part():
    assert pooled_option([30, 10, 5], [Option((0.5, 0.0, 0.5)), Option((0.0, 0.0, 1.0))]).weights == pytest.approx(
        (30 / 35, 0.0, 5 / 35)
    )
    rng = np.random.default_rng(2)
    wild, tasks = [Task(task.x, 1e6 * task.y) for task in draw_tasks(5, 5, rng)], draw_tasks(5, 5, rng)
    found = pooled_models(Numbers(), [wild, tasks], 1, TARGET_ONLY)
    alone = fit_families(training_tasks([[], tasks], 1, TARGET_ONLY[0]), False, None, simple=True)
    assert list(alone.priors) == ["linear", "smooth"]
    np.testing.assert_array_equal(found[HIERARCHICAL_GP].terms.theta, alone.priors["smooth"].terms.theta)
    mixed = fit_mixed_model(training_tasks([[], tasks], 1, TARGET_ONLY[0]), None)
    np.testing.assert_array_equal(found[MIXED_MODEL].terms.theta, mixed.terms.theta)


def test_models_that_cannot_be_fitted_are_left_out(monkeypatch):
    def fail(*_, **__):
        raise np.linalg.LinAlgError

    tasks = draw_tasks(3, 4, np.random.default_rng(3))
    monkeypatch.setattr(module, "fit_families", fail)
    assert list(pooled_models(Numbers(), [tasks], 0, [Option((1.0,))])) == [MIXED_MODEL]
    monkeypatch.setattr(module, "fit_mixed_model", fail)
    assert pooled_models(Numbers(), [tasks], 0, [Option((1.0,))]) == {}
