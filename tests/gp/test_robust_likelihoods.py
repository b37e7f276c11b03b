"""Student-t noise in JAX against the same in NumPy, which is tested against scipy."""

import jax.numpy as jnp
import numpy as np
import pytest

from metaprior.gp.robust_likelihoods import StudentT
from metaprior.prediction.response_mixtures import make_response


@pytest.mark.parametrize("nu", [1.0, 10.0])
def test_averages_are_those_of_numpy(nu):
    parameters = np.array([0.3, np.log(nu)], np.float32)
    center, scale, log_sigma, log_nu = (jnp.asarray(number, jnp.float32) for number in (0.0, 1.0, *parameters))
    likelihood = StudentT(center=center, scale=scale, log_sigma=log_sigma, log_nu=log_nu)
    y = np.repeat(np.array([0.0, 1.0, 5.0, 30.0], np.float32), 3)
    variance, mean = np.tile(np.array([0.01, 1.0, 100.0], np.float32), 4), np.full(12, 0.25, np.float32)
    arrays = [jnp.asarray(each) for each in (y, mean, variance)]
    doubles, response = [each.astype(float) for each in (y, mean, variance)], make_response("student-t")
    expected = response.expected(*doubles, parameters.astype(float))
    for ours, numpy_s in zip(likelihood.expected_of_t(*arrays), expected[:3], strict=True):
        np.testing.assert_allclose(ours, numpy_s, rtol=2e-3, atol=2e-4)
    log_density = response.log_density(*doubles, parameters.astype(float)[None])
    np.testing.assert_allclose(likelihood.log_average(*arrays), log_density, rtol=1e-4, atol=1e-3)
