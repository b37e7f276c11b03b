"""Other likelihoods of several classes, against scikit-learn and the bound of Jaakkola and Jordan."""

import numpy as np
from class_models import GivenClasses, dirichlet_regression, one_vs_each
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct


def make(n_classes, n=6, n_queries=3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, n + n_queries, 3))
    k = x @ np.swapaxes(x, 1, 2)
    y = np.arange(n) % n_classes + np.zeros((2, 1), int)
    return x, GivenClasses(k[:, :n, :n], k[:, :n, n:], np.diagonal(k, axis1=1, axis2=2)[:, n:], y, n_classes)


def test_dirichlet_regression_is_that_of_scikit_learn():
    x, given = make(3)
    found = dirichlet_regression(given, 0.1, 1.0)
    alpha = np.eye(3)[given.y[0]] + 0.1
    noise = np.log(1.0 / alpha + 1.0)
    readings = np.log(alpha) - noise / 2
    for c in range(3):
        model = GaussianProcessRegressor(DotProduct(0.0, "fixed"), alpha=noise[:, c], optimizer=None)
        model.fit(x[0, :6], readings[:, c] - readings.mean())
        mean, std = model.predict(x[0, 6:], return_std=True)
        np.testing.assert_allclose(found.mean[0, :, c], mean, rtol=1e-6)
        np.testing.assert_allclose(found.covariance[0, :, c, c], std**2, rtol=1e-6)


def test_one_vs_each_with_two_classes_is_the_bound_of_jaakkola_and_jordan():
    _, given = make(2)
    found = one_vs_each(given)
    k, cross = 2.0 * given.covariance[0], 2.0 * given.cross[0]
    xi = np.ones(6)
    for _ in range(500):
        site = np.tanh(xi / 2) / (2 * xi)
        inverse = np.linalg.inv(k + np.diag(1 / site))
        covariance = k - k @ inverse @ k
        mean = covariance @ (given.y[0] - 0.5)
        xi = np.sqrt(np.diag(covariance) + mean**2)
    at_queries = cross.T @ inverse @ ((given.y[0] - 0.5) / site)
    np.testing.assert_allclose(found.mean[0, :, 1] - found.mean[0, :, 0], at_queries, rtol=1e-3)
    variance = found.covariance[0, :, 0, 0] + found.covariance[0, :, 1, 1] - 2.0 * found.covariance[0, :, 0, 1]
    expected = 2.0 * given.variance[0] - np.sum(cross * (inverse @ cross), axis=0)
    np.testing.assert_allclose(variance, expected, rtol=1e-3)


def test_classes_are_exchangeable():
    _, given = make(3)
    other = given._replace(y=2 - given.y)
    for model in (one_vs_each, lambda each: dirichlet_regression(each, 0.01, 2.0)):
        np.testing.assert_allclose(model(given).mean, model(other).mean[..., ::-1], atol=1e-9)
