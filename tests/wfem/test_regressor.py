"""`WFEMRegressor`'s contract: scikit-learn habits, units, and predictions against outside computations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from metaprior import load
from metaprior.wfem import MAP, SVGD, Gaussian, HyperPrior, MLPKernel, MLPMean, RBFKernel, Training, WFEMRegressor
from metaprior.wfem.hyperprior import cast, merge


def make_tasks(seed, sizes, input_dim=1):
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(-2.0, 2.0, size=(n, input_dim)) for n in sizes]
    return [(x, 3.0 + np.sin(2.0 * x).sum(axis=1) + 0.1 * rng.normal(size=len(x))) for x in inputs]


SOURCE, TARGET = make_tasks(0, [5, 4, 5]), make_tasks(1, [5, 5])
(X_CONTEXT, Y_CONTEXT), (X_QUERY, Y_QUERY) = make_tasks(2, [4, 4])
POOLED = {"alpha": "pooled", "temperature": "bayes", "random_state": 0}
TINY = {**POOLED, "mean": MLPMean((4,)), "kernel": MLPKernel((4,), n_features=2), "training": Training(n_steps=10)}
CHEAP = {**POOLED, "mean": "constant", "kernel": RBFKernel(length_scale=0.5), "training": Training(n_steps=3)}
UNTRAINED = Training(n_steps=0)


@pytest.fixture(scope="module")
def svgd():
    given = {"alpha": 0.2, "inference": SVGD(n_particles=3), "likelihood": Gaussian(noise_std=0.2)}
    return WFEMRegressor(**{**TINY, **given}).fit(SOURCE, TARGET)


@pytest.fixture(scope="module")
def task(svgd):
    return svgd.adapt(X_CONTEXT, Y_CONTEXT)


def test_the_contract(svgd, task, tmp_path):
    mean, std = task.predict(X_QUERY, return_std=True)
    assert mean.shape == std.shape == (4,)
    np.testing.assert_array_equal(task.predict(X_QUERY), mean)
    query = (X_QUERY, Y_QUERY)
    tests = [(X_CONTEXT, Y_CONTEXT, *query), (X_CONTEXT[:2], Y_CONTEXT[:2], *query), ([], [], [0.5], [1.0])]
    report = svgd.evaluate(tests)
    for name in ("rmse", "nll", "coverage", "width"):
        values = report.per_task[name]
        assert report[name] == getattr(report, name) == pytest.approx(values.mean())
        assert report[f"{name}_se"] == pytest.approx(values.std(ddof=1) / np.sqrt(3))
    assert 0.0 <= report.calibration_error <= 0.5
    assert np.isnan(svgd.evaluate(tests[:1]).rmse_se)
    svgd.save(tmp_path / "prior.safetensors")
    loaded = load(tmp_path / "prior.safetensors")
    np.testing.assert_array_equal(loaded.adapt(X_CONTEXT, Y_CONTEXT).predict(X_QUERY), mean)


def test_fitted_attributes(svgd):
    assert (svgd.alpha_, svgd.n_features_in_, svgd.best_step_) == (0.2, 1, 10)
    assert (svgd.loss_trace_.shape, svgd.validation_trace_.shape) == ((10,), (0,))
    np.testing.assert_allclose(svgd.environment_weights_, [0.2, 0.8])
    assert {len(leaf) for leaf in jax.tree.leaves(svgd.particles_)} == {3}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"kernel": 2.0 * tinygp.kernels.Matern32(0.5), "hyperprior": HyperPrior(std={"weights": 2.0})},
        {
            "mean": MLPMean((4,)),
            "kernel": MLPKernel((4,)),
            "inference": SVGD(length_scale=1.0),
            "likelihood": Gaussian(noise_std=0.1),
            "training": Training(n_steps=7),
        },
    ],
    ids=["defaults", "tinygp", "descriptions"],
)
def test_parameters_are_stored_untouched_and_cloned(arguments):
    meta = WFEMRegressor(alpha=0.25, **arguments)
    for name, value in arguments.items():
        assert getattr(meta, name) is value
        assert meta.get_params()[name] is value
    copied = clone(meta)
    assert repr(copied) == repr(meta)
    assert repr(meta).startswith("WFEMRegressor(alpha=0.25")
    assert copied.set_params(alpha=0.75).get_params()["alpha"] == 0.75
    assert meta.alpha == 0.25


@pytest.mark.parametrize(
    ("kind", "argument"),
    [(WFEMRegressor, "alpha"), (WFEMRegressor, "temperature"), (Gaussian, "noise_std"), (Training, "learning_rate")],
)
def test_a_whole_number_is_a_number(kind, argument):
    assert getattr(kind(**{argument: 1}), argument) == 1


def test_fit_returns_self_and_changes_nothing_it_was_given():
    source, target = ([(x.copy(), y.copy()) for x, y in tasks] for tasks in (SOURCE, TARGET))
    for x, y in [*source, *target]:
        x.flags.writeable = y.flags.writeable = False
    meta = WFEMRegressor(**CHEAP, hyperprior=HyperPrior(std=(std := {"scales": 0.5})))
    before = meta.get_params()
    assert meta.fit(source, target) is meta
    assert all(meta.get_params()[name] is value for name, value in before.items())
    assert std == {"scales": 0.5}


def test_random_state_decides_everything(task):
    def predict(random_state):
        given = {**POOLED, "random_state": random_state, "training": UNTRAINED}
        meta = WFEMRegressor(mean=MLPMean((4,)), kernel="rbf", **given)
        return meta.fit(SOURCE, TARGET).adapt(X_CONTEXT, Y_CONTEXT).predict(X_QUERY)

    np.testing.assert_array_equal(predict(0), predict(0))
    np.testing.assert_array_equal(predict(0), predict(np.random.RandomState(0)))
    assert not np.array_equal(predict(0), predict(1))
    assert not np.array_equal(predict(None), predict(None))
    first, second, other = (task.sample(X_QUERY, 2, random_state=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, second) and not np.array_equal(first, other)  # noqa: PT018


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": 0.9},
        {"alpha": "pooled"},
        {"likelihood": Gaussian(noise_std=0.3)},
        {"likelihood": Gaussian(noise_std=0.1)},
        {"temperature": 1.0},
        {"temperature": "paper"},
        {"hyperprior": HyperPrior(std=0.1)},
        {"hyperprior": HyperPrior(mean={"scales": 1.0})},
        {"training": Training(n_steps=3, learning_rate=0.1)},
        {"training": Training(n_steps=3, schedule="constant")},
        {"training": Training(n_steps=3, optimizer="sgd")},
        {"training": Training(n_steps=3, batch_size=2)},
        {"training": Training(n_steps=3, standardize=False)},
        {"training": Training(n_steps=3, dtype="float64")},
        {"training": Training(n_steps=4)},
        {"inference": MAP(n_particles=2)},
        {"inference": MAP(start="hyperprior")},
    ],
    ids=lambda change: "=".join(map(str, *change.items())),
)
def test_no_argument_is_ignored(change):
    def predict(**arguments):
        meta = WFEMRegressor(**{**CHEAP, "alpha": 0.1, **arguments}).fit(SOURCE, TARGET)
        return meta.adapt(X_CONTEXT, Y_CONTEXT).predict(X_QUERY, return_std=True)

    assert not np.allclose(predict(), predict(**change), rtol=1e-12, atol=0)


def test_units_of_inputs_and_outputs_do_not_matter():
    *source, context, query = make_tasks(3, [5, 4, 4, 2], input_dim=2)
    a, b, c, d = 50.0, -7.0, np.array([0.01, 300.0]), np.array([5.0, -40.0])

    def predict(noise_std, a, b, c, d):
        change = lambda task: (c * task[0] + d, a * task[1] + b)  # noqa: E731
        given = {"likelihood": Gaussian(noise_std), "training": Training(n_steps=10, dtype="float64")}
        meta = WFEMRegressor(**{**TINY, **given}).fit(map(change, source))
        task, (x, y) = meta.adapt(*change(context)), change(query)
        moments = task.predict(x, return_cov=True)
        return *moments, task.log_density(x, y), task.quantile(x, 0.1), task.sample(x, 2, random_state=0)

    mean, covariance, log_density, quantile, sample = predict(0.1, 1.0, 0.0, 1.0, 0.0)
    expected = (a * mean + b, a**2 * covariance, log_density - np.log(a), a * quantile + b, a * sample + b)
    for scaled, value in zip(predict(0.1 * a, a, b, c, d), expected, strict=True):
        np.testing.assert_allclose(scaled, value, rtol=1e-5, atol=1e-6)


def test_predictions_equal_exact_gps_averaged_over_particles(svgd, task):
    [member], means, variances = svgd.model_.members, [], []
    scaling = member.scaling
    with jax.enable_x64(True):
        x, query = (jnp.asarray(scaling.inputs(inputs)) for inputs in (X_CONTEXT, X_QUERY))
        for k in range(3):
            theta = jax.tree.map(lambda leaf: leaf[k], svgd.particles_)  # noqa: B023
            prior = merge(*cast((theta, member.rest), jnp.float64))
            prior_means = [np.asarray(jax.vmap(prior.mean)(inputs)) for inputs in (x, query)]
            gain = np.linalg.solve(prior.kernel(x, x) + (0.2 / scaling.y_std) ** 2 * np.eye(4), prior.kernel(x, query))
            means.append(prior_means[1] + gain.T @ (scaling.outputs(Y_CONTEXT) - prior_means[0]))
            variances.append(np.diag(prior.kernel(query, query) - prior.kernel(query, x) @ gain))
    mean = np.mean(means, axis=0) * scaling.y_std + scaling.y_mean
    variance = (np.mean(variances, axis=0) + np.var(means, axis=0)) * scaling.y_std**2  # law of total variance
    latent, latent_std = task.predict(X_QUERY, return_std=True, latent=True)
    np.testing.assert_allclose(latent, mean, rtol=1e-7)
    np.testing.assert_allclose(latent_std**2, variance, rtol=1e-5)
    np.testing.assert_allclose(task.predict(X_QUERY, return_std=True)[1] ** 2 - latent_std**2, 0.2**2, rtol=1e-5)


def test_covariance_quantiles_and_density_agree(task):
    mean, std = task.predict(X_QUERY, return_std=True)
    joint_mean, covariance = task.predict(X_QUERY, return_cov=True)
    np.testing.assert_allclose(joint_mean, mean, rtol=1e-10)
    np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-8)
    levels = np.array([0.05, 0.5, 0.95])
    quantiles = task.quantile(X_QUERY, levels)
    np.testing.assert_allclose(task.interval(X_QUERY, 0.9), quantiles[[0, 2]])
    predictive = task.predictive(X_QUERY)
    for level, quantile in zip(levels, quantiles, strict=True):
        np.testing.assert_allclose(predictive.cdf(quantile), level, rtol=1e-9)
    np.testing.assert_array_equal(task.quantile(X_QUERY, 0.5), quantiles[1])
    grid = np.linspace(mean[0] - 12 * std[0], mean[0] + 12 * std[0], 501)
    density = np.exp(task.log_density(np.repeat(X_QUERY[:1], 501, axis=0), grid))
    assert integrate.simpson(density, x=grid) == pytest.approx(1.0, abs=1e-6)
    assert integrate.simpson(density * grid, x=grid) == pytest.approx(mean[0], rel=1e-6)


def test_quantiles_of_a_list_of_probabilities(task):
    assert task.quantile(X_QUERY, [0.1, 0.9]).shape == (2, 4)


@pytest.mark.parametrize("latent", [True, False])
def test_samples_have_the_moments(task, latent):
    n = 20_000
    draws = task.sample(X_QUERY, n, latent=latent, random_state=1)
    mean, covariance = task.predict(X_QUERY, return_cov=True, latent=latent)
    products = (draws - mean)[:, :, None] * (draws - mean)[:, None, :]
    limit = stats.norm.ppf(1 - 1e-5)
    assert np.all(np.abs(draws.mean(axis=0) - mean) < limit * draws.std(axis=0) / np.sqrt(n))
    assert np.all(np.abs(products.mean(axis=0) - covariance) < limit * products.std(axis=0) / np.sqrt(n))


@pytest.mark.parametrize("noise_std", [0.3, 1e-4])
def test_untrained_prior_is_the_ordinary_gp(noise_std):
    given = {"likelihood": Gaussian(noise_std), "training": Training(n_steps=0, dtype="float64")}
    meta = WFEMRegressor("rbf", "zero", alpha="pooled", **given).fit(SOURCE)
    assert (meta.loss_trace_.shape, meta.best_step_) == ((0,), 0)
    scaling = meta.model_.members[0].scaling
    outside = GaussianProcessRegressor(RBF(1.0), alpha=(noise_std / scaling.y_std) ** 2, optimizer=None)
    outside.fit(scaling.inputs(X_CONTEXT), scaling.outputs(Y_CONTEXT))
    task = meta.adapt(X_CONTEXT, Y_CONTEXT)
    expected = outside.predict(scaling.inputs(X_QUERY), return_std=True)
    mean, std = task.predict(X_QUERY, return_std=True, latent=True)
    np.testing.assert_allclose(mean, scaling.undo_mean(expected[0]), rtol=1e-5)
    np.testing.assert_allclose(std, expected[1] * scaling.y_std, rtol=1e-4, atol=1e-6)
    if noise_std == 1e-4:  # then predictions at the context approach the data
        np.testing.assert_allclose(task.predict(X_CONTEXT), Y_CONTEXT, atol=1e-3)
        assert np.all(task.predict(X_CONTEXT, return_std=True)[1] < 2e-4)


def test_learned_noise_follows_the_data():
    def noise_share(tasks):
        meta = WFEMRegressor(**{**CHEAP, "training": Training(n_steps=20, learning_rate=0.1)}).fit(tasks)
        task = meta.adapt([], [])
        variances = [task.predict([0.0], return_std=True, latent=latent)[1] ** 2 for latent in (False, True)]
        return float(np.sqrt(variances[0] - variances[1])[0] / meta.model_.members[0].scaling.y_std)

    smooth = [(x, x[:, 0]) for x, _ in SOURCE]
    noisy = [(x, np.random.default_rng(i).normal(size=len(x))) for i, (x, _) in enumerate(SOURCE)]
    assert noise_share(smooth) < 0.07 < 0.1 < 0.15 < noise_share(noisy)


@pytest.mark.parametrize(("kernel", "mean"), [("mlp", "zero"), ("rbf", "constant"), ("linear", "mlp")])
def test_every_name_works_end_to_end(kernel, mean):
    """Training of every family is tested in test_families.py."""
    meta = WFEMRegressor(**POOLED, kernel=kernel, mean=mean, training=UNTRAINED).fit(SOURCE, TARGET)
    assert np.isfinite(meta.evaluate([(X_CONTEXT, Y_CONTEXT, X_QUERY, Y_QUERY)]).nll)


@pytest.mark.parametrize("n_steps", [0, 1, 120])
def test_validation_scores_are_in_the_units_of_y(n_steps):
    tests = [(X_CONTEXT, Y_CONTEXT, X_QUERY, Y_QUERY), ([], [], X_QUERY[:1], Y_QUERY[:1])]
    meta = WFEMRegressor(**{**CHEAP, "training": Training(n_steps=n_steps)})
    meta.fit(SOURCE, validation_tasks=tests, patience=1)
    assert len(meta.validation_trace_) == -(-n_steps // 100)
    assert meta.best_step_ in {0: (0,), 1: (1,), 120: (100, 120)}[n_steps]
    if n_steps > 0:
        per_task = [-meta.adapt(*test[:2]).log_density(*test[2:]).mean() for test in tests]
        assert meta.validation_trace_.min() == pytest.approx(np.mean(per_task), rel=1e-4)
