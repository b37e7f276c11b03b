import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import kstest, norm, uniform

from metaprior.datasets import sinusoid
from metaprior.datasets.sinusoid import Functions, Sinusoid

STANDARD_ERRORS = 4  # a correct implementation passes a comparison for 99.99 % of all seeds


def assert_mean(samples, expected, axis=0):
    """The mean of independent samples agrees with what is expected, within standard errors."""
    error = samples.std(axis, ddof=1) / np.sqrt(samples.shape[axis])
    np.testing.assert_array_less(np.abs(samples.mean(axis) - expected), STANDARD_ERRORS * error)


def draw(environment, n_tasks, n_context, n_query, seed):
    tasks = environment.test_tasks(n_tasks, n_context, n_query, seed)
    x_context, y_context, x_query, y_query = (np.stack(field) for field in zip(*tasks, strict=True))
    return x_context[..., 0], y_context, x_query[..., 0], y_query


def predictive_mean(prediction):
    return np.einsum("kt,ktq->tq", np.exp(prediction.log_weights), prediction.mean)


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


def test_tasks_have_the_shapes_and_the_environment_they_say():
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


def test_mean_and_covariance_functions_match_monte_carlo():
    environment = Sinusoid(deviation=0.75)
    x = np.array([-4.3, -1.0, 0.2, 0.75, 3.1])
    values = environment.target_functions(200_000, 8)(x)
    assert_mean(values, environment.target_mean(x))
    centered = values - environment.target_mean(x)
    expected = environment.target_covariance(x[:, None], x)
    assert_mean(centered[:, :, None] * centered[:, None, :], expected)
    np.testing.assert_allclose(expected, expected.T)


def test_gp_oracle_is_multivariate_normal_conditioning():
    environment = Sinusoid(deviation=0.75, noise_std=0.2)
    x_context, y_context, x_query, _ = draw(environment, 7, 6, 4, 9)
    prediction = environment.gp_oracle(x_context, y_context, x_query)
    # An independent route: f is linear in (x, 1, sin 1.5x, cos 1.5x), with coefficients (a, d, u, v) where
    # u = b cos 1.5c and v = -b sin 1.5c; their moments come from numerical integration over c.
    c, weight = np.polynomial.hermite_e.hermegauss(60)
    c, weight = 0.75 + 0.1 * c, weight / weight.sum()
    pair = np.stack([np.cos(1.5 * c), -np.sin(1.5 * c)])
    covariance = np.zeros((4, 4))
    covariance[:2, :2] = np.diag([0.2**2, 0.1**2])
    covariance[2:, 2:] = 1.03 * (pair * weight) @ pair.T - np.outer(pair @ weight, pair @ weight)
    coefficients = np.array([0.5, 5.0, *(pair @ weight)])
    for i in range(7):
        x = np.concatenate([x_context[i], x_query[i]])
        features = np.stack([x, np.ones_like(x), np.sin(1.5 * x), np.cos(1.5 * x)], 1)
        mean, joint = features @ coefficients, features @ covariance @ features.T
        gain = joint[6:, :6] @ np.linalg.inv(joint[:6, :6] + 0.2**2 * np.eye(6))
        expected = mean[6:] + gain @ (y_context[i] - mean[:6])
        np.testing.assert_allclose(prediction.mean[0, i], expected, rtol=1e-9)
        variance = np.diag(joint[6:, 6:] - gain @ joint[:6, 6:])
        np.testing.assert_allclose(prediction.variance[0, i], variance, rtol=1e-9)


@pytest.mark.parametrize("n_context", [1, 2, 4])
def test_bayes_oracle_matches_importance_sampling(n_context):
    environment = Sinusoid(deviation=0.75)
    x_context, y_context, x_query, _ = draw(environment, 4, n_context, 5, 10)
    prediction = environment.bayes_oracle(x_context, y_context, x_query)
    mean = predictive_mean(prediction)
    second_moment = predictive_mean(prediction._replace(mean=prediction.mean**2 + prediction.variance))
    functions = environment.target_functions(1_000_000, 11)
    for i in range(4):
        log_likelihood = -np.sum((y_context[i] - functions(x_context[i])) ** 2, axis=1) / (2 * 0.1**2)
        likely = log_likelihood > log_likelihood.max() - 25  # the rest has 1e-5 of the weight at most
        weight = np.exp(log_likelihood[likely] - logsumexp(log_likelihood[likely]))[:, None]
        values = Functions(*(p[likely] for p in functions))(x_query[i])
        assert 1 / np.sum(weight**2) > 1000  # effective samples: enough for the normal theory below
        for statistic, expected in (values, mean[i]), (values**2, second_moment[i]):
            # The delta-method standard error of a self-normalized estimate.
            estimate = np.sum(weight * statistic, 0)
            error = np.sqrt(np.sum((weight * (statistic - estimate)) ** 2, 0))
            np.testing.assert_array_less(np.abs(estimate - expected), STANDARD_ERRORS * error)


