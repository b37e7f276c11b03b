"""The mixture against scipy.stats, numerical integration, samples and its own inverse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from metaprior.likelihoods import gaussian
from metaprior.predict.predictive import GaussianMixture, JointMixture

MEANS = np.array([-1.5, 0.2, 4.0])
VARIANCES = np.array([0.3, 2.0, 0.05])
LOG_WEIGHTS = np.log([0.5, 1.5, 2.0])  # Not normalized: 1/8, 3/8, 1/2.
WEIGHTS = np.array([0.125, 0.375, 0.5])


def random_mixture(seed: int) -> GaussianMixture:
    """Up to six components at three points, twelve orders of magnitude, with atoms and weights of zero."""
    rng = np.random.default_rng(seed)
    shape = (rng.integers(1, 7), 3)
    means = rng.choice([-1.0, 0.0, 1.0], shape) * 10.0 ** rng.uniform(-6, 6, shape)
    variances = 10.0 ** (2.0 * rng.uniform(-6, 6, shape)) * (rng.random(shape) > rng.choice([0.0, 0.2]))
    log_weights = np.where(rng.random(shape) < 0.3, -np.inf, rng.uniform(-20, 5, shape))
    log_weights[rng.integers(shape[0])] = 0.0
    return GaussianMixture(means, variances, [None, log_weights, log_weights[:, 0]][rng.integers(3)])


def everything(mixture: GaussianMixture, y: np.ndarray | float) -> np.ndarray:
    results = [mixture.mean(), mixture.variance(), mixture.std(), mixture.log_density(y), mixture.cdf(y)]
    return np.stack([*results, *mixture.quantile(np.array([0.01, 0.7])), *mixture.interval(0.9)])


def assert_is_quantile(mixture: GaussianMixture, level: float, quantile: np.ndarray) -> None:
    """The cdf crosses p within two floating-point numbers, or is 1e-11 local scales from it."""
    resolution = 2.0 * np.spacing(np.abs(quantile))
    slack = 1e-9 * level if level < 0.01 else 1e-11 * stats.norm.pdf(stats.norm.ppf(level)) + 1e-15
    assert np.all(mixture.cdf(quantile - resolution) <= level + slack)
    assert np.all(mixture.cdf(quantile + resolution) >= level - slack)


@pytest.mark.parametrize("log_weights", [None, np.zeros(1), np.array([-700])])
def test_one_component_is_scipy_normal(log_weights):
    rng = np.random.default_rng(0)
    mean, scale, y = rng.normal(size=(2, 5)), rng.gamma(2.0, size=(2, 5)), rng.normal(size=(2, 5))
    mixture, normal = GaussianMixture(mean[None], scale[None] ** 2, log_weights), stats.norm(mean, scale)
    expected = [mean, scale**2, scale, normal.logpdf(y), normal.cdf(y), normal.ppf(0.01), normal.ppf(0.7)]
    np.testing.assert_allclose(everything(mixture, y), [*expected, *normal.interval(0.9)], rtol=1e-10)
    levels = np.array([1e-300, 1e-12, 0.5, 1.0 - 1e-9])
    np.testing.assert_allclose(mixture.quantile(levels), normal.ppf(levels[:, None, None]), rtol=1e-10)


def test_moments_density_and_cdf_against_numerical_integration():
    mixture = GaussianMixture(MEANS, VARIANCES, LOG_WEIGHTS)

    def density(y: float) -> float:
        return float(WEIGHTS @ stats.norm.pdf(y, MEANS, np.sqrt(VARIANCES)))

    def integral(integrand, upper: float) -> float:
        breaks = [point for point in MEANS if point < upper]
        return integrate.quad(integrand, -15.0, upper, points=breaks, epsabs=1e-12, limit=200)[0]

    mean = integral(lambda y: y * density(y), 15.0)
    assert float(mixture.mean()) == pytest.approx(mean, abs=1e-9)
    variance = integral(lambda y: (y - mean) ** 2 * density(y), 15.0)
    assert float(mixture.variance()) == pytest.approx(variance, rel=1e-9)
    for y in [-3.0, 0.1, 2.5, 4.0, 5]:
        assert float(mixture.cdf(y)) == pytest.approx(integral(density, float(y)), abs=1e-9)
        assert float(np.exp(mixture.log_density(y))) == pytest.approx(density(y), rel=1e-12)


def test_moments_and_quantiles_against_samples():
    rng, n_samples = np.random.default_rng(1), 200_000
    component = rng.choice(3, size=n_samples, p=WEIGHTS)
    samples = rng.normal(MEANS[component], np.sqrt(VARIANCES[component]))
    mixture = GaussianMixture(MEANS, VARIANCES, LOG_WEIGHTS)
    assert abs(samples.mean() - mixture.mean()) < 3 * samples.std() / np.sqrt(n_samples)
    squares = (samples - mixture.mean()) ** 2
    assert abs(squares.mean() - mixture.variance()) < 3 * squares.std() / np.sqrt(n_samples)
    for level in [0.02, 0.3, 0.6, 0.9]:
        frequency = np.mean(samples <= mixture.quantile(level))
        assert abs(frequency - level) < 3 * np.sqrt(level * (1 - level) / n_samples)


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.floats(1e-9, 1.0 - 1e-9) | st.floats(-300.0, -2.0).map(lambda x: 10.0**x))
def test_quantile_inverts_cdf_and_mirrors(seed, level):
    mixture = random_mixture(seed)
    assert_is_quantile(mixture, level, mixture.quantile(level))
    upper = min(1.0 - min(level, 1.0 - level), 1.0 - 1e-9)
    mirrored = GaussianMixture(-mixture.means, mixture.variances, mixture.log_weights)
    assert_is_quantile(mirrored, upper, mirrored.quantile(upper))
    if upper > 0.5:  # solved by reflection; the median itself is solved on either side, to rounding
        np.testing.assert_array_equal(mirrored.quantile(upper), -mixture.quantile(1.0 - upper))


@pytest.mark.parametrize("level", [1e-6, 0.2499, 0.25, 0.2501, 0.5, 0.9])
def test_quantile_against_brentq_and_of_atoms_and_gaps(level):
    mixture = GaussianMixture(MEANS, VARIANCES, LOG_WEIGHTS)
    root = optimize.brentq(lambda y: float(mixture.cdf(y)) - level, -50.0, 50.0, xtol=1e-13, rtol=1e-14)
    assert float(mixture.quantile(level)) == pytest.approx(root, abs=1e-9)  # brentq: 1e-16 / density(1e-6).
    atoms = GaussianMixture(np.array([[-1e6, 1e6], [0.0, 1e6], [1e6, 3.0], [5.0, 1e-3]]), np.zeros((4, 2)))
    assert_is_quantile(atoms, level, atoms.quantile(level))


@pytest.mark.parametrize(("components", "offset", "far"), [(30, 0.0, 0.0), (30, 1e6, 0.0), (2, 0.0, 1e14)])
def test_quantile_takes_few_evaluations(monkeypatch, components, offset, far):
    rng, evaluated, ndtr = np.random.default_rng(2), [], gaussian.ndtr
    means, variances = offset + rng.normal(size=(components, 200)), rng.gamma(2.0, size=(components, 200))
    means[0] += far  # A remote component that hardly counts: the root is at the edge of its bracket.
    mixture = GaussianMixture(means, variances, np.append(-40.0, np.zeros(components - 1)))
    monkeypatch.setattr(gaussian, "ndtr", lambda z: (evaluated.append(z.shape[1]), ndtr(z))[1])
    mixture.quantile(0.5)
    assert 0 < len(evaluated) <= 8


def test_quantiles_increase_and_unsolvable_is_reported(monkeypatch):
    mixture = GaussianMixture(np.array([0.0, 1e6, 3.0]), np.array([1e-12, 1e2, 1e8]))
    assert np.all(np.diff(mixture.quantile(np.linspace(1e-4, 1 - 1e-4, 999))) > 0)
    monkeypatch.setattr(gaussian, "QUANTILE_MAXIMUM_ITERATIONS", 2)
    with pytest.raises(RuntimeError, match="not found at 1 points"):
        mixture.quantile(0.4)


def test_weights_equal_shared_and_per_task():
    rng = np.random.default_rng(3)
    means, variances, y = rng.normal(size=(4, 2, 3)), rng.gamma(2.0, size=(4, 2, 3)), rng.normal(size=(2, 3))
    equal = everything(GaussianMixture(means, variances), y)
    np.testing.assert_array_equal(equal, everything(GaussianMixture(means, variances, np.zeros(4)), y))
    log_weights = rng.normal(size=(4, 2))
    per_task = everything(GaussianMixture(means, variances, log_weights), y)
    full = GaussianMixture(means, variances, np.repeat(log_weights[:, :, None], 3, axis=2) + 5.0)
    np.testing.assert_allclose(per_task, everything(full, y), rtol=1e-10)
    for task in range(2):
        alone = GaussianMixture(means[:, task], variances[:, task], log_weights[:, task])
        np.testing.assert_allclose(per_task[:, task], everything(alone, y[task]), rtol=1e-10)


def test_identical_components_and_weightless_components_change_nothing():
    one = GaussianMixture(np.full((1, 2), 1e6), np.full((1, 2), 1e-20))
    many = GaussianMixture(np.full((600, 2), 1e6), np.full((600, 2), 1e-20), np.linspace(-3, 3, 600))
    # The variance is the sharp one: a mean off by its last digit, 1e-10, would double it.
    np.testing.assert_allclose(everything(many, 1e6), everything(one, 1e6), rtol=1e-6)
    np.testing.assert_allclose(many.quantile(0.1), one.quantile(0.1), rtol=3e-16)
    mixture = GaussianMixture(MEANS, VARIANCES, LOG_WEIGHTS)
    more = GaussianMixture(np.append(MEANS, 1e9), np.append(VARIANCES, 1e-9), np.append(LOG_WEIGHTS, -np.inf))
    np.testing.assert_allclose(everything(more, 1.0), everything(mixture, 1.0), rtol=1e-10)


def test_far_tails_zero_variance_and_nan():
    mixture = GaussianMixture(MEANS, VARIANCES, LOG_WEIGHTS)
    widest = np.log(WEIGHTS[1]) + stats.norm.logpdf(1e6, MEANS[1], np.sqrt(VARIANCES[1]))
    assert float(mixture.log_density(1e6)) == pytest.approx(float(widest), rel=1e-12)
    exact = GaussianMixture(np.zeros(1), np.zeros(1))
    np.testing.assert_array_less(np.abs(everything(exact, 1.0)), [*[1e-14] * 3, 1e30, 2.0, *[1e-14] * 4])
    padded = GaussianMixture(np.array([[0.0, np.nan], [1.0, 0.0]]), np.array([[1.0, 1.0], [1.0, np.inf]]))
    np.testing.assert_array_equal(np.isfinite(everything(padded, 0.5)), [[True, False]] * 9)


def of_covariances(means, covariances, weights) -> JointMixture:
    return JointMixture(means, lambda shares: np.tensordot(np.asarray(shares, float), covariances, axes=1), weights)


def joint_mixture(rng: np.random.Generator) -> tuple[JointMixture, np.ndarray]:
    roots = rng.normal(size=(3, 4, 2))  # Rank two: singular covariances of four points.
    covariances = roots @ np.swapaxes(roots, 1, 2)
    return of_covariances(2.0 * rng.normal(size=(3, 4)), covariances, WEIGHTS), covariances


def test_total_mean_and_covariance_against_samples():
    rng, n_samples = np.random.default_rng(4), 100_000
    mixture, covariances = joint_mixture(rng)
    samples = mixture.sample(n_samples, rng)
    assert np.all(np.abs(samples.mean(axis=0) - mixture.mean()) < 4 * samples.std(axis=0) / np.sqrt(n_samples))
    centered = samples - mixture.mean()
    products = centered[:, :, None] * centered[:, None, :]
    standard_errors = products.std(axis=0) / np.sqrt(n_samples)
    assert np.all(np.abs(products.mean(axis=0) - mixture.covariance()) < 4 * standard_errors)
    marginal = GaussianMixture(mixture.means, np.diagonal(covariances, axis1=1, axis2=2), LOG_WEIGHTS)
    np.testing.assert_allclose(marginal.mean(), mixture.mean(), rtol=1e-12)
    np.testing.assert_allclose(marginal.variance(), np.diagonal(mixture.covariance()), rtol=1e-12)
    frequencies = np.mean(samples <= marginal.quantile(0.3), axis=0)
    assert np.all(np.abs(frequencies - 0.3) < 4 * np.sqrt(0.21 / n_samples))


def test_singular_samples_stay_in_their_component_planes():
    rng = np.random.default_rng(5)
    mixture, covariances = joint_mixture(rng)
    samples = mixture.sample(3000, rng)
    null_spaces = np.linalg.eigh(covariances)[1][:, :, :2]
    offsets = np.einsum("knp,kpq->knq", samples[None] - mixture.means[:, None], null_spaces)
    on_plane = np.abs(offsets).max(axis=2) < 1e-6
    assert np.all(on_plane.sum(axis=0) == 1)
    assert np.all(np.abs(on_plane.mean(axis=1) - WEIGHTS) < 4 * np.sqrt(WEIGHTS * (1 - WEIGHTS) / 3000))
    assert np.any(np.diff(np.argmax(on_plane, axis=0)) < 0)  # Draws do not come sorted by component.
    constant = of_covariances(np.ones((1, 3)), np.zeros((1, 3, 3)), np.ones(1))
    for n_samples in [0, 2]:
        np.testing.assert_array_equal(constant.sample(n_samples, rng), np.ones((n_samples, 3)), strict=True)


PLANE, SINGLE = np.zeros((3, 2)), GaussianMixture(MEANS, VARIANCES)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (GaussianMixture, [np.zeros((0, 2)), np.zeros((0, 2))], r"means.*components.*\(0, 2\)"),
        (GaussianMixture, [MEANS, np.ones(2)], r"variances.*\(3,\).*\(2,\)"),
        (GaussianMixture, [MEANS, -VARIANCES], r"variances must be >= 0; got -2"),
        (GaussianMixture, [PLANE, PLANE, np.zeros((3, 1))], r"log_weights.*\(3, 2\).*\(3, 1\)"),
        (GaussianMixture, [MEANS, VARIANCES, np.full(3, -np.inf)], "log_weights.*all -inf"),
        (GaussianMixture, [MEANS, VARIANCES, np.array([0.0, np.nan, 0.0])], "log_weights.*nan"),
        (SINGLE.quantile, [0.0], "probability.*got 0.0"),
        (SINGLE.quantile, [np.array([0.5, np.nan, 1.0])], "probability.*nan"),
        (SINGLE.quantile, [np.full((2, 2), 0.5)], r"probability.*\(2, 2\)"),
        (SINGLE.interval, [1.0], "coverage.*got 1.0"),
        (GaussianMixture(PLANE, PLANE).cdf, [np.zeros(3)], r"y must.*\(2,\).*\(3,\)"),
    ],
)
def test_bad_input_is_named(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_an_extreme_point_does_not_change_the_others():
    means, variances = np.zeros((2, 3)), np.array([[0.1, 1.0, 1e38], [0.0, 2.0, 1e38]])
    alone = GaussianMixture(means[:, :2], variances[:, :2])
    together = GaussianMixture(means, variances)
    np.testing.assert_array_equal(together.std()[:2], alone.std())
    np.testing.assert_array_equal(together.quantile(0.3)[:2], alone.quantile(0.3))
