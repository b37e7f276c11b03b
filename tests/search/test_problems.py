"""Problems: folds and calibration of labels, and the models that users would fit instead."""

from dataclasses import replace

import numpy as np
import pytest
from searches import search_for, training_tasks

from metaprior import MetaGPClassifier
from metaprior.predict.batches import predict_tasks
from metaprior.predict.ensemble import Ensemble
from metaprior.prior.families import fit_families, fit_mixed_model
from metaprior.prior.terms import Line
from metaprior.search import problems as module
from metaprior.search.averaging import Candidate
from metaprior.search.held_out import peak
from metaprior.search.problems import (
    HIERARCHICAL_GP,
    MIXED_MODEL,
    RATIOS,
    SHRINKS,
    Labels,
    Numbers,
    pooled_models,
    pooled_option,
    separability,
)
from metaprior.tasks.types import Task, TestTask


def draw_tasks(n_tasks, seed=0, n=16, n_classes=2, noise=0.1):
    """Every task has a linear rule of its own, and labels with hardly any noise: latent functions are large."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(n_tasks):
        x, rule = rng.normal(size=(n, 2)), rng.normal(size=(2, n_classes))
        scores = x @ rule + noise * rng.normal(size=(n, n_classes))
        tasks.append((x, np.argsort(np.argsort(scores, axis=1), axis=1).argmax(axis=1)))
    return tasks


def searched(calibrate):
    tasks = [Task(x, y.astype(float)) for x, y in draw_tasks(6, n_classes=3)]
    search = search_for([[], tasks], problem=Labels(None, calibrate))
    search.add(Candidate((0.0, 1.0)))
    return search


@pytest.fixture(scope="module")
def both():
    return [searched(calibrate) for calibrate in (False, True)]


def test_calibration_improves_the_log_loss_of_held_out_labels(both):
    losses = []
    for search in both:
        queries = search.queries
        by_task = [queries.plain_scores(each.held_out) for each in search.scored]
        losses.append(-np.mean(by_task))
    plain, calibrated = losses
    assert calibrated < plain - 0.02


def test_without_calibration_priors_are_laplace_as_it_is(both):
    plain, calibrated = both
    assert {(each.prior.factor, each.prior.ratio) for each in plain.scored} == {(1.0, 1.0)}
    assert all(each.prior.factor > 1.0 for each in calibrated.scored)


def test_held_out_predictions_are_probabilities_of_every_query(both):
    for search in both:
        for each in search.scored:
            asked = np.exp(each.held_out.log_p[search.queries.asked])
            np.testing.assert_allclose(asked.sum(axis=1), 1.0, atol=1e-6)
        rows = search.queries.rows_of(np.arange(len(search.tasks)))
        np.testing.assert_array_equal(rows, np.arange(len(search.queries.splits)))


def test_the_factor_leaves_the_more_probable_of_two_classes():
    meta = MetaGPClassifier(0.0, random_state=0).fit(target_tasks=draw_tasks(2, n=8))
    [(x, y)] = draw_tasks(1, seed=1, n=40)
    first, predictions = meta.model_.members[0], []
    for factor in (0.1, 1.0, 10.0):
        meta.model_ = meta.model_._replace(members=[replace(first, factor=factor)], weights=np.ones(1))
        predictions.append(meta.adapt(x[:8], y[:8]).predict_proba(x)[:, 1])
    small, one, large = np.abs(np.array(predictions) - 0.5).max(axis=1)
    assert small < one < large
    np.testing.assert_array_equal(np.array(predictions) > 0.5, [predictions[1] > 0.5] * 3)


def test_with_one_target_task_those_of_the_source_hold_out():
    meta = MetaGPClassifier(0.5, random_state=0).fit(draw_tasks(3, n=8), draw_tasks(1, seed=1, n=8))
    assert all((member.factor, member.ratio) != (1.0, 1.0) for member in meta.model_.members)
    alone = MetaGPClassifier(random_state=0).fit(target_tasks=draw_tasks(1, seed=1, n=8))
    assert all((member.factor, member.ratio) == (1.0, 1.0) for member in alone.model_.members)


@pytest.mark.parametrize("at", [-0.3, 0.0, 0.4, 3.0, -3.0])
def test_the_peak_is_that_of_a_parabola_within_a_step_of_the_grid(at):
    grid = np.linspace(-2.0, 2.0, 9)
    value, where = peak(grid, 5.0 - (grid - at) ** 2)
    if abs(at) < 2.0:
        assert (value, where) == pytest.approx((5.0, at))
    else:
        assert where == pytest.approx(2.0 * np.sign(at), abs=0.01)


@pytest.mark.parametrize(
    ("n_inputs", "n_samples", "expected"), [(2, 40, 0.0), (5, 5, 0.0), (6, 5, 0.263), (10, 5, 1.0), (64, 10, 1.0)]
)
def test_contexts_become_separable_with_the_number_of_inputs(n_inputs, n_samples, expected):
    assert separability(n_inputs, n_samples) == pytest.approx(expected, abs=1e-3)


def test_little_changes_where_held_out_labels_say_nothing():
    """Tasks of one sample per class: with few inputs scales stay as fitted, with many they are those of such tasks."""
    rng = np.random.default_rng(0)
    for n_inputs, expected in ((2, (1.0, 1.0, 1.0)), (4, (1.4 / 0.3, 0.0, 0.3))):
        tasks = [Task(rng.normal(size=(2, n_inputs)), np.arange(2.0)) for _ in range(6)]
        search = search_for([[], tasks], problem=Labels(None))
        search.add(Candidate((0.0, 1.0)))
        for each in search.scored:
            found = each.prior.factor, each.prior.ratio, each.prior.shrink
            assert found == pytest.approx(expected, rel=0.01)
            assert each.prior.shrink in SHRINKS
            assert each.prior.ratio in RATIOS


def tasks_with(*labels):
    rng = np.random.default_rng(0)
    return [Task(rng.normal(size=(len(y), 2)), np.array(y, float)) for y in labels]


BALANCED = [[0, 1] * 4] * 6
UNBALANCED = [*BALANCED, [0] * 8]


@pytest.mark.parametrize(
    ("labels", "n_shared", "by_class"), [(BALANCED, 2, True), (UNBALANCED, 2, False), (UNBALANCED, None, True)]
)
def test_folds_are_stratified_only_where_new_tasks_will_be(labels, n_shared, by_class):
    search = search_for([[], tasks_with(*labels)], problem=Labels(n_shared))
    queries = [split.y_query for splits in search.folds.splits[:6] for split in splits]
    assert all(abs(2 * y.sum() - len(y)) <= 1 for y in queries) == by_class


TARGET_ONLY = [Candidate((0.0, 1.0))]
POOLED = Candidate((0.5, 0.5))


def draw_lines(n_tasks, n_readings, rng, curved=False):
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
    tasks = draw_lines(30, 8, np.random.default_rng(0))
    prior = pooled_models(Numbers(), [[], tasks], 1, TARGET_ONLY)[MIXED_MODEL]
    assert prior.terms.layout.terms == (Line(correlated=True),)
    assert prior.n_components == 1
    given = pooled_models(Numbers(noise_std=0.5), [[], tasks], 1, TARGET_ONLY)[MIXED_MODEL]
    assert given.noise_variance * given.scaling.y_std**2 == pytest.approx(0.25)


def test_the_hierarchical_gp_is_that_of_a_peer():
    """The peer has other weak priors, and all readings in place of inducing points: a few percent of a prediction."""
    from metaprior_studies.peers.hierarchical_gp import fit_hierarchical

    rng = np.random.default_rng(0)
    tasks = draw_lines(24, 8, rng, curved=True)
    tests = [as_test(task) for task in draw_lines(20, 12, rng, curved=True)]
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
    environments = [draw_lines(6, 5, rng), draw_lines(6, 5, rng)]
    search = search_for(environments)
    for option in (Candidate((0.0, 1.0)), Candidate((0.5, 0.5), environment=True), POOLED):
        search.add(option)
    expected = pooled_models(Numbers(), environments, 1, search.options)
    monkeypatch.setattr(module, "fit_families", None)
    found = pooled_models(
        Numbers(), environments, 1, search.options, known=list(zip(search.options, search.fits, strict=True))
    )
    assert list(found) == list(expected) == [MIXED_MODEL, HIERARCHICAL_GP]
    for name, prior in found.items():
        assert prior.counts.tolist() == [1.0, 1.0]
        assert not prior.terms.layout.has("environment")
        assert prior.n_components == 1  # one noise for all tasks
        np.testing.assert_allclose(prior.terms.theta, expected[name].terms.theta, atol=0.02)  # from another start


def test_only_environments_with_weight_take_part():
    assert pooled_option(
        [30, 10, 5], [Candidate((0.5, 0.0, 0.5)), Candidate((0.0, 0.0, 1.0))]
    ).weights == pytest.approx((30 / 35, 0.0, 5 / 35))
    rng = np.random.default_rng(2)
    wild, tasks = [Task(task.x, 1e6 * task.y) for task in draw_lines(5, 5, rng)], draw_lines(5, 5, rng)
    found = pooled_models(Numbers(), [wild, tasks], 1, TARGET_ONLY)
    alone = fit_families(training_tasks([[], tasks], 1, TARGET_ONLY[0]), False, None, simple=True)
    assert list(alone.priors) == ["linear", "smooth"]
    np.testing.assert_array_equal(found[HIERARCHICAL_GP].terms.theta, alone.priors["smooth"].terms.theta)
    mixed = fit_mixed_model(training_tasks([[], tasks], 1, TARGET_ONLY[0]), None)
    np.testing.assert_array_equal(found[MIXED_MODEL].terms.theta, mixed.terms.theta)


def test_models_that_cannot_be_fitted_are_left_out(monkeypatch):
    def fail(*_, **__):
        raise np.linalg.LinAlgError

    tasks = draw_lines(3, 4, np.random.default_rng(3))
    monkeypatch.setattr(module, "fit_families", fail)
    assert list(pooled_models(Numbers(), [tasks], 0, [Candidate((1.0,))])) == [MIXED_MODEL]
    monkeypatch.setattr(module, "fit_mixed_model", fail)
    assert pooled_models(Numbers(), [tasks], 0, [Candidate((1.0,))]) == {}