@pytest.mark.parametrize(("noise_std", "n_context"), [(0.1, 5), (0.1, 10), (0.1, 20), (0.05, 12), (0.1, 40)])
def test_a_finer_grid_changes_nothing(monkeypatch, noise_std, n_context):
    environment = Sinusoid(deviation=0.75, noise_std=noise_std)
    x_context, y_context, x_query, _ = draw(environment, 200, n_context, 5, 12)
    coarse = predictive_mean(environment.bayes_oracle(x_context, y_context, x_query))
    monkeypatch.setattr(sinusoid, "AMPLITUDE_NODES", 2 * sinusoid.AMPLITUDE_NODES)
    monkeypatch.setattr(sinusoid, "PHASE_NODES", 3 * sinusoid.PHASE_NODES)
    monkeypatch.setattr(sinusoid, "PHASE_REACH", 6.5)
    fine = predictive_mean(environment.bayes_oracle(x_context, y_context, x_query))
    assert np.abs(fine - coarse).max() > 0  # the grid did change
    np.testing.assert_allclose(coarse, fine, rtol=0, atol=1e-3)


def test_without_context_the_oracles_predict_the_prior():
    environment = Sinusoid(deviation=0.75)
    x_query, empty = np.linspace(-5, 5, 12).reshape(2, 6), np.zeros((2, 0))
    gp = environment.gp_oracle(empty, empty, x_query)
    bayes = environment.bayes_oracle(empty, empty, x_query)
    variance = environment.target_covariance(x_query, x_query)
    np.testing.assert_array_equal(gp.mean[0], environment.target_mean(x_query))
    np.testing.assert_array_equal(gp.variance[0], variance)
    np.testing.assert_allclose(predictive_mean(bayes), environment.target_mean(x_query), rtol=0, atol=1e-6)
    spread = bayes.variance + (bayes.mean - environment.target_mean(x_query)) ** 2
    # Cutting c at 4.5 standard deviations loses 1e-4 of its variance.
    np.testing.assert_allclose(predictive_mean(bayes._replace(mean=spread)), variance, rtol=3e-4)


@pytest.mark.parametrize("n_context", [0, 5, 20])
def test_predictions_are_normalized_mixtures(n_context):
    environment = Sinusoid()
    x_context, y_context, x_query, _ = draw(environment, 6, n_context, 3, 13)
    for oracle in environment.gp_oracle, environment.bayes_oracle:
        prediction = oracle(x_context, y_context, x_query)
        assert prediction.mean.shape == prediction.variance.shape == (len(prediction.log_weights), 6, 3)
        assert prediction.mean.dtype == np.float64
        assert (prediction.variance > 0).all()
        np.testing.assert_allclose(logsumexp(prediction.log_weights, axis=0), 0.0, atol=1e-12)


def test_the_best_error_that_can_be_reached():
    """RMSE per task over 50 queries, averaged over tasks; the values are from 200,000 other tasks."""
    environment = Sinusoid(deviation=0.75)
    errors = []
    for seed in range(20):
        x_context, y_context, x_query, y_query = draw(environment, 200, 5, 50, 100 + seed)
        bayes = predictive_mean(environment.bayes_oracle(x_context, y_context, x_query))
        gp = predictive_mean(environment.gp_oracle(x_context, y_context, x_query))
        predictions = np.stack([bayes, gp, environment.target_mean(x_query)], 1)
        errors.append(np.sqrt(np.mean((predictions - y_query[:, None]) ** 2, axis=2)))
    errors = np.concatenate(errors)
    assert (errors.std(0) / np.sqrt(len(errors)) < [0.001, 0.001, 0.006]).all()
    assert_mean(errors, [0.1550, 0.1563, 0.5304])
    assert_mean(errors[:, 1] - errors[:, 0], 0.0013)


NOT_FINITE = [("deviation", np.inf), ("deviation", np.nan), ("source_phase", -np.inf), ("noise_std", np.nan)]


@pytest.mark.parametrize(("argument", "value"), [*NOT_FINITE, ("noise_std", -0.1), ("noise_std", 0.0)])
def test_bad_environments_are_refused(argument, value):
    with pytest.raises(ValueError, match=rf"{argument} must be .*, got {value}"):
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
    with pytest.raises(ValueError, match=f"{argument} must not be negative, got -1"):
        getattr(Sinusoid(), method)(*arguments)


@pytest.mark.parametrize("oracle", ["gp_oracle", "bayes_oracle"])
@pytest.mark.parametrize(
    ("argument", "shapes"),
    [
        ("x_context", [(5,), (5,), (2, 3)]),
        ("y_context", [(2, 5), (2, 4), (2, 3)]),
        ("y_context", [(2, 5), (2, 5, 1), (2, 3)]),
        ("x_query", [(2, 5), (2, 5), (1, 3)]),
        ("x_query", [(2, 5), (2, 5), (3,)]),
    ],
)
def test_mismatched_shapes_are_refused(oracle, argument, shapes):
    with pytest.raises(ValueError, match=rf"{argument} must have .* got \("):
        getattr(Sinusoid(), oracle)(*map(np.zeros, shapes))
