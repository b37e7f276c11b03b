"""Sinusoid tasks follow the distributions of the paper."""

import numpy as np
import pytest
from scipy.stats import kstest, norm, uniform

from metaprior.datasets import Functions, Sinusoid

STANDARD_ERRORS = 4  # a correct implementation passes a comparison for 99.99 % of all seeds


def assert_mean(samples, expected, axis=0):
    """The mean of independent samples agrees with what is expected, within standard errors."""
    error = samples.std(axis, ddof=1) / np.sqrt(samples.shape[axis])
    np.testing.assert_array_less(np.abs(samples.mean(axis) - expected), STANDARD_ERRORS * error)


def draw(environment, n_tasks, n_context, n_query, seed):
    tasks = environment.test_tasks(n_tasks, n_context, n_query, seed)
    x_context, y_context, x_query, y_query = (np.stack(field) for field in zip(*tasks, strict=True))
    return x_context[..., 0], y_context, x_query[..., 0], y_query


@pytest.mark.parametrize("kind", ["source", "target"])
def test_task_parameters_follow_the_paper(kind):
    environment = Sinusoid(deviation=0.75, source_phase=-0.2)
    functions = getattr(environment, f"{kind}_functions")(40_000, 1)
    phase = {"source": -0.2, "target": 0.55}[kind]
    assert kstest(functions.a, norm(0.5, 0.2).cdf).pvalue > 1e-3
    assert kstest(functions.b, uniform(0.7, 0.6).cdf).pvalue > 1e-3
    assert kstest(functions.c, norm(phase, 0.1).cdf).pvalue > 1e-3
    assert kstest(functions.d, norm(5.0, 0.1).cdf).pvalue > 1e-3
    expected = [(0.5, 0.2**2), (1.0, 0.6**2 / 12), (phase, 0.1**2), (5.0, 0.1**2)]
    for parameter, (mean, variance) in zip(functions, expected, strict=True):
        assert_mean(parameter, mean)
        assert_mean((parameter - mean) ** 2, variance)
    standardized = (np.array(functions) - np.mean(functions, 1)[:, None]) / np.std(functions, 1)[:, None]
    for i, j in zip(*np.triu_indices(4, 1), strict=True):
        assert_mean(standardized[i] * standardized[j], 0.0)


def test_the_deviation_moves_only_the_phase():
    environment = Sinusoid(deviation=0.3)
    source, target = environment.source_functions(100, 2), environment.target_functions(100, 2)
    for name in "abd":
        np.testing.assert_array_equal(getattr(source, name), getattr(target, name))
    np.testing.assert_allclose(target.c - source.c, 0.3, rtol=1e-12)
    np.testing.assert_array_equal(source, Sinusoid(deviation=9.0).source_functions(100, 2))


def test_functions_at_hand_computed_points():
    functions = Functions(*(np.array(p) for p in ([0.5, 1.0], [1.0, 0.7], [0.0, 2.0], [5.0, 4.0])))
    x = np.array([0.0, np.pi / 3])
    first, second = [5, np.pi / 6 + 6], [4 - 0.7 * np.sin(3), np.pi / 3 + 0.7 * np.cos(3) + 4]
    np.testing.assert_allclose(functions(x), [first, second])
    np.testing.assert_allclose(functions(np.stack([x, x[::-1]])), [first, second[::-1]])


def test_observations_are_uniform_in_x_and_gaussian_about_f():
    environment = Sinusoid(noise_std=0.3)
    functions = environment.target_functions(200, 3)
    x, y = environment.observe(functions, 200, 4)
    noise = (y - functions(x)).ravel()
    assert kstest(x.ravel(), uniform(-5.0, 10.0).cdf).pvalue > 1e-3
    assert kstest(noise, norm(0.0, 0.3).cdf).pvalue > 1e-3
    assert_mean(noise**2, 0.3**2)
    assert_mean(noise * x.ravel(), 0.0)


def test_tasks_have_their_shapes_and_come_from_their_environment():
    environment = Sinusoid(deviation=np.pi / 1.5)  # half a period, which negates the sine of the source
    for tasks, sign in (environment.source_tasks(300, 6, 5), 1), (environment.target_tasks(300, 6, 5), -1):
        assert len(tasks) == 300
        assert {(task.x.shape, task.y.shape) for task in tasks} == {((6, 1), (6,))}
        x, y = np.stack([task.x[:, 0] for task in tasks]), np.stack([task.y for task in tasks])
        sine = sign * np.exp(-(0.15**2) / 2) * np.sin(1.5 * x)  # E[b sin(1.5 (x - c))]
        assert_mean(np.mean((y - 0.5 * x - 5 - sine) * np.sin(1.5 * x), 1), 0.0)
    shapes = {tuple(map(np.shape, task)) for task in environment.test_tasks(3, 4, 7, 6)}
    assert shapes == {((4, 1), (4,), (7, 1), (7,))}
    assert environment.source_tasks(0, 5, 1) == []


def test_context_and_query_share_one_function():
    x_context, y_context, x_query, y_query = draw(Sinusoid(noise_std=1e-9), 50, 8, 5, 7)
    features = [lambda x: x, np.ones_like, lambda x: np.sin(1.5 * x), lambda x: np.cos(1.5 * x)]
    for i in range(50):  # f is linear in these four features, so eight noiseless points determine it
        solution = np.linalg.lstsq(np.stack([g(x_context[i]) for g in features], 1), y_context[i])[0]
        predicted = np.stack([g(x_query[i]) for g in features], 1) @ solution
        np.testing.assert_allclose(predicted, y_query[i], atol=1e-5)


@pytest.mark.parametrize("name", ["source_tasks", "target_tasks", "test_tasks"])
def test_draws_are_reproducible_by_seed(name):
    sizes = (4, 5, 3) if name == "test_tasks" else (4, 5)
    draws = [getattr(Sinusoid(), name)(*sizes, rng) for rng in (1, np.random.default_rng(1), 2)]
    for first, second, other in zip(*(sum(tasks, ()) for tasks in draws), strict=True):
        np.testing.assert_array_equal(first, second)
        assert not np.any(first == other)


NOT_FINITE = [("deviation", np.inf), ("deviation", np.nan), ("source_phase", -np.inf), ("noise_std", np.nan)]


@pytest.mark.parametrize(("argument", "value"), [*NOT_FINITE, ("noise_std", -0.1), ("noise_std", 0.0)])
def test_bad_environments_are_refused(argument, value):
    with pytest.raises(ValueError, match=rf"{argument} must be a (finite|positive) number; got {value}\."):
        Sinusoid(**{argument: value})


@pytest.mark.parametrize(
    ("method", "argument", "arguments"),
    [
        ("source_functions", "n_tasks", (-1, 0)),
        ("target_functions", "n_tasks", (-1, 0)),
        ("source_tasks", "n_tasks", (-1, 5, 0)),
        ("target_tasks", "n_samples", (2, -1, 0)),
        ("test_tasks", "n_context", (2, -1, 5, 0)),
        ("test_tasks", "n_query", (2, 5, -1, 0)),
    ],
)
def test_negative_counts_are_refused(method, argument, arguments):
    with pytest.raises(ValueError, match=f"{argument} must be an integer .*; got -1"):
        getattr(Sinusoid(), method)(*arguments)
